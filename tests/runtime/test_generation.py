"""Against transformers' own generate, against a naive full forward, and against the exact distribution."""

import numpy as np
import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from runtime.generation import TransformersGenerator, _batches_by_budget, _Row, sample_tokens
from runtime.generator import GenerationError, Request, stop_ids
from runtime.pretrained import load_generation_config
from runtime.seeding import uniforms
from runtime.weight_files import ModelFilesError

VOCABULARY, EOS, PLUS, MINUS = 50, 1, 48, 49
SHAPE = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, bos_token_id=0, eos_token_id=EOS, pad_token_id=EOS,
)  # fmt: skip


def make_model(family: str = "qwen2", attention: str = "sdpa", **changes):
    families = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}
    config_class, model_class = families[family]
    torch.manual_seed(0)
    config = config_class(**{**SHAPE, "attn_implementation": attention, **changes})
    model = model_class(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(4)  # at 0.02 every distribution is flat and every test blind
    return model


def prompts(n: int, seed: int = 0) -> list[tuple[int, ...]]:
    random = np.random.default_rng(seed)
    return [tuple(int(i) for i in random.integers(2, 48, random.integers(1, 40))) for _ in range(n)]


def request(key: int, prompt_ids, n: int = 12, run_seed: int = 0) -> Request:
    return Request(key, prompt_ids, uniforms(run_seed, 1, f"task-{key}", 0, 0, n))


def make_generator(model, slots=4, temperature=1.0, banned=(PLUS, MINUS), stops=(EOS,), max_response=12, **more):
    return TransformersGenerator(model, slots, 40, max_response, temperature, banned, stops, **more)


def finish(generator: TransformersGenerator) -> dict:
    done = {}
    while not generator.idle:
        for completion in generator.step():
            assert completion.key not in done
            done[completion.key] = completion
    return done


def naive_logprobs(model, prompt_ids, response_ids, temperature: float, banned=(PLUS, MINUS)) -> list[float]:
    """One full forward a token, no cache, no batch."""
    result = []
    for t, token in enumerate(response_ids):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt_ids, *response_ids[:t]]])).logits[0, -1].double() / temperature
        logits[list(banned)] = float("-inf")
        result.append(logits.log_softmax(0)[token].item())
    return result


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_greedy_equals_generate_for_mixed_lengths_with_joins_in_flight(family, attention):
    model = make_model(family, attention)
    generator = make_generator(model, slots=3, temperature=0.0, prefill_tokens=60, stops=range(1, 8))
    texts = prompts(10)
    done = {}
    for key, prompt_ids in enumerate(texts):  # a new one joins at every step while others are in the middle
        generator.submit(request(key, prompt_ids))
        done |= {one.key: one for one in generator.step()}
    done |= finish(generator)
    assert len({len(one.response_ids) for one in done.values()}) > 1  # some stop early, or this test is blind
    for key, prompt_ids in enumerate(texts):
        ids = torch.tensor([prompt_ids])
        expected = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False,
            suppress_tokens=[PLUS, MINUS], eos_token_id=list(range(1, 8)),
        )[0, len(prompt_ids) :]  # fmt: skip
        assert done[key].response_ids == tuple(expected.tolist())


def test_the_model_reads_each_token_once_and_no_padding():
    model = make_model()
    read = []
    model.get_decoder().layers[0].mlp.register_forward_pre_hook(lambda _, args: read.append(args[0].shape[:-1].numel()))
    generator = make_generator(model, slots=8, stops=range(1, 8))
    texts = prompts(30)
    for key, prompt_ids in enumerate(texts):
        generator.submit(request(key, prompt_ids))
    done = finish(generator)
    assert len(read) < 60  # in batches
    # the last token of a response is sampled and never read
    assert sum(read) == sum(map(len, texts)) + sum(len(one.response_ids) - 1 for one in done.values())


@pytest.mark.parametrize(
    ("lengths", "batches"),
    [
        ([3, 3, 4, 4], [[3, 3, 4], [4]]),  # 10 tokens fit, 14 do not
        ([2, 12], [[2], [12]]),  # a row of more than the budget
        ([1, 1, 1, 6], [[1, 1, 1], [6]]),  # together 9 tokens, which attention would pad to 24
        ([], []),
    ],
)
def test_joiners_are_read_by_a_budget_of_tokens_and_at_most_half_padding(lengths, batches):
    rows = [_Row(request(0, (3,) * length), 0.0) for length in lengths]
    cut = _batches_by_budget(rows, 10)
    assert [[len(row.request.prompt_ids) for row in batch] for batch in cut] == batches


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_sampling_logprobs_equal_teacher_forced_ones(family, temperature):
    model = make_model(family)
    generator = make_generator(model, temperature=temperature)
    texts = prompts(9)
    for key, prompt_ids in enumerate(texts):
        generator.submit(request(key, prompt_ids))
    done = finish(generator)
    assert len(done) == 9
    for key, one in done.items():
        expected = naive_logprobs(model, texts[key], one.response_ids, temperature)
        assert one.sampling_logprobs == pytest.approx(expected, abs=1e-5)


