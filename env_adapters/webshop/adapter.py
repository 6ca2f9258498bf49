"""The WebShop adapter: options, data on disk, task lists, prompts, and the environment that plays episodes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from env_adapters.base import EnvironmentFault, Observation, PastTurn, StepResult, Task
from env_adapters.responses import format_response, parse_response
from env_adapters.webshop import catalogue, pages, prompts, words
from env_adapters.webshop.expert import expert_action
from env_adapters.webshop.goals import GoalList, ensure_goals
from env_adapters.webshop.products import Product
from env_adapters.webshop.search import SearchIndex, ensure_index
from env_adapters.webshop.shop import Session, Shop, parse_action
from env_adapters.webshop.store import ProductStore, ensure_store
from env_adapters.webshop.tagger import make_tagger
from env_adapters.webshop.upstream_files import UpstreamFiles, check_files, find_files, read_products

MOST = 10_000_000  # of anything that is counted
MOST_PAGE = 50  # products a page: a search gives no more
ACTION_CHARS = 1000  # longest action: queries and option values are longer than other environments' actions


@dataclass(frozen=True)
class WebshopOptions:
    """Options of the environment; on the command line `--set env.products=5000`."""

    data_dir: str = ""  # holds the original files; "": an invented catalogue
    product_set: Literal["auto", "small", "full"] = "auto"  # original files: 1,000 products, 1,181,436, what is there
    accept_other_files: bool = False  # take files of the original format that are not the published ones
    cache_dir: str = ""  # catalogue, index and goals; "" means ~/.cache/sapo/webshop
    catalogue: Literal["full", "tiny"] = "full"  # of invented products: realistic, or of few words
    products: int = 1000  # invented ones
    instructions: int = 6  # human-style ones a product, of invented products
    seed: int = 0  # of invented products, and of price limits and prices within a range
    goals: Literal["human", "synthetic"] = "human"  # one an instruction, or one a combination of options
    warm_start_goals: int = 1000  # for demonstrations, cut from train; at most a third of it
    prompt: Literal["published", "compact"] = "published"  # compact: few words, for a tiny model
    observation: Literal["text", "text_rich"] = "text"  # of the published prompt, the original's two text modes
    page_size: int = 10  # products a page of results (published)
    compat: Literal["upstream", "strict"] = "upstream"  # strict: synthetic goals' options are compared as values
    tagger: Literal["heuristic", "spacy"] = "heuristic"  # which words of a title are nouns, for the reward
    spacy_model: str = "en_core_web_lg"  # of tagger=spacy; the original's
    # What counts as a valid action. format: tags, and search[...] or click[...]; admissible: it also did something.
    validity: Literal["format", "admissible"] = "format"
    success_reward: float = 10.0  # paid for a purchase of score 1 (published); the score itself is recorded

    def __post_init__(self) -> None:
        for name, least, most in (
            ("products", 1, MOST), ("instructions", 1, 100), ("seed", 0, MOST), ("warm_start_goals", 0, MOST),
            ("page_size", 1, MOST_PAGE),
        ):  # fmt: skip
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"option {name}={getattr(self, name)} must be {least} to {most}")
        if not 0 < self.success_reward < float("inf"):
            raise ValueError(f"option success_reward={self.success_reward} must be positive and finite")


class WebshopAdapter:
    """Shopping in text. See env_adapters/base.py for what each method promises."""

    name: ClassVar[str] = "webshop"
    Options: ClassVar[type] = WebshopOptions
    train_split: ClassVar[str] = "train"
    warm_start_split: ClassVar[str] = "warm_start"
    evaluation_splits: ClassVar[tuple[str, ...]] = ("dev", "test")

    def __init__(self, options: WebshopOptions | None = None) -> None:
        self.options = options or WebshopOptions()
        self.source = "original" if self.options.data_dir else "invented"
        self._cache_dir = Path(self.options.cache_dir or "~/.cache/sapo/webshop").expanduser()
        self._shop: Shop | None = None

    # -- data ----------------------------------------------------------------------------------------------------
    def _files(self) -> UpstreamFiles:
        return find_files(Path(self.options.data_dir).expanduser().absolute(), self.options.product_set)

    def _product_facts(self) -> dict[str, Any]:
        """What the catalogue depends on."""
        options = self.options
        if self.source == "original":
            return {**self._files().facts, "verified": not options.accept_other_files}
        return {
            "generator": catalogue.GENERATOR_VERSION,
            "catalogue": options.catalogue,
            "products": options.products,
            "instructions": options.instructions,
            "seed": options.seed,
        }

    def _products(self, progress: Any) -> Iterator[Product]:
        options = self.options
        if self.source == "original":
            files = self._files()
            check_files(files, options.accept_other_files, progress)
            yield from read_products(files, progress)
            return
        made = catalogue.generate(options.catalogue, options.products, options.instructions, options.seed)
        for number, product in enumerate(made):
            if progress is not None and number % 1000 == 0:
                progress(number, options.products, "products")
            yield product

    def folder(self) -> Path:
        """Where the catalogue of these options lies, with its index and its goals."""
        if self.source == "original":
            return self._cache_dir / f"original-{_short_hash(str(self._files().items))}"
        return self._cache_dir / f"{self.options.catalogue}-{_short_hash(self._product_facts())}"

    def _goals_folder(self) -> Path:
        options = self.options
        return self.folder() / f"goals-{options.goals}-{_short_hash([options.seed, options.warm_start_goals])}"

    def prepare(self, progress: Any = None) -> None:
        """Make catalogue, index and goals, and check that no instruction is in two splits.

        A second for a thousand products; the original's full set takes long (docs/webshop.md).
        """
        options, folder = self.options, self.folder()
        store = ensure_store(folder / "products", self._product_facts(), lambda: self._products(progress))
        ensure_index(folder / "index", store, progress)
        ensure_goals(self._goals_folder(), store, options.goals, options.seed, options.warm_start_goals).check()
        self._load()

    def _load(self) -> Shop:
        if self._shop is None:
            options, folder = self.options, self.folder()
            store = ProductStore(folder / "products")
            self._shop = Shop(
                store,
                SearchIndex(folder / "index", store.catalogue),
                GoalList(self._goals_folder(), store),
                make_tagger(options.tagger, options.spacy_model),
                options.compat,
                options.seed,
                options.page_size,
            )
        return self._shop

    def tasks(self, split: str) -> Sequence[Task]:
        known = (self.train_split, self.warm_start_split, *self.evaluation_splits)
        if split not in known:
            raise EnvironmentFault(f"split {split!r}: webshop has {', '.join(known)}")
        return self._load().goals.tasks(split)

    def make(self) -> WebshopEnvironment:
        return WebshopEnvironment(self._load(), self.options)

    # -- text ----------------------------------------------------------------------------------------------------
    def prompt(self, observation: Observation, history: Sequence[PastTurn], turns_taken: int) -> str:
        form = prompts.compact if self.options.prompt == "compact" else prompts.published
        return form(observation, history, turns_taken)

    def follow_up(self, observation: Observation) -> str:
        """The user message of a later turn of a transcript."""
        if self.options.prompt == "compact":
            return f" ; now {observation.text}"
        return f"Your current observation is: {prompts.without_goal(observation.text, observation.goal)}"

    def response(self, action: str) -> str:
        return format_response(action)

    def vocabulary(self) -> Sequence[str]:
        shop = self._load()
        return words.vocabulary(shop.store, shop.goals)

    @property
    def interchangeable_words(self) -> Sequence[Sequence[str]]:
        """Ids, types, attributes and option values of an invented catalogue, each among themselves."""
        return words.interchangeable(self.options.catalogue, self._load().store) if self.source == "invented" else ()

    def description(self) -> Mapping[str, Any]:
        shop, options = self._load(), self.options
        made_from = dict(shop.store.facts)
        if "files" in made_from:  # without their times: a copy of the same files is the same catalogue
            made_from["files"] = {name: one["bytes"] for name, one in made_from["files"].items()}
        splits = (self.warm_start_split, self.train_split, *self.evaluation_splits)
        return {
            "environment": self.name,
            "source": self.source,
            "catalogue": made_from,
            "catalogue_sha256": shop.store.catalogue,
            "products": len(shop.store),
            "goals": options.goals,
            "goals_sha256": shop.goals.sha256,
            "counts": {split: len(shop.goals.tasks(split)) for split in splits},
            "left_out": shop.goals.num_left_out,
            "compat": options.compat,
            "tagger": shop.tagger.name,
            "prompt": options.prompt,
            "page_size": options.page_size,
        }


def _short_hash(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


class WebshopEnvironment:
    """One customer after another in a shop that all environments of the process share."""

    def __init__(self, shop: Shop, options: WebshopOptions) -> None:
        self._shop, self._options = shop, options
        self._session: Session | None = None
        self._write = pages.text_rich if options.observation == "text_rich" else pages.text
        if options.prompt == "compact":
            self._write = prompts.brief_page

    def reset(self, task: Task) -> Observation:
        position = task.payload["goal"]
        if not 0 <= position < len(self._shop.goals):
            raise EnvironmentFault(f"task {task.task_id!r}: goal {position} of {len(self._shop.goals)}; other goals?")
        self._session = Session(self._shop, self._shop.goals.goal(position))
        return self._observe()

    def _observe(self) -> Observation:
        page = self._session.page
        return Observation(pages.visible(page.instruction), self._write(page), pages.admissible(page))

    def step(self, response: str) -> StepResult:
        session = self._session
        if session is None:
            raise EnvironmentFault("webshop: step before the first reset; call reset(task)")
        if session.verdict is not None:
            raise EnvironmentFault(f"goal {session.goal.number}: the episode has ended; call reset(task)")
        parsed = parse_response(response, max_chars=ACTION_CHARS)
        if not parsed.valid or parse_action(parsed.action) is None:
            return StepResult(self._observe(), 0.0, False, "", False)
        done_something = session.act(parsed.action)
        valid = done_something or self._options.validity == "format"
        verdict = session.verdict
        if verdict is None:
            return StepResult(self._observe(), 0.0, False, parsed.action, valid)
        won = verdict.score == 1.0
        reward = self._options.success_reward if won else 0.0
        return StepResult(self._observe(), reward, True, parsed.action, valid, won, verdict.score, verdict.to_json())

    def expert_action(self) -> str | None:
        return None if self._session is None else expert_action(self._session.page)

    def close(self) -> None:
        self._session = None
