import itertools

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from env_adapters.responses import format_response, parse_response
from runtime.reservation import reserve_value_tokens
from runtime.tiny_model import make_tiny_model, pieces, word_tokenizer

TEXTS = (
    "You are in the middle of a room. Looking quickly around you, you see a desk 1, a shelf 2, and nothing.",
    "go to take put move open close examine from in/on heat with cool clean use inventory look slice toggle on",
    "mug loc book alarmclock shelf desk countertop microwave there's don't t-shirt",
    "'go to shelf 1', [search] click[buy now] $ price: 30.00 (50%) < prev > ; ! ? _ \"quoted\" b07q&a",
    "your task is to: put a hot mug in cabinet.\n\nwhat now?",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", TEXTS, width=16, layers=2, heads=2, seed=3)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


def actions():
    things = [f"{word} {n}" for word in ("mug", "shelf", "loc") for n in (0, 1, 9, 10, 12, 21, 100, 123)]
    yield from (f"go to {thing}" for thing in things)
    for a, b in itertools.product(things[:10], things[4:14]):
        yield from (f"take {a} from {b}", f"put {a} in/on {b}", f"move {a} to {b}", f"heat {a} with {b}")
    yield from ("look", "inventory", "examine there's 2", "take t-shirt 12 from desk 3", "put mug 1 2 in/on desk 12")
    yield from ("search[mug]", "click[buy now]", "click[< prev]", "search[hot mug, price: 30.00]", "click[b07q]")
    yield from ("don't look", "open (shelf 1)", "use mug 1; look", "take a 50% mug!", "take a1 from a23")


def test_every_action_comes_back_from_its_tokens(tokenizer):
    count = 0
    for action in actions():
        response = format_response(action)
        ids = tokenizer.encode(response)
        assert tokenizer.unk_token_id not in ids, action
        assert tokenizer.decode(ids) == response
        assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == response
        parsed = parse_response(tokenizer.decode([*ids, tokenizer.eos_token_id, tokenizer.pad_token_id]))
        assert parsed.valid and parsed.action == action
        count += 1
    assert count > 400


def test_a_thought_comes_back_and_its_capitals_do_not(tokenizer):
    ids = tokenizer.encode("<think>You see a Mug 12.</think><action>look</action>")
    assert tokenizer.decode(ids) == "<think>you see a mug 12.</think><action>look</action>"


def test_tokens_of_a_sentence(tokenizer):
    """Words, single digits, a marked digit where it touches its neighbour, punctuation, whole tags."""
    text = "<think></think><action>Put mug 12 in/on desk 1</action><eos>"
    expected = "<think> </think> <action> put mug 1 ##2 in/on desk 1 </action> <eos>".split()
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(text)) == expected
    assert tokenizer.tokenize("'go to shelf 1',") == ["'", "go", "to", "shelf", "1", "'", ","]
    assert tokenizer.tokenize("you see a mug 1, a mug 2.\n\nWhat now?") == (
        "you see a mug 1 , a mug 2 . what now ?".split()
    )


def test_a_word_is_one_token_wherever_it_stands(tokenizer):
    """The goal's `mug`, the observation's `mug 1`, a quoted 'mug' and one in an action are the same id."""
    mug = tokenizer.convert_tokens_to_ids("mug")
    for text in (
        "a hot mug in",
        "a mug 1, a",
        "'mug 1',",
        "'take mug'",
        "<action>mug 1</action>",
        "Mug.",
        "(mug)",
        "[mug]",
    ):
        assert mug in tokenizer.encode(text), text


def test_every_word_of_the_texts_is_known_and_others_are_unk(tokenizer):
    for text in TEXTS:
        assert tokenizer.unk_token_id not in tokenizer.encode(text)
        assert tokenizer.tokenize(text) == pieces(text)
    assert tokenizer.tokenize("mugs zebra 7 é") == ["<unk>", "<unk>", "7", "<unk>"]


def test_special_tokens(tokenizer):
    ids = [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id]
    assert ids == [0, 1, 2] and tokenizer.convert_ids_to_tokens(ids) == ["<pad>", "<eos>", "<unk>"]
    assert tokenizer.bos_token_id is None and tokenizer.encode("look") == [tokenizer.convert_tokens_to_ids("look")]
    text = tokenizer.apply_chat_template([{"role": "user", "content": "look"}], tokenize=False)
    assert text == "look\n"


def test_the_token_order_does_not_depend_on_the_texts_order():
    assert word_tokenizer(TEXTS).get_vocab() == word_tokenizer(TEXTS[::-1]).get_vocab()
    assert sorted(word_tokenizer(TEXTS).get_vocab().values()) == list(range(len(word_tokenizer(TEXTS))))


def test_model_loads_with_two_spare_rows_for_the_value_tokens(folder, tokenizer, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(folder)
    config = model.config
    assert config.vocab_size == len(tokenizer) + 2 == model.get_input_embeddings().weight.shape[0]
    assert (config.eos_token_id, config.pad_token_id, config.tie_word_embeddings) == (1, 0, True)
    assert model.generation_config.eos_token_id == 1
    done = reserve_value_tokens(folder, tmp_path / "model", 10.0, 1.0)
    n = len(tokenizer)
    assert (done.kind, done.tokens.positive_id, done.tokens.negative_id, done.num_rows) == ("spare", n, n + 1, n + 2)


def test_same_seed_same_bytes_and_the_callers_generator_is_left_alone(folder, tmp_path):
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    again = make_tiny_model(tmp_path / "again", TEXTS, width=16, layers=2, heads=2, seed=3)
    assert torch.equal(torch.rand(3), expected)
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in again.iterdir())
    assert all((folder / name).read_bytes() == (again / name).read_bytes() for name in names)
    other = make_tiny_model(tmp_path / "other", TEXTS, width=16, layers=2, heads=2, seed=4)
    assert (folder / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()
