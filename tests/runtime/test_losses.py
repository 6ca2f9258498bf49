from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from runtime.batches import PolicyOutput
from runtime.losses import agreement, bounded_exp, finish_metrics, kl_k3, policy_loss, readout_loss, sapo_loss
from runtime.microbatches import count_rows, train_batch
from runtime.records import Row

COEFFICIENTS = dict(
    clip_low=0.2,
    clip_high=0.3,
    value_clip=0.2,
    q_clip=0.1,
    value_coef=0.5,
    q_coef=0.25,
    kl_coef=0.01,
    entropy_coef=0.02,
    value_temperature=1.0,
)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_policy_loss_worked_by_hand():
    # clip range [0.8, 1.3]; ratio 2, A 1: min(2, 1.3) = 1.3; ratio 2, A -1: min(-2, -1.3) = -2
    # ratio 0.5, A 1: min(.5, .8) = .5; ratio 0.5, A -1: min(-.5, -.8) = -.8; ratio 1.1, A 3: 3.3
    ratios, advantages = tensor(2, 2, 0.5, 0.5, 1.1), tensor(1, -1, 1, -1, 3)
    old = tensor(-1, -2, -3, -4, -5)
    got = policy_loss(old + ratios.log(), old, advantages, 0.2, 0.3)
    torch.testing.assert_close(got, tensor(-1.3, 2.0, -0.5, 0.8, -3.3), rtol=0, atol=2e-6)


def test_policy_gradient_stops_where_the_clip_holds():
    logprobs = tensor(2, 2, 0.5, 0.5).log().requires_grad_()
    policy_loss(logprobs, tensor(0, 0, 0, 0), tensor(1, -1, 1, -1), 0.2, 0.3).sum().backward()
    # d(-rho A)/dlogp = -rho A where it is not clipped
    torch.testing.assert_close(logprobs.grad, tensor(0, 2, -0.5, 0), rtol=0, atol=1e-6)


def test_readout_loss_worked_by_hand():
    # clip 0.2. p .5, old .1, y .9: p_clip .3; max(.16, .36) = .36 -> .18
    # p .5, old .1, y 0: max(.25, .09) = .25 -> .125;  p .15, old .1, y 1: p_clip = p; .7225 -> .36125
    # p -.5, old .1, y -.9: p_clip -.1; max(.16, .64) = .64 -> .32
    got = readout_loss(tensor(0.5, 0.5, 0.15, -0.5), tensor(0.1, 0.1, 0.1, 0.1), tensor(0.9, 0, 1, -0.9), 0.2)
    torch.testing.assert_close(got, tensor(0.18, 0.125, 0.36125, 0.32), rtol=0, atol=1e-6)


def test_kl_worked_by_hand():
    # d = ln 2: 2 - ln 2 - 1 = 0.306853; d = -ln 2: .5 + ln 2 - 1 = 0.193147; d = 0: 0
    current = tensor(-1, -1, -1)
    got = kl_k3(current, current + tensor(math.log(2), -math.log(2), 0))
    torch.testing.assert_close(got, tensor(0.306853, 0.193147, 0), rtol=0, atol=1e-6)


def test_k3_is_unbiased_for_kl():
    # sum over the whole vocabulary of pi * k3 is KL(pi || ref) exactly
    torch.manual_seed(0)
    pi, ref = torch.randn(2, 50, dtype=torch.float64).log_softmax(1)
    exact = (pi.exp() * (pi - ref)).sum().item()
    assert (pi.exp() * kl_k3(pi, ref)).sum().item() == pytest.approx(exact, abs=1e-12)


def test_k3_keeps_its_digits_near_zero():
    # d = 1e-3: d^2 / 2 + d^3 / 6 = 5.0016667e-7; exp(d) - 1 - d in float32 would be off by percents
    got = kl_k3(torch.zeros(1), tensor(1e-3)).item()
    assert got == pytest.approx(5.0016667e-7, rel=1e-3)