def test_value_tokens_are_never_sampled_whatever_their_logits():
    model = make_model(tie_word_embeddings=False)
    head = model.lm_head.weight
    with torch.no_grad():  # huge logits: one of the two is far above everything, whatever the hidden state
        head[PLUS] = 1000 * head[5]
        head[MINUS] = -1000 * head[5]
    for temperature in (0.0, 1.0):
        generator = make_generator(model, temperature=temperature)
        for key, prompt_ids in enumerate(prompts(20)):
            generator.submit(request(key, prompt_ids))
        sampled = [token for one in finish(generator).values() for token in one.response_ids]
        assert len(sampled) > 50 and not {PLUS, MINUS} & set(sampled)
    free = make_generator(model, temperature=0.0, banned=())
    free.submit(request(0, prompts(1)[0]))
    assert {PLUS, MINUS} & set(finish(free)[0].response_ids)  # without the ban nothing else comes out


def test_new_weights_count_at_once():
    model = make_model()
    generator = make_generator(model)
    prompt_ids = prompts(1)[0]

    def response():
        generator.submit(request(0, prompt_ids))
        return finish(generator)[0]

    before = response()
    assert response().response_ids == before.response_ids
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    after = response()
    assert after.response_ids != before.response_ids
    expected = naive_logprobs(model, prompt_ids, after.response_ids, 1.0)
    assert after.sampling_logprobs == pytest.approx(expected, abs=1e-5)


def test_a_request_does_not_see_its_batch_mates():
    model = make_model()
    texts = prompts(8)
    alone = {}
    for key, prompt_ids in enumerate(texts):
        generator = make_generator(model, slots=1)
        generator.submit(request(key, prompt_ids))
        alone |= finish(generator)
    for slots, order in ((8, range(8)), (3, reversed(range(8)))):
        generator = make_generator(model, slots=slots)
        for key in order:
            generator.submit(request(key, texts[key]))
        together = finish(generator)
        for key in range(8):
            assert together[key].response_ids == alone[key].response_ids
            assert together[key].sampling_logprobs == pytest.approx(alone[key].sampling_logprobs, abs=1e-5)


def test_stops_at_every_stop_token_and_at_the_length_limit():
    model = make_model()
    texts = prompts(40)

    def run(stops, max_response):
        generator = make_generator(model, slots=8, stops=stops, max_response=max_response)
        for key, prompt_ids in enumerate(texts):
            generator.submit(request(key, prompt_ids))
        return finish(generator)

    long, cut = run((EOS, 7), 12), run((EOS, 7), 3)
    assert {one.response_ids[-1] for one in long.values() if one.stopped} == {EOS, 7}
    for key, one in long.items():
        inner = one.response_ids[:-1]
        assert not {EOS, 7} & set(inner)
        assert one.stopped == (one.response_ids[-1] in (EOS, 7))
        assert one.stopped or len(one.response_ids) == 12
        assert cut[key].response_ids == one.response_ids[:3]
    assert any(not one.stopped for one in cut.values())
    assert {len(one.response_ids) for one in run((EOS, 7), 1).values()} == {1}


def test_sampled_frequencies_match_the_distribution():
    # softmax of log p is p; token 2 is banned, so W_act has 0.1, 0.2, 0.4 of 0.7
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log().expand(7000, 4)
    grid = (torch.arange(7000, dtype=torch.float64) + 0.5) / 7000  # an even grid: counts are exact
    tokens, logprobs = sample_tokens(logits, grid, 1.0, torch.tensor([2]))
    assert torch.bincount(tokens, minlength=4).tolist() == [1000, 2000, 0, 4000]
    assert logprobs[0].item() == pytest.approx(np.log(1 / 7), abs=1e-6)
    # at temperature 0.5 probabilities are squared: 1 : 4 : 16 of 21
    grid = (torch.arange(2100, dtype=torch.float64) + 0.5) / 2100
    tokens, _ = sample_tokens(logits[:2100], grid, 0.5, torch.tensor([2]))
    assert torch.bincount(tokens, minlength=4).tolist() == [100, 400, 0, 1600]
    drawn = torch.from_numpy(uniforms(0, 1, "frequencies", 0, 0, 7000))
    counts = torch.bincount(sample_tokens(logits, drawn, 1.0, torch.tensor([2]))[0], minlength=4)
    expected = torch.tensor([1000.0, 2000.0, 4000.0])
    # chi-square with 2 degrees of freedom: 13.8 is its 99.9 % point
    assert ((counts[[0, 1, 3]] - expected) ** 2 / expected).sum() < 13.8


