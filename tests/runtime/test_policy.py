"""The policy's forward: alignment, padding, chunks, splits. Model files are in test_model_files.py."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

import runtime.logprobs
from runtime.batches import PolicyOutput
from runtime.losses import finish_metrics, sapo_loss
from runtime.microbatches import count_rows, plan_microbatches, token_batch, train_batch
from runtime.records import Row
from tests.tiny_policies import NEGATIVE, POSITIVE, VOCABULARY, policy

COEFFICIENTS = dict(
    clip_low=0.2,
    clip_high=0.2,
    value_clip=0.2,
    q_clip=0.2,
    value_coef=0.5,
    q_coef=0.5,
    kl_coef=0.01,
    entropy_coef=0.01,
    value_temperature=4.0,
)
MODELS = [("qwen2", True), ("qwen2", False), ("llama", True), ("llama", False)]


def random_rows(num_rows: int, seed: int = 0, longest_prompt: int = 12) -> list[Row]:
    """Rows of one turn, with an occasional second turn after an observation token."""
    rng = random.Random(seed)
    rows = []
    for index in range(num_rows):
        prompt, first = rng.randint(1, longest_prompt), rng.randint(1, 6)
        spans = [(prompt, prompt + first)]
        if index % 3 == 2:
            spans.append((prompt + first + 2, prompt + first + 2 + rng.randint(1, 4)))
        ids = tuple(rng.randrange(VOCABULARY - 2) for _ in range(spans[-1][1]))
        rows.append(Row(key=f"task-{index}#0", turn_index=0, input_ids=ids, spans=tuple(spans)))
    return rows


def by_row(output: PolicyOutput, rows: list[Row]) -> list[PolicyOutput]:
    sizes, turns = [row.num_response_tokens for row in rows], [len(row.spans) for row in rows]
    parts = zip(*(x.split(n) for x, n in zip(output, (sizes, sizes, turns, turns), strict=True)), strict=True)
    return [PolicyOutput(*part) for part in parts]


@torch.no_grad()
def naive(model, row: Row, temperature: float) -> PolicyOutput:
    """One unpadded forward of the bare model for every position, on the prefix that it speaks of."""
    keep = [i for i in range(VOCABULARY) if i not in (POSITIVE, NEGATIVE)]

    def next_logits(length: int) -> torch.Tensor:
        return model.causal_lm(input_ids=torch.tensor([row.input_ids[:length]])).logits[0, -1].double()

    logprobs, entropies, value_margins, q_margins = [], [], [], []
    for start, end in row.spans:
        for t in range(start, end):
            log_pi = (next_logits(t)[keep] / temperature).log_softmax(0)
            logprobs.append(log_pi[keep.index(row.input_ids[t])])
            entropies.append(-(log_pi.exp() * log_pi).sum())
        for length, margins in ((start, value_margins), (end, q_margins)):
            logits = next_logits(length)
            margins.append(logits[POSITIVE] - logits[NEGATIVE])
    return PolicyOutput(*(torch.stack(x).float() for x in (logprobs, entropies, value_margins, q_margins)))


def close(got: PolicyOutput, expected: PolicyOutput, atol: float) -> None:
    for name, x, y in zip(PolicyOutput._fields, got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("family", "tied"), MODELS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_padded_batch_against_a_naive_loop_over_positions(family, tied, temperature):
    model = policy(family, tied, temperature=temperature)
    rows = random_rows(6)
    with torch.no_grad():
        parts = by_row(model(token_batch(rows)), rows)
    for row, part in zip(rows, parts, strict=True):
        close(part, naive(model, row, temperature), atol=5e-6)


def test_padding_and_batch_mates_do_not_matter():
    model = policy()
    rows = random_rows(5, seed=1)
    with torch.no_grad():
        alone = [model(token_batch([row])) for row in rows]
        together = by_row(model(token_batch(rows)), rows)
        longest = replace(rows[0], input_ids=(3,) * 60, spans=((59, 60),))
        padded = by_row(model(token_batch([longest, *rows], pad_id=11)), [longest, *rows])[1:]
    for one, two, three in zip(alone, together, padded, strict=True):
        close(two, one, atol=5e-6)
        close(three, one, atol=5e-6)


def with_targets(rows: list[Row], model, seed: int = 0) -> list[Row]:
    """Rows with old log-probs near the model's own, and random targets."""
    rng = random.Random(seed)
    with torch.no_grad():
        outputs = by_row(model(token_batch(rows)), rows)
    filled = []
    for row, out in zip(rows, outputs, strict=True):
        k = len(row.spans)
        draw = lambda n=k: tuple(rng.uniform(-1, 1) for _ in range(n))  # noqa: E731
        filled.append(
            replace(
                row,
                old_logprobs=tuple(x + rng.gauss(0, 0.2) for x in out.logprobs.tolist()),
                ref_logprobs=tuple(x + rng.gauss(0, 0.2) for x in out.logprobs.tolist()),
                advantages=draw(row.num_response_tokens),
                old_values=draw(),
                old_q_values=draw(),
                returns=draw(),
                q_targets=draw(),
            )
        )
    return filled