@pytest.mark.parametrize("log_ratio", [-200.0, -20.0, 0.0, 20.0, 200.0])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_huge_log_ratios_stay_finite(log_ratio, advantage):
    logprobs = tensor(log_ratio).requires_grad_()
    loss = policy_loss(logprobs, tensor(0), tensor(advantage), 0.2, 0.2) + kl_k3(logprobs, tensor(0))
    loss = loss + kl_k3(tensor(0), logprobs)
    loss.sum().backward()
    assert torch.isfinite(loss).all() and torch.isfinite(logprobs.grad).all()
    assert torch.isfinite(bounded_exp(logprobs)).all()


def random_rows(num_rows: int, seed: int, reference: bool = True) -> list[Row]:
    rng = random.Random(seed)
    rows = []
    for index in range(num_rows):
        prompt, response = rng.randint(1, 6), rng.randint(1, 5)
        draw = lambda n, low, high: tuple(rng.uniform(low, high) for _ in range(n))  # noqa: E731
        rows.append(
            Row(
                key=f"task-{index}#0",
                turn_index=0,
                input_ids=tuple(rng.randint(2, 30) for _ in range(prompt + response)),
                spans=((prompt, prompt + response),),
                old_logprobs=draw(response, -3, 0),
                ref_logprobs=draw(response, -3, 0) if reference else None,
                advantages=draw(1, -2, 2) * response,
                old_values=draw(1, -0.9, 0.9),
                old_q_values=draw(1, -0.9, 0.9),
                returns=draw(1, -1, 1),
                q_targets=draw(1, -1, 1),
            )
        )
    return rows


def random_output(rows: list[Row], seed: int) -> dict[str, PolicyOutput]:
    """What a policy would say of each row, by its key; a share of the margins is beyond the clip range."""
    torch.manual_seed(seed)
    return {
        row.key: PolicyOutput(
            torch.tensor(row.old_logprobs) + 0.3 * torch.randn(row.num_response_tokens),
            torch.rand(row.num_response_tokens),
            1.2 * torch.randn(1),
            1.2 * torch.randn(1),
        )
        for row in rows
    }


def joined(outputs: dict[str, PolicyOutput], rows: list[Row]) -> PolicyOutput:
    return PolicyOutput(*(torch.cat(parts) for parts in zip(*(outputs[row.key] for row in rows), strict=True)))


def naive_loss(rows: list[Row], outputs: dict[str, PolicyOutput], c: dict) -> dict[str, float]:
    """Eq. 8-12 with plain Python numbers, one token and one turn at a time."""
    policy, entropy, kl, value, q_loss, tokens = 0.0, 0.0, 0.0, 0.0, 0.0, 0
    for row in rows:
        out = outputs[row.key]
        for j in range(row.num_response_tokens):
            rho = math.exp(out.logprobs[j].item() - row.old_logprobs[j])
            clipped = min(max(rho, 1 - c["clip_low"]), 1 + c["clip_high"])
            policy -= min(rho * row.advantages[0], clipped * row.advantages[0])
            d = row.ref_logprobs[j] - out.logprobs[j].item()
            kl += math.exp(d) - d - 1
            entropy += out.entropies[j].item()
            tokens += 1
        for margin, old, target, clip in (
            (out.value_margins, row.old_values[0], row.returns[0], c["value_clip"]),
            (out.q_margins, row.old_q_values[0], row.q_targets[0], c["q_clip"]),
        ):
            p = min(max(margin.item() / c["value_temperature"], -1), 1)
            p_clip = old + min(max(p - old, -clip), clip)
            loss = 0.5 * max((p - target) ** 2, (p_clip - target) ** 2)
            if margin is out.value_margins:
                value += loss
            else:
                q_loss += loss
    parts = dict(
        policy_loss=policy / tokens,
        entropy=entropy / tokens,
        kl_ref=kl / tokens,
        value_loss=value / len(rows),
        q_loss=q_loss / len(rows),
    )
    parts["loss"] = (
        parts["policy_loss"]
        - c["entropy_coef"] * parts["entropy"]
        + c["kl_coef"] * parts["kl_ref"]
        + c["value_coef"] * parts["value_loss"]
        + c["q_coef"] * parts["q_loss"]
    )
    return parts


