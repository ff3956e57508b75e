"""One timestep as one kernel after the product, where a GPU computes it without gradients.

Called from Python, a step takes as long as its launches: some 8 us each, and by torch's operations a BMRU has twelve,
an LRU twenty. torch compiles a few lines of CUDA to an elementwise kernel of its own (``torch.cuda.jiterator``), whose
launch takes no longer than that of an addition. A Triton kernel's takes eight times as long.

The lines below are the definitions once more: :func:`multistable.ops.reference.bmru_step`, bit for bit, and the steps
of ``LRU`` and ``MinGRU``, computed in float32 and rounded where their scans round.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from multistable.ops import reference
from multistable.ops.operators import intercepted, transformed

__all__ = ["CODE", "bmru_step", "is_one_kernel", "lru_step", "mingru_step"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

CODE = {
    "bmru": """
template <typename T> T bmru(T cand, T beta, T alpha, T h) {
    T distance = cand < T(0) ? T(-cand) : cand, width = beta < T(0) ? T(-beta) : beta;
    if (distance < width) return h;
    if (distance >= width) return cand < T(0) ? T(-alpha) : alpha;
    return T(cand + beta);  // one of them is NaN
}""",
    "lru": """
template <typename T> T lru(T log_nu, T log_theta, T log_gamma, T b, T real, T imag, T part) {
    T nu = T(::exp(float(log_nu))), radius = T(::exp(-float(nu))), theta = T(::exp(float(log_theta)));
    T cosine = T(::cos(float(theta))), sine = T(::sin(float(theta))), gamma = T(::exp(float(log_gamma)));
    float x = float(T(float(radius) * float(cosine))), y = float(T(float(radius) * float(sine)));
    float turned = part == T(0) ? x * float(real) - y * float(imag) : x * float(imag) + y * float(real);
    return T(turned + float(gamma) * float(b));
}""",
    "mingru": """
template <typename T> T mingru(T gate, T cand, T h) {
    T write = T(1.0f / (1.0f + ::exp(-float(gate)))), keep = T(1.0f / (1.0f + ::exp(float(gate))));
    return T(float(keep) * float(h) + float(T(float(write) * float(cand))));
}""",
}
"""A step of one unit. ``part`` is 0 for the real part of an LRU's state and 1 for the imaginary one."""


def is_one_kernel(*tensors: Tensor) -> bool:
    """Whether a step from these tensors is computed by one kernel: on the current GPU, in one dtype of at most 32 bits,
    without gradients or autocast, and nothing traces or intercepts operators."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return False
    x = tensors[0]
    if not x.is_cuda or x.dtype not in _DTYPES or x.numel() == 0 or x.get_device() != torch.cuda.current_device():
        return False
    if torch.is_autocast_enabled("cuda") or any(y.dtype != x.dtype for y in tensors):
        return False
    return not transformed() and not intercepted(*tensors)


def bmru_step(cand: Tensor, beta: Tensor, alpha: Tensor, h_prev: Tensor, *, alpha_surr: float = 1.0) -> Tensor:
    """One timestep of the BMRU: ``cand, beta, h_prev [..., N]``, ``alpha [N]`` -> ``h [..., N]`` in cand's dtype."""
    if is_one_kernel(cand, beta, alpha, h_prev):
        return _kernel("bmru")(cand, beta, alpha, h_prev)
    return reference.bmru_step(cand, beta, alpha, h_prev, alpha_surr=alpha_surr)


def lru_step(b: Tensor, h: Tensor, log_nu: Tensor, log_theta: Tensor, log_gamma: Tensor) -> Tensor:
    """``lambda * h + gamma * b`` of pairs ``[..., 2N]``, on which :func:`is_one_kernel` holds.

    The kernel has one output, so the two parts are an axis: real numbers and imaginary ones are each other's.
    """
    shape = (*b.shape[:-1], 2, b.shape[-1] // 2)
    h = h.reshape(shape)
    parts = _parts(b.dtype, b.device)
    return _kernel("lru")(log_nu, log_theta, log_gamma, b.reshape(shape), h[..., :1, :], h[..., 1:, :], parts).flatten(
        -2
    )


def mingru_step(gate: Tensor, cand: Tensor, h: Tensor) -> Tensor:
    """``sigmoid(-gate) * h + sigmoid(gate) * cand`` on which :func:`is_one_kernel` holds, ``[..., N]``."""
    return _kernel("mingru")(gate, cand, h)


@cache
def _kernel(name: str) -> Callable[..., Any]:
    jiterator: Any = torch.cuda.jiterator
    return jiterator._create_jit_fn(CODE[name])


@cache
def _parts(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor([[0], [1]], dtype=dtype, device=device)
