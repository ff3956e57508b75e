"""Independent versions of the scans, so that an error in the reference shows.

``bmru_formulas`` and ``latch_formulas`` are the formulas of the gradients in numpy, step by step::

    G_t      = g_t + (1 - write_{t+1}) (1 - reset_{t+1}) G_{t+1}       G_T includes the gradient of the last state
    dwrite_t = G_t (value_t - h_prev_t)                                h_prev after the reset
    dh0      = (1 - write_1) (1 - reset_1) G_1

``bmru_paper`` is the paper's equations with products, differentiated by autograd. The surrogate is added as its
primitive minus the primitive's own value, which changes the gradient only.
"""

import numpy as np
import torch
from torch import Tensor

from multistable.surrogate import primitive

__all__ = ["bmru_formulas", "bmru_paper", "latch_formulas", "linear_formula"]

Arrays = dict[str, np.ndarray]


def latch_formulas(write, value, h0, reset, grad_h, grad_last) -> tuple[np.ndarray, np.ndarray, Arrays]:
    """States ``h``, total gradients ``G``, and gradients of write, value and h0, as float64 arrays."""
    T = value.shape[1]
    h, h_prev, total = np.empty_like(value), np.empty_like(value), np.empty_like(value)
    state = h0
    for t in range(T):
        h_prev[:, t] = np.where(reset[:, t, None], 0, state)
        state = h[:, t] = np.where(write[:, t], value[:, t], h_prev[:, t])
    later = grad_last
    for t in reversed(range(T)):
        total[:, t] = grad_h[:, t] + later
        later = (1 - write[:, t]) * (1 - reset[:, t, None]) * total[:, t]
    return h, total, {"write": total * (value - h_prev), "value": write * total, "h0": later}


def bmru_formulas(cand, beta, alpha, h0, reset, grad_h, grad_last, alpha_surr) -> tuple[np.ndarray, Arrays]:
    """States and the gradients of cand, beta, alpha and h0."""
    surrogate = lambda x: 1 / (1 + (alpha_surr * np.pi * x) ** 2)  # noqa: E731
    side = np.where(cand >= 0, 1.0, -1.0)
    distance = np.abs(cand) - np.abs(beta)
    h, _, grads = latch_formulas((distance >= 0) * 1.0, alpha * side, h0, reset, grad_h, grad_last)
    through_gate = grads["write"] * surrogate(distance)
    return h, {
        "cand": through_gate * np.sign(cand) + grads["value"] * alpha * 2 * surrogate(cand),
        "beta": -through_gate * np.sign(beta),
        "alpha": (grads["value"] * side).sum(axis=(0, 1)),
        "h0": grads["h0"],
    }


def bmru_paper(cand: Tensor, beta: Tensor, alpha: Tensor, h0: Tensor, reset: Tensor, alpha_surr: float) -> Tensor:
    """``h_t = z_t S(cand_t) alpha + (1 - z_t) h_{t-1}``."""
    h, hs = h0, []
    for c, b, r in zip(cand.unbind(1), beta.unbind(1), reset.unbind(1), strict=True):
        distance = c.abs() - b.abs()
        z = (distance >= 0).to(c.dtype) + _gradient_only(primitive(distance, alpha_surr))
        side = 2 * (c >= 0).to(c.dtype) - 1 + 2 * _gradient_only(primitive(c, alpha_surr))
        h = h * (~r[:, None]).to(c.dtype)
        h = z * side * alpha + (1 - z) * h
        hs.append(h)
    return torch.stack(hs, dim=1)


def linear_formula(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """``h_t = (a_1 ... a_t) h0 + sum_s (a_{s+1} ... a_t) b_s``, without a recurrence and without resets."""
    a = a.expand_as(b)
    hs = []
    for t in range(b.shape[1]):
        terms = [a[:, s + 1 : t + 1].prod(dim=1) * b[:, s] for s in range(t + 1)]
        hs.append(a[:, : t + 1].prod(dim=1) * h0 + torch.stack(terms).sum(dim=0))
    return torch.stack(hs, dim=1)


def _gradient_only(x: Tensor) -> Tensor:
    return x - x.detach()