def test_the_joint_loss_and_its_metrics_against_a_naive_loop():
    rows = random_rows(40, seed=3)
    outputs = random_output(rows, seed=4)
    tokens, turns = count_rows(rows)
    output, batch = joined(outputs, rows), train_batch(rows)
    loss, sums = sapo_loss(output, batch, num_tokens=tokens, num_turns=turns, **COEFFICIENTS)
    expected = naive_loss(rows, outputs, COEFFICIENTS)
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-6)
    metrics = finish_metrics(sums)
    for name in ("policy_loss", "entropy", "kl_ref", "value_loss", "q_loss"):
        assert metrics[f"sapo/{name}"] == pytest.approx(expected[name], abs=1e-6), name
    p = [min(max(outputs[row.key].value_margins.item(), -1), 1) for row in rows]
    q = [min(max(outputs[row.key].q_margins.item(), -1), 1) for row in rows]
    y = torch.tensor([row.returns[0] for row in rows], dtype=torch.float64)
    for name, x in (("v", torch.tensor(p, dtype=torch.float64)), ("q", torch.tensor(q, dtype=torch.float64))):
        explained = 1 - ((y - x).var() / y.var()).item()
        assert metrics[f"sapo/explained_variance_{name}"] == pytest.approx(explained, abs=1e-6)
        correlation = torch.corrcoef(torch.stack((x, y)))[0, 1].item()
        assert metrics[f"sapo/correlation_{name}"] == pytest.approx(correlation, abs=1e-6)
    assert metrics["sapo/saturated_v"] == pytest.approx(sum(abs(x) == 1 for x in p) / 40, abs=1e-9)
    assert 0 < metrics["sapo/saturated_v"] < 1  # or the case would not test the readout's clip
    ratio = (output.logprobs - batch.old_logprobs).double().exp()
    assert metrics["sapo/ratio"] == pytest.approx(ratio.mean().item(), abs=1e-6)
    outside = ((ratio < 0.8) | (ratio > 1.3)).double().mean().item()
    assert 0 < outside < 1 and metrics["sapo/clip_fraction"] == pytest.approx(outside, abs=1e-9)
    assert metrics["sapo/approx_kl"] == pytest.approx((ratio - 1 - ratio.log()).mean().item(), abs=1e-6)


def gradient(outputs, groups, weights, tokens, turns, **changes):
    """Gradient of the summed losses of groups of rows w.r.t. every row's outputs, and the summed sums."""
    leaves = {key: PolicyOutput(*(x.clone().requires_grad_() for x in out)) for key, out in outputs.items()}
    total, sums = 0.0, {}
    for rows, weight in zip(groups, weights, strict=True):
        loss, part = sapo_loss(
            joined(leaves, rows),
            train_batch(rows, weight),
            num_tokens=tokens,
            num_turns=turns,
            **COEFFICIENTS | changes,
        )
        loss.backward()
        total += loss.item()
        sums = {name: sums.get(name, 0.0) + x for name, x in part.items()}
    return total, torch.cat([x.grad for key in sorted(leaves) for x in leaves[key]]), sums


