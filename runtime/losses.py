"""The joint loss of SAPO (arXiv 2608.19842), Eq. 8-12, and its metrics.

The functions above `sapo_loss` return one number per token or per turn; `sapo_loss` alone divides, by counts of
the global optimisation batch, so that the gradient does not depend on micro-batches or ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from runtime.value_readout import normalised_readout, saturated

if TYPE_CHECKING:
    from runtime.batches import PolicyOutput, TrainBatch

MAX_LOG_RATIO = 20.0  # exp(20) = 4.9e8: far beyond any clip range, and exp never overflows float32


def bounded_exp(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp(min(log_ratio, MAX_LOG_RATIO)): finite for any finite argument; no gradient beyond the bound."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def policy_loss(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, clip_low: float, clip_high: float
) -> torch.Tensor:
    """-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) per token [N] (Eq. 8, 9); advantages are per token."""
    ratio = bounded_exp(logprobs - old_logprobs)
    return -torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)


def readout_loss(p: torch.Tensor, old: torch.Tensor, target: torch.Tensor, clip: float) -> torch.Tensor:
    """1/2 max((p - y)^2, (p_clip - y)^2) per turn [K], p_clip = old + clip(p - old, -clip, clip) (Eq. 10, 11).

    All arguments in normalised space (units of r_max). The same function serves V and Q.
    """
    clipped = old + (p - old).clamp(-clip, clip)
    return 0.5 * torch.maximum((p - target).square(), (clipped - target).square())


def kl_k3(logprobs: torch.Tensor, other_logprobs: torch.Tensor) -> torch.Tensor:
    """k3 estimate of KL(pi || other) per token [N] for tokens of pi: exp(d) - d - 1, d = other - logprobs.

    Never negative. d is cut at MAX_LOG_RATIO from above (no gradient beyond); below it is exact.
    """
    difference = (other_logprobs - logprobs).clamp(max=MAX_LOG_RATIO)
    return difference.expm1() - difference


def sapo_loss(
    output: PolicyOutput,
    batch: TrainBatch,
    *,
    num_tokens: float,
    num_turns: float,
    clip_low: float,
    clip_high: float,
    value_clip: float,
    q_clip: float,
    value_coef: float,
    q_coef: float,
    kl_coef: float,
    entropy_coef: float,
    value_temperature: float,
    policy_coef: float = 1.0,
) -> tuple[torch.Tensor, dict[str, float]]:
    """One micro-batch's share of Eq. 12, and sums for the metrics.

        L = policy_coef (L_pol - c_H H) + c_V L_V + c_Q L_Q + beta KL(pi || pi_ref)

    Args:
        output: what the current policy says of the micro-batch.
        batch: the micro-batch; turns of weight 0 (dummies) enter no sum and no count. Without q_targets (an algorithm
            that does not train V and Q) the two value terms are left out.
        num_tokens, num_turns: response tokens and turns of the global optimisation batch (one optimizer step, all
            ranks, without dummies): the denominators.
        value_clip, q_clip: eps_V and eps_Q, normalised space. value_temperature: tau_v.
        policy_coef: 1 is Eq. 12; 0 trains V and Q (and the KL) only, for a value warm-up.

    Returns:
        (loss, sums): the losses of all micro-batches and ranks ADD UP to Eq. 12; the sums of all of them, added
        up by key, go through `finish_metrics`.

    Raises:
        ValueError: kl_coef is not 0 and the batch has no ref_logprobs.
    """
    if kl_coef != 0.0 and batch.ref_logprobs is None:
        raise ValueError("kl_coef is not 0 but the batch has no ref_logprobs: score the reference, or set kl_coef to 0")
    turn_weights, token_weights = batch.turn_weights.to(torch.float64), batch.token_weights.to(torch.float64)
    per_token = {
        "policy_loss": policy_loss(output.logprobs, batch.old_logprobs, batch.advantages, clip_low, clip_high),
        "entropy": output.entropies,
    }
    if batch.ref_logprobs is not None:
        per_token["kl_ref"] = kl_k3(output.logprobs, batch.ref_logprobs)
    sums = {name: (token_weights * x).sum() for name, x in per_token.items()}
    token_part = policy_coef * (sums["policy_loss"] - entropy_coef * sums["entropy"])
    if kl_coef != 0.0:
        token_part = token_part + kl_coef * sums["kl_ref"]
    loss = token_part / num_tokens
    readouts = {}
    if batch.q_targets is not None:
        v = normalised_readout(output.value_margins, value_temperature)
        q = normalised_readout(output.q_margins, value_temperature)
        sums["value_loss"] = (turn_weights * readout_loss(v, batch.old_values, batch.returns, value_clip)).sum()
        sums["q_loss"] = (turn_weights * readout_loss(q, batch.old_q_values, batch.q_targets, q_clip)).sum()
        loss = loss + (value_coef * sums["value_loss"] + q_coef * sums["q_loss"]) / num_turns
        readouts = {"v": (v, output.value_margins), "q": (q, output.q_margins)}
    with torch.no_grad():
        sums |= {"tokens": token_weights.sum(), "turns": turn_weights.sum()}
        sums |= _ratio_sums(output.logprobs - batch.old_logprobs, token_weights, clip_low, clip_high)
        for name, (p, margins) in readouts.items():
            sums |= moment_sums(name, p, batch.returns, turn_weights)
            sums[f"{name}_saturated"] = (turn_weights * saturated(margins, value_temperature)).sum()
        numbers = torch.stack([x.detach() for x in sums.values()]).tolist()  # one transfer from the device
    return loss.to(torch.float32), dict(zip(sums, numbers, strict=True))


def critic_loss(
    values: torch.Tensor, batch: TrainBatch, *, count: float, value_clip: float
) -> tuple[torch.Tensor, dict[str, float]]:
    """One micro-batch's share of a critic's loss: `readout_loss` of its values, per turn or per token; and sums.

    Args:
        values: what the critic says, in units of r_max: [N] where the batch has token_returns, else [K].
        count: response tokens or turns of the global optimisation batch: the denominator.
        value_clip: how far a value may move from the old one, units of r_max.

    Returns:
        (loss, sums): the losses of all micro-batches and ranks add up to the mean; the sums go, added up, through
        `finish_critic_metrics`.
    """
    by_token = batch.token_returns is not None
    old, returns = (batch.token_values, batch.token_returns) if by_token else (batch.old_values, batch.returns)
    weights = (batch.turn_weights[batch.tokens.token_turn] if by_token else batch.turn_weights).to(torch.float64)
    total = (weights * readout_loss(values, old, returns, value_clip)).sum()
    with torch.no_grad():
        sums = {"loss": total, "count": weights.sum(), **moment_sums("critic", values, returns, weights)}
        numbers = torch.stack([x.detach() for x in sums.values()]).tolist()
    return (total / count).to(torch.float32), dict(zip(sums, numbers, strict=True))


def finish_critic_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Mean loss and explained variance of a critic, out of the sums of `critic_loss`."""
    count = max(sums["count"], 1.0)
    explained, _ = agreement(*(sums[f"critic_{moment}"] / count for moment in ("p", "pp", "py", "y", "yy")))
    metrics = {"critic/loss": sums["loss"] / count}
    return metrics if explained is None else {**metrics, "critic/explained_variance": explained}


