"""One timestep as one kernel after the product, where a GPU computes it without gradients.

Called from Python, a step takes as long as its launches: some 8 us each, and by torch's operations a BMRU has twelve,
an LRU twenty. torch compiles a few lines of CUDA to an elementwise kernel of its own (``torch.cuda.jiterator``), whose
launch takes no longer than that of an addition. A scan over one step took longer than all of them, by what prepares it.

The lines below are the definitions once more: :func:`multistable.ops.reference.bmru_step`, bit for bit, and the steps
of ``LRU`` and ``MinGRU``. ``T`` is float32 for numbers of 16 bits, too: only the result is rounded to them.
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
    T radius = ::exp(-::exp(log_nu)), theta = ::exp(log_theta);
    T x = radius * ::cos(theta), y = radius * ::sin(theta);
    T turned = part == T(0) ? x * real - y * imag : x * imag + y * real;
    return turned + ::exp(log_gamma) * b;
}""",
    "mingru": """
template <typename T> T mingru(T gate, T cand, T h) {
    return h / (T(1) + ::exp(gate)) + cand / (T(1) + ::exp(-gate));
}""",
}
"""A step of one unit; ``part`` is 0 for the real part of an LRU's state and 1 for the imaginary one."""


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
    """``lambda * h + gamma * b`` of pairs ``[..., 2N]`` of float32, on which :func:`is_one_kernel` holds.

    Not of 16 bits: a scan rounds lambda to them, by up to 0.016, and after 1,000 steps the states would differ by a
    tenth or more. The kernel has one output, so real and imaginary parts are an axis.
    """
    shape = (*b.shape[:-1], 2, b.shape[-1] // 2)
    b, h, parts = b.reshape(shape), h.reshape(shape), _parts(b.dtype, b.device)
    pairs: Tensor = _kernel("lru")(log_nu, log_theta, log_gamma, b, h[..., :1, :], h[..., 1:, :], parts)
    return pairs.flatten(-2)


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