def gradient(model, microbatches: list[tuple[list[Row], float]], tokens: int, turns: int):
    model.zero_grad()
    total, sums = 0.0, {}
    for rows, weight in microbatches:
        batch = train_batch(rows, weight)
        loss, part = sapo_loss(model(batch.tokens), batch, num_tokens=tokens, num_turns=turns, **COEFFICIENTS)
        loss.backward()
        total += loss.item()
        sums = {name: sums.get(name, 0.0) + x for name, x in part.items()}
    return total, torch.cat([p.grad.flatten() for p in model.parameters()]), finish_metrics(sums)


@pytest.mark.parametrize(("family", "tied"), MODELS)
def test_chunks_do_not_change_loss_or_gradient(family, tied, monkeypatch):
    model = policy(family, tied)
    rows = with_targets(random_rows(7), model)
    tokens, turns = count_rows(rows)
    whole_loss, whole, _ = gradient(model, [(rows, 1.0)], tokens, turns)
    monkeypatch.setattr(runtime.logprobs, "chunk_size", lambda vocabulary_size: 4)
    loss, got, _ = gradient(model, [(rows, 1.0)], tokens, turns)
    assert loss == pytest.approx(whole_loss, abs=1e-6)
    torch.testing.assert_close(got, whole, rtol=0, atol=1e-6)
    assert whole.abs().max() > 0.05


@pytest.mark.parametrize(("budget", "num_ranks"), [(10_000, 1), (40, 1), (40, 2), (100, 3), (1, 1), (10_000, 17)])
def test_micro_batches_and_ranks_do_not_change_loss_gradient_or_metrics(budget, num_ranks):
    model = policy("llama", tied=False)
    rows = with_targets(random_rows(12, seed=2), model)
    tokens, turns = count_rows(rows)
    whole_loss, whole, whole_metrics = gradient(model, [(rows, 1.0)], tokens, turns)
    plan = plan_microbatches([len(row.input_ids) for row in rows], budget, num_ranks)
    dealt = [([rows[i] for i in one.rows], one.weight) for hand in plan for one in hand]
    assert num_ranks != 17 or sum(weight == 0.0 for _, weight in dealt) == 5
    loss, got, metrics = gradient(model, dealt, tokens, turns)
    assert loss == pytest.approx(whole_loss, abs=1e-6)
    torch.testing.assert_close(got, whole, rtol=0, atol=1e-6)
    for name, value in whole_metrics.items():
        assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_gradient_checkpointing_does_not_change_the_gradient():
    model = policy().train()
    rows = with_targets(random_rows(5), model)
    tokens, turns = count_rows(rows)
    _, whole, _ = gradient(model, [(rows, 1.0)], tokens, turns)
    model.causal_lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    _, got, _ = gradient(model, [(rows, 1.0)], tokens, turns)
    torch.testing.assert_close(got, whole, rtol=0, atol=1e-7)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_step_zero_has_ratio_one_and_no_kl(temperature):
    model = policy(temperature=temperature)
    plain = random_rows(8, seed=3)
    with torch.no_grad():  # scored in other batches than trained
        scored = [out for half in (plain[:3], plain[3:]) for out in by_row(model(token_batch(half)), half)]
    rows = [
        replace(row, old_logprobs=tuple(out.logprobs.tolist()), ref_logprobs=tuple(out.logprobs.tolist()))
        for row, out in zip(with_targets(plain, model), scored, strict=True)
    ]
    batch = train_batch(rows)
    tokens, turns = count_rows(rows)
    output = model(batch.tokens)
    assert (output.logprobs - batch.old_logprobs).exp().sub(1).abs().max() < 1e-5
    _, sums = sapo_loss(output, batch, num_tokens=tokens, num_turns=turns, **COEFFICIENTS)
    metrics = finish_metrics(sums)
    assert metrics["sapo/ratio"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["sapo/clip_fraction"] == 0.0
    assert abs(metrics["sapo/kl_ref"]) < 1e-9 and abs(metrics["sapo/approx_kl"]) < 1e-9


def test_rows_without_a_response_do_not_crash():
    model = policy()
    row = Row(key="task#0", turn_index=0, input_ids=(4, 5, 6), spans=())
    output = model(token_batch([row, row]))
    assert [tuple(x.shape) for x in output] == [(0,)] * 4
    sum(x.sum() for x in output).backward()
    assert all(torch.count_nonzero(p.grad) == 0 for p in model.parameters() if p.grad is not None)
    assert model.causal_lm.get_output_embeddings().weight.grad is not None  # every rank reduces the same parameters


def test_state_dict_names_are_those_of_the_model():
    from tests.tiny_policies import causal_lm

    for family, tied in MODELS:
        names = {f"causal_lm.{name}" for name in causal_lm(family, tied).state_dict()}
        model = policy(family, tied)
        assert set(model.state_dict()) == names
        shared = model.causal_lm.get_output_embeddings().weight is model.causal_lm.get_input_embeddings().weight
        assert shared == tied