def test_edges_of_the_unit_interval_and_of_the_vocabulary():
    logits = torch.tensor([[0.0, 0.0, -1e4, 0.0], [-1e4, 0.0, 0.0, -1e4]])
    banned = torch.tensor([3])
    smallest, largest = torch.zeros(2, dtype=torch.float64), torch.full((2,), 1 - 2**-53, dtype=torch.float64)
    assert sample_tokens(logits, smallest, 1.0, banned)[0].tolist() == [0, 1]
    assert sample_tokens(logits, largest, 1.0, banned)[0].tolist() == [1, 2]


def test_bad_requests_are_refused():
    model = make_model()
    generator = make_generator(model)
    for prompt_ids in ((), tuple(range(2, 43))):
        with pytest.raises(GenerationError, match="allowed are 1 to 40"):
            generator.submit(request(0, prompt_ids))
    with pytest.raises(GenerationError, match="uniform numbers"):
        generator.submit(request(0, (3,), n=5))
    with pytest.raises(GenerationError, match="128 positions"):
        TransformersGenerator(model, 2, 100, 29, 1.0, (), (EOS,))
    sliding = make_model(use_sliding_window=True, sliding_window=64, max_window_layers=0)
    with pytest.raises(GenerationError, match="64 positions"):
        TransformersGenerator(sliding, 2, 50, 15, 1.0, (), (EOS,))
    mistral = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=64))
    with pytest.raises(GenerationError, match="64 positions"):
        TransformersGenerator(mistral, 2, 50, 15, 1.0, (), (EOS,))
    bloom = BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=1, n_head=2))
    with pytest.raises(GenerationError, match=r"BloomForCausalLM with another attention.*rollout.backend=vllm"):
        make_generator(bloom)
    with pytest.raises(GenerationError, match="end-of-turn"):
        make_generator(model, stops=())
    assert generator.idle


def test_stop_ids_join_tokenizer_and_generation_config():
    class Tokenizer:
        eos_token_id = 5

    class Listed:
        eos_token_id = [7, 5]

    class Single:
        eos_token_id = 9

    assert stop_ids(Tokenizer, Listed) == (5, 7)
    assert stop_ids(Tokenizer, Single) == (5, 9)
    assert stop_ids(Tokenizer, None) == (5,)
    Tokenizer.eos_token_id = None
    assert stop_ids(Tokenizer, None) == ()


def test_stop_ids_of_a_folder_are_those_of_the_loaded_model(tmp_path):
    model = make_model()
    model.generation_config.eos_token_id = [7, EOS]
    model.save_pretrained(tmp_path)
    assert load_generation_config(tmp_path).eos_token_id == [7, EOS]
    file = tmp_path / "generation_config.json"
    file.write_text("{")
    with pytest.raises(ModelFilesError, match="no generation_config.json that transformers understands.*copy"):
        load_generation_config(tmp_path)
    file.unlink()
    loaded = Qwen2ForCausalLM.from_pretrained(tmp_path).generation_config.eos_token_id
    assert load_generation_config(tmp_path).eos_token_id == loaded == EOS


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_of_a_diverged_policy_are_one_line(bad, temperature):
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, bad, 2.0]])
    with pytest.raises(GenerationError, match="logits are not finite: its weights have diverged.*lower optimize"):
        sample_tokens(logits, torch.tensor([0.5, 0.5]).double(), temperature, torch.tensor([2]))


def check_rows(generator):
    """Every row of the cache is free, kept, or some live request's."""
    rows = [*generator.rows, *generator.kept.values()]
    assert sorted([*generator.free, *(row.slot for row in rows)]) == list(range(generator.slots))


