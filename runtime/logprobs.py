"""Log-probabilities and entropies over the action vocabulary (SAPO, arXiv 2608.19842, Eq. 3), in chunks.

The action vocabulary W_act is the whole vocabulary without the two value tokens. Logits exist for one chunk of
positions at a time, in the forward and in the backward pass: nothing of size [positions, vocabulary] is kept.
"""

from __future__ import annotations

import torch

LOGIT_BUDGET = 2**24  # logits a chunk: 64 MiB in float32, twice that at a time; larger chunks are no faster


def chunk_size(vocabulary_size: int) -> int:
    """Positions a chunk, so that one chunk's logits stay within LOGIT_BUDGET."""
    return max(16, LOGIT_BUDGET // vocabulary_size)


def action_log_softmax(logits: torch.Tensor, banned: torch.Tensor, temperature: float) -> torch.Tensor:
    """log pi over W_act at the sampling temperature, float32 [n, V]; -inf at the banned ids (Eq. 3).

    Args:
        logits: raw next-token logits [n, V]; where they are float32, they are changed.
        banned: ids outside W_act (the two value tokens), int64 [2].
        temperature: the rollout's sampling temperature, > 0.
    """
    logits = logits.to(torch.float32).div_(temperature)
    return logits.index_fill_(1, banned, float("-inf")).log_softmax(dim=1)


def action_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    token_ids: torch.Tensor,
    banned: torch.Tensor,
    temperature: float,
    chunk: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of given tokens, and entropy of the distribution they came from.

    Args:
        hidden: hidden states at the predicting positions [N, D].
        weight: rows of the output embedding [V, D].
        token_ids: the tokens that followed, int64 [N], none of them banned.
        banned: ids outside W_act, int64 [2].
        temperature: sampling temperature, > 0.
        chunk: positions a chunk; None: as many as LOGIT_BUDGET allows.

    Returns:
        (logprobs [N], entropies [N]), float32. Gradients flow to `hidden` and `weight` (first order only).
    """
    return _ActionLogprobs.apply(hidden, weight, token_ids, banned, temperature, chunk or chunk_size(weight.shape[0]))


class _ActionLogprobs(torch.autograd.Function):
    """Forward and backward by chunks; the backward recomputes a chunk's logits.

    With p = softmax(z) over W_act and H its entropy: d logp_a / dz = onehot_a - p, dH / dz = -p (log p + H).
    """

    @staticmethod
    def forward(ctx, hidden, weight, token_ids, banned, temperature, chunk):
        logprobs = hidden.new_empty(hidden.shape[0], dtype=torch.float32)
        entropies = torch.empty_like(logprobs)
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            log_pi = action_log_softmax(hidden[part] @ weight.t(), banned, temperature)
            logprobs[part] = log_pi.gather(1, token_ids[part, None]).squeeze(1)
            entropies[part] = _entropy(log_pi, banned)
            del log_pi  # before the next chunk's logits come
        ctx.save_for_backward(hidden, weight, token_ids, banned, entropies)
        ctx.temperature, ctx.chunk = temperature, chunk
        return logprobs, entropies

    @staticmethod
    def backward(ctx, grad_logprobs, grad_entropies):
        hidden, weight, token_ids, banned, entropies = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for start in range(0, hidden.shape[0], ctx.chunk):
            part = slice(start, start + ctx.chunk)
            log_pi = action_log_softmax(hidden[part] @ weight.t(), banned, ctx.temperature)
            # in place from here on: one chunk's buffers are the peak of the whole pass
            pi, log_pi = log_pi.exp(), log_pi.index_fill_(1, banned, 0.0)  # 0 * -inf would be NaN
            log_pi.add_(entropies[part, None]).mul_(grad_entropies[part, None]).add_(grad_logprobs[part, None])
            grad_logits = pi.mul_(log_pi).neg_()
            grad_logits.scatter_add_(1, token_ids[part, None], grad_logprobs[part, None])
            grad_logits = grad_logits.div_(ctx.temperature).to(weight.dtype)
            grad_hidden[part] = grad_logits @ weight
            if grad_weight is not None:
                grad_weight.addmm_(grad_logits.t(), hidden[part])
            del log_pi, pi, grad_logits
        return grad_hidden, grad_weight, None, None, None, None


def _entropy(log_pi: torch.Tensor, banned: torch.Tensor) -> torch.Tensor:
    """Of each distribution [n]. Changes `log_pi` [n, V]: 0 at the banned ids, since 0 * -inf would be NaN."""
    pi = log_pi.exp()
    return -pi.mul_(log_pi.index_fill_(1, banned, 0.0)).sum(1)


def value_margins(hidden: torch.Tensor, weight: torch.Tensor, value_ids: torch.Tensor) -> torch.Tensor:
    """z[w+] - z[w-] at the given positions, float32 [K], without the sampling temperature (Eq. 1).

    Only two rows of the head are read: the K boundary positions cost no logits over the vocabulary.

    Args:
        hidden: hidden states at the boundaries [K, D].
        weight: rows of the output embedding [V, D].
        value_ids: ids of w+ and w-, int64 [2], in this order.
    """
    positive, negative = weight.index_select(0, value_ids).to(torch.float32)
    return hidden.to(torch.float32) @ (positive - negative)