def _ratio_sums(
    log_ratio: torch.Tensor, weights: torch.Tensor, clip_low: float, clip_high: float
) -> dict[str, torch.Tensor]:
    ratio = bounded_exp(log_ratio)
    outside = (ratio < 1.0 - clip_low) | (ratio > 1.0 + clip_high)
    return {
        # tokens came from the old policy, so the k3 estimate is of KL(old || current)
        "approx_kl": (weights * kl_k3(torch.zeros_like(log_ratio), log_ratio)).sum(),
        "clip_fraction": (weights * outside).sum(),
        "ratio": (weights * ratio).sum(),
    }


def moment_sums(name: str, p: torch.Tensor, returns: torch.Tensor, weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Sums from which `finish_metrics` makes explained variance and correlation of predictions p [K]."""
    p, y = p.to(torch.float64), returns.to(torch.float64)
    moments = {"p": p, "pp": p * p, "py": p * y, "y": y, "yy": y * y}
    return {f"{name}_{moment}": (weights * x).sum() for moment, x in moments.items()}


def finish_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Canonical metrics out of the sums of `sapo_loss`, added up over micro-batches and ranks.

    A mean is over all tokens or turns that were summed (over several optimizer steps: each turn as often as it
    was trained). Explained variance and correlation are against the lambda-returns; they are left out where the
    returns, or the readouts, have no variance.
    """
    tokens, turns = max(sums["tokens"], 1.0), max(sums["turns"], 1.0)
    metrics = {
        f"sapo/{name}": sums[name] / tokens
        for name in ("policy_loss", "entropy", "kl_ref", "approx_kl", "clip_fraction", "ratio")
        if name in sums
    }
    metrics |= {f"sapo/{name}": sums[name] / turns for name in ("value_loss", "q_loss") if name in sums}
    for name in ("v", "q"):
        if f"{name}_p" not in sums:
            continue
        metrics[f"sapo/saturated_{name}"] = sums[f"{name}_saturated"] / turns
        moments = (sums[f"{name}_{moment}"] / turns for moment in ("p", "pp", "py", "y", "yy"))
        explained, correlation = agreement(*moments)
        if explained is not None:
            metrics[f"sapo/explained_variance_{name}"] = explained
        if correlation is not None:
            metrics[f"sapo/correlation_{name}"] = correlation
    return metrics


def agreement(p: float, pp: float, py: float, y: float, yy: float) -> tuple[float | None, float | None]:
    """Explained variance 1 - Var(y - p) / Var(y), and Pearson's correlation, of predictions p of y.

    Args:
        p, pp, py, y, yy: means of p, p^2, p*y, y and y^2.

    Returns:
        (explained variance, correlation); None for what has no variance to divide by.
    """
    var_p, var_y, covariance = pp - p * p, yy - y * y, py - p * y
    if var_y <= 1e-12 * max(yy, 1e-12):
        return None, None
    explained = 1.0 - (var_p + var_y - 2.0 * covariance) / var_y
    if var_p <= 1e-12 * max(pp, 1e-12):
        return explained, None
    return explained, covariance / math.sqrt(var_p * var_y)