def converse(model, temperature, slots, keep, num_turns=3):
    """Five conversations at once, each turn with new text of any length; three of them in kept rows where `keep`.

    Returns:
        The completions by (conversation, turn), the generator, and the tokens of all prompts.
    """
    random = np.random.default_rng(3)
    new = [[tuple(random.integers(2, 48, random.integers(1, 9)).tolist()) for _ in range(num_turns)] for _ in range(5)]
    generator = TransformersGenerator(model, slots, 100, 6, temperature, (PLUS, MINUS), (EOS,))
    contexts, found, total = [()] * 5, {}, 0
    due = [(number, 0) for number in range(5)]
    while due or not generator.idle:
        for number, turn in due:
            contexts[number] += new[number][turn]
            total += len(contexts[number])
            numbers = uniforms(0, 1, f"task-{number}", 0, turn, 6)
            conversation = number if keep and number < 3 else None
            generator.submit(Request((number, turn), contexts[number], numbers, conversation))
        due = []
        completions = generator.step()
        check_rows(generator)
        for completion in completions:
            number, turn = completion.key
            found[completion.key] = completion
            contexts[number] += completion.response_ids
            if turn + 1 < num_turns:
                due.append((number, turn + 1))
            else:
                generator.forget(number)
    return found, generator, total


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("slots", [3, 5])  # in three, kept rows make way for others
def test_a_conversation_in_a_kept_row_is_the_same_as_whole_prompts(attention, temperature, slots):
    model = make_model(attention=attention)
    kept, generator, total = converse(model, temperature, slots, keep=True)
    plain, other, _ = converse(model, temperature, slots, keep=False)
    assert not generator.kept and other.num_prompt_tokens == total
    if slots == 5:
        assert generator.num_prompt_tokens < 0.8 * total
    assert len(kept) == len(plain) == 15
    for key, completion in plain.items():
        assert kept[key].response_ids == completion.response_ids and kept[key].stopped == completion.stopped
        assert kept[key].sampling_logprobs == pytest.approx(completion.sampling_logprobs, abs=1e-5)


def test_a_kept_row_that_does_not_begin_the_prompt_is_given_up():
    model = make_model()
    generator = make_generator(model, slots=2, temperature=0.0, max_response=4)
    numbers = uniforms(0, 1, "a", 0, 0, 4)
    for prompt in ((5, 6, 7), (5, 9, 7, 8)):
        generator.submit(Request("a", prompt, numbers, conversation="a"))
        done = finish(generator)["a"]
        alone = make_generator(model, slots=1, temperature=0.0, max_response=4)
        alone.submit(Request("a", prompt, numbers))
        assert done.response_ids == finish(alone)["a"].response_ids
    assert generator.num_prompt_tokens == 7 and len(generator.kept) == 1


def test_the_row_kept_longest_makes_way_for_a_new_request():
    generator = make_generator(make_model(), slots=2, max_response=4)
    for number in range(5):
        generator.submit(Request(number, (5, 6, 7 + number), uniforms(0, 1, "t", 0, number, 4), conversation=number))
        finish(generator)
        check_rows(generator)
        assert list(generator.kept) == [*range(number + 1)][-2:]


def test_of_two_requests_of_a_conversation_at_a_time_one_row_is_kept():
    generator = make_generator(make_model(), slots=3, max_response=4)
    for key in range(2):
        generator.submit(Request(key, (5, 6, 7 + key), uniforms(0, 1, "t", 0, key, 4), conversation="a"))
    done = finish(generator)
    check_rows(generator)
    assert len(done) == 2 and list(generator.kept) == ["a"] and len(generator.free) == 2
    generator.forget("a")
    generator.forget("a")  # there is none any more
    check_rows(generator)
    assert not generator.kept


def test_rows_live_on_where_those_between_them_have_ended(monkeypatch):
    model = make_model()
    texts = prompts(24)
    shared = make_generator(model, slots=24, stops=range(1, 8))
    reads = []
    expect = shared.cache.expect
    monkeypatch.setattr(
        shared.cache, "expect", lambda packing, *more: (reads.append(packing), expect(packing, *more))[1]
    )
    for key, prompt_ids in enumerate(texts):
        shared.submit(request(key, prompt_ids))
    together = finish(shared)
    decodes = [packing for packing in reads if packing.shape[1] == 1]
    in_place = [packing for packing in decodes if isinstance(packing.read, slice)]
    assert any(packing.shape[0] > len(packing.last) for packing in in_place)  # over rows that have ended
    assert len(in_place) < len(decodes)  # and where they are too far apart, copied
    for key, prompt_ids in enumerate(texts):
        one = make_generator(model, slots=1, stops=range(1, 8))
        one.submit(request(key, prompt_ids))
        alone = finish(one)[key]
        assert together[key].response_ids == alone.response_ids
        assert together[key].sampling_logprobs == pytest.approx(alone.sampling_logprobs, abs=1e-5)
