"""docs/configuration.md is what the dataclasses say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.config import Config
from pipeline.config_loading import flatten
from pipeline.config_reference import field_comments, page, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


@dataclass(frozen=True)
class Sample:
    size: int = 3  # tokens | words
    kind: Literal["a", "b"] = "a"
    # Both lines
    # belong to it.
    rate: float = 0.5
    name: str = ""  # text with a # in it
    longest: Literal["a name", "another name", "one more name", "and the last"] = (
        "a name"  # in brackets, where the line is too long
    )


def test_a_table_worked_by_hand():
    assert field_comments(Sample) == {
        "size": "tokens | words",
        "rate": "Both lines belong to it.",
        "name": "text with a # in it",
        "longest": "in brackets, where the line is too long",
    }
    assert list(table("rollout", Sample)) == [
        "| key | type | default | may change | meaning |",
        "|---|---|---|---|---|",
        "| `rollout.size` | int | `3` |  | tokens \\| words |",
        "| `rollout.kind` | `a`, `b` | `a` |  |  |",
        "| `rollout.rate` | float | `0.5` |  | Both lines belong to it. |",
        '| `rollout.name` | str | `""` |  | text with a # in it |',
        "| `rollout.longest` | `a name`, `another name`, `one more name`, `and the last` | `a name` |  | "
        "in brackets, where the line is too long |",
    ]
    assert "| yes |" in list(table("logging", Sample))[2]  # a section that may change as a whole


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m pipeline.config_reference > docs/configuration.md"
    )


def test_the_options_of_every_algorithm_are_on_the_page():
    text = page()
    assert "## ppo: options of the algorithm `ppo`" in text and "| `ppo.credit` | `turn`, `token` | `turn` |" in text
    for key in ("grpo.use_std", "dapo.clip_high", "gigpo.step_weight", "vineppo.continuations", "sapo.normalise"):
        assert f"| `{key}` |" in text
    assert "## remax" not in text  # it has none


def test_every_setting_is_on_the_page_with_a_meaning():
    rows = {line.split("`")[1]: line for line in page().splitlines() if line.startswith("| `")}
    assert flatten(Config()).keys() <= rows.keys()
    assert [key for key, line in rows.items() if line.endswith("|  |")] == []