def test_loss_gradient_and_metrics_do_not_depend_on_the_split_or_on_dummies():
    rows = random_rows(30, seed=5)
    outputs = random_output(rows, seed=6)
    tokens, turns = count_rows(rows)
    whole_loss, whole, whole_sums = gradient(outputs, [rows], [1.0], tokens, turns)
    splits = [
        ([[row] for row in rows], [1.0] * 30),
        ([rows[:1], rows[1:7], rows[7:], rows[3:5], rows[:1]], [1.0, 1.0, 1.0, 0.0, 0.0]),  # the last two are dummies
        ([rows[::2], rows[1::2], rows], [1.0, 1.0, 0.0]),
    ]
    for groups, weights in splits:
        loss, got, sums = gradient(outputs, groups, weights, tokens, turns)
        assert loss == pytest.approx(whole_loss, abs=1e-6)
        torch.testing.assert_close(got, whole, rtol=0, atol=1e-7)
        metrics, expected = finish_metrics(sums), finish_metrics(whole_sums)
        assert metrics.keys() == expected.keys()
        for name, value in expected.items():
            assert metrics[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_a_long_response_does_not_weigh_more_in_the_turn_losses():
    rows = random_rows(2, seed=7)
    stretched = replace(
        rows[0],
        input_ids=rows[0].input_ids + (5,) * 9,
        spans=((rows[0].spans[0][0], rows[0].spans[0][1] + 9),),
        old_logprobs=rows[0].old_logprobs + (-1.0,) * 9,
        ref_logprobs=rows[0].ref_logprobs + (-1.0,) * 9,
        advantages=rows[0].advantages + (1.0,) * 9,
    )
    losses = []
    for case in (rows, [stretched, rows[1]]):
        out = random_output(case, seed=8)
        out = {k: o._replace(value_margins=torch.tensor([0.3]), q_margins=torch.tensor([0.1])) for k, o in out.items()}
        tokens, turns = count_rows(case)
        _, sums = sapo_loss(joined(out, case), train_batch(case), num_tokens=tokens, num_turns=turns, **COEFFICIENTS)
        losses.append((sums["value_loss"], sums["q_loss"], sums["turns"]))
    assert losses[0] == losses[1]


def test_value_warm_up_leaves_the_policy_gradient_out_and_keeps_the_kl():
    rows = random_rows(10, seed=9)
    outputs = random_output(rows, seed=10)
    tokens, turns = count_rows(rows)
    _, sums = sapo_loss(joined(outputs, rows), train_batch(rows), num_tokens=tokens, num_turns=turns, **COEFFICIENTS)
    loss, warm, _ = gradient(outputs, [rows], [1.0], tokens, turns, policy_coef=0.0)
    expected = naive_loss(rows, outputs, COEFFICIENTS | {"entropy_coef": 0.0})
    assert loss == pytest.approx(expected["loss"] - expected["policy_loss"], abs=1e-6)
    _, without, _ = gradient(outputs, [rows], [1.0], tokens, turns, policy_coef=0.0, kl_coef=0.0)
    num_margins = 2
    sizes = [row.num_response_tokens for row in sorted(rows, key=lambda row: row.key)]
    at = 0
    for size in sizes:  # logprobs, entropies, V, Q of each row
        assert torch.count_nonzero(without[at : at + 2 * size]) == 0
        assert torch.count_nonzero(warm[at : at + size]) == size
        at += 2 * size + num_margins
    assert sums["policy_loss"] != 0.0


def test_kl_without_reference_is_refused_and_no_kl_needs_none():
    rows = random_rows(3, seed=11, reference=False)
    outputs = random_output(rows, seed=12)
    with pytest.raises(ValueError, match="ref_logprobs"):
        sapo_loss(joined(outputs, rows), train_batch(rows), num_tokens=1, num_turns=1, **COEFFICIENTS)
    _, sums = sapo_loss(
        joined(outputs, rows), train_batch(rows), num_tokens=1, num_turns=1, **COEFFICIENTS | {"kl_coef": 0.0}
    )
    assert "sapo/kl_ref" not in finish_metrics(sums)


def test_a_batch_of_dummies_alone_gives_zero_loss_and_finite_metrics():
    rows = random_rows(3, seed=13)
    outputs = random_output(rows, seed=14)
    loss, got, sums = gradient(outputs, [rows], [0.0], 100, 10)
    assert loss == 0.0 and torch.count_nonzero(got) == 0
    assert set(sums.values()) == {0.0}
    assert all(math.isfinite(x) for x in finish_metrics(sums).values())


def test_agreement_of_a_perfect_a_constant_and_an_opposite_prediction():
    def of(p, y):
        mean = lambda x: sum(x) / len(x)  # noqa: E731
        products = [a * b for a, b in zip(p, y, strict=True)]
        return agreement(mean(p), mean([a * a for a in p]), mean(products), mean(y), mean([b * b for b in y]))

    assert of([1, 2, 4], [1, 2, 4]) == (pytest.approx(1), pytest.approx(1))
    assert of([5, 5, 5], [1, 2, 4]) == (pytest.approx(0), None)
    # Var(y - p) with p = -y is 4 Var(y): 1 - 4 = -3
    assert of([-1, -2, -4], [1, 2, 4]) == (pytest.approx(-3), pytest.approx(-1))
    assert of([1, 2, 3], [2, 2, 2]) == (None, None)
