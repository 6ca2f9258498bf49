"""The value readout of SAPO (arXiv 2608.19842), Eq. 1 and 2: V and Q out of two next-token logits.

A margin is z[w+] - z[w-]: the difference of the two value tokens' raw logits after a context, without the
sampling temperature. After the prompt it gives V, after the response Q.
"""

from __future__ import annotations

import torch


class _InwardClip(torch.autograd.Function):
    """clip(x, -1, 1) whose gradient passes inside, and outside only where descending it moves x inwards.

    The paper leaves open whether the gradient passes at the clip; this is our choice. With a plain clip a readout
    that has left the range can come back only by chance.
    """

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-1.0, 1.0)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        outwards = ((x > 1.0) & (gradient < 0.0)) | ((x < -1.0) & (gradient > 0.0))
        return gradient.masked_fill(outwards, 0.0)


def normalised_readout(margins: torch.Tensor, temperature: float) -> torch.Tensor:
    """p = clip(margin / tau_v, -1, 1): the value in units of r_max (Eq. 1).

    Args:
        margins: z[w+] - z[w-], any shape, float.
        temperature: tau_v > 0.

    Returns:
        p in [-1, 1], the shape of `margins`. Outside the range the gradient passes iff descending it moves the
        readout back inside (ours; the paper leaves it open).
    """
    return _InwardClip.apply(margins / temperature)


def readout(margins: torch.Tensor, r_max: float, temperature: float) -> torch.Tensor:
    """V or Q in reward units: r_max * p (Eq. 2). Shape of `margins`; bounded by r_max."""
    return r_max * normalised_readout(margins, temperature)


def saturated(margins: torch.Tensor, temperature: float) -> torch.Tensor:
    """True where the readout stands at -1 or 1, bool, the shape of `margins`."""
    return (margins.detach() / temperature).abs() >= 1.0
