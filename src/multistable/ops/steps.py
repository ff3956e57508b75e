"""One timestep as one kernel after the product, where a GPU computes it without gradients.

Called from Python, a step takes as long as its launches: some 8 us each, and by torch's operations a BMRU has twelve,
an LRU twenty. torch compiles a few lines of CUDA to an elementwise kernel of its own (``torch.cuda.jiterator``), whose
launch takes no longer than that of an addition. A scan over one step took longer than all of them, by what prepares it.

The code below repeats the definitions: :func:`multistable.ops.reference.bmru_step`, bit for bit, and the steps of
``LRU`` and ``MinGRU``. ``T`` is the type of the arithmetic, float32 for numbers of 16 bits; the result is rounded to 16
bits at the end. In an LRU the intermediate results that lead to lambda are rounded too, as torch's operations round
them, so that lambda has the same bits as in a scan. Unrounded it would differ by up to 0.016, and after 1,000 steps the
states by a tenth or more.

Each kernel writes its result twice, features and state. A copy would be another launch.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from multistable.ops import reference
from multistable.ops.operators import intercepted, transformed

__all__ = ["bmru_step", "code", "is_one_kernel", "launch_bmru", "launch_hybrid", "launch_lru", "launch_mingru"]

_torch: Any = torch  # private and untyped names
_STORED = {torch.float32: "float", torch.bfloat16: "at::BFloat16", torch.float16: "at::Half"}
"""The dtypes, as torch calls them in the code that it compiles."""
_BMRU = """
template <typename T> void bmru(T cand, T beta, T alpha, T h, T& y, T& state) {
    T distance = cand < T(0) ? T(-cand) : cand, width = beta < T(0) ? T(-beta) : beta;
    T value = cand < T(0) ? T(-alpha) : alpha;
    y = state = distance < width ? h : distance >= width ? value : T(cand + beta);  // one of them is NaN
}"""
_CODE = {
    "bmru": _BMRU,
    "lru": """
template <typename T>
void lru(T log_nu, T log_theta, T log_gamma, T b, T real, T imag, T part, T& y, T& state) {
    using S = STORED;
    T radius = S(::exp(-T(S(::exp(log_nu))))), theta = S(::exp(log_theta)), gamma = S(::exp(log_gamma));
    T u = S(radius * T(S(::cos(theta)))), v = S(radius * T(S(::sin(theta))));
    T turned = part == T(0) ? u * real - v * imag : u * imag + v * real;
    y = state = turned + gamma * b;
}""",
    "mingru": """
template <typename T> void mingru(T gate, T cand, T h, T& y, T& state) {
    y = state = h / (T(1) + ::exp(gate)) + cand / (T(1) + ::exp(-gate));
}""",
    "hybrid": _BMRU
    + """
template <typename T> void hybrid(T cand, T beta, T alpha, T h, T linear, T part, T& y, T& state) {
    bmru<T>(cand, beta, alpha, h, y, state);
    if (part != T(0)) y = state = linear;
}""",
}
"""A step of one unit. ``part`` is 0 for the real part of an LRU's state and 1 for the imaginary one, or 0 for the BMRU
of a hybrid and 1 for its LRU, whose state ``linear`` is computed before."""


def code(name: str, dtype: torch.dtype) -> str:
    """The lines of CUDA for a step of tensors of this dtype."""
    return _CODE[name].replace("STORED", _STORED[dtype])


def is_one_kernel(x: Tensor, *others: Tensor) -> bool:
    """Whether a step from these tensors is computed by one kernel: on the current GPU, in one dtype of at most 32 bits,
    without gradients or autocast, and nothing traces or intercepts operators."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or not x.is_cuda:
        return False
    dtype = x.dtype
    if dtype not in _STORED or x.numel() == 0 or x.get_device() != _torch._C._cuda_getDevice():
        return False
    for y in others:
        if y.dtype != dtype:
            return False
    return not (torch.is_autocast_enabled("cuda") or transformed() or intercepted(x, *others))


def bmru_step(cand: Tensor, beta: Tensor, alpha: Tensor, h_prev: Tensor, *, alpha_surr: float = 1.0) -> Tensor:
    """One timestep of the BMRU: ``cand, beta, h_prev [..., N]``, ``alpha [N]`` -> ``h [..., N]`` in cand's dtype."""
    if is_one_kernel(cand, beta, alpha, h_prev):
        return _kernel("bmru", cand.dtype)(cand, beta, alpha, h_prev)[0]
    return reference.bmru_step(cand, beta, alpha, h_prev, alpha_surr=alpha_surr)


# The functions below need tensors on which :func:`is_one_kernel` holds, and return features and state.


def launch_bmru(proj: Tensor, alpha: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """A step of a BMRU: ``proj [..., 2N]``, candidates and thresholds, ``h [..., N]``."""
    cand, beta = proj.chunk(2, -1)
    return _kernel("bmru", proj.dtype)(cand, beta, alpha, h)


def launch_mingru(proj: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """``sigmoid(-gate) * h + sigmoid(gate) * cand``: ``proj [..., 2N]``, gates and candidates, ``h [..., N]``."""
    gate, cand = proj.chunk(2, -1)
    return _kernel("mingru", proj.dtype)(gate, cand, h)


def launch_lru(b: Tensor, h: Tensor, log_nu: Tensor, log_theta: Tensor, log_gamma: Tensor) -> tuple[Tensor, Tensor]:
    """``lambda * h + gamma * b`` of pairs ``[..., 2N]``. Real and imaginary parts are an axis: the kernel's outputs are
    equal."""
    shape, pairs = b.shape, (*b.shape[:-1], 2, b.shape[-1] // 2)
    real, imag = h.reshape(pairs).chunk(2, -2)
    parts = _parts(b.dtype, b.device)
    y, state = _kernel("lru", b.dtype)(log_nu, log_theta, log_gamma, b.reshape(pairs), real, imag, parts)
    return y.reshape(shape), state.reshape(shape)


def launch_hybrid(proj: Tensor, alpha: Tensor, b: Tensor, polar: list[Tensor], h: Tensor) -> tuple[Tensor, Tensor]:
    """Steps of a BMRU and an LRU: ``proj [..., 2N]``, ``b [..., 2M]``, ``h [..., N + 2M]``, ``polar`` as for an LRU.

    If both have the same width, as by default, the second kernel writes both parts side by side.
    """
    shape, N, parts = h.shape, len(alpha), _parts(b.dtype, b.device)
    if b.shape[-1] != N:
        h_bmru, h_lru = h.split_with_sizes((N, b.shape[-1]), -1)
        both = launch_bmru(proj, alpha, h_bmru)[0], launch_lru(b, h_lru, *polar)[0]
        return torch.cat(both, -1), torch.cat(both, -1)
    pairs, row, rows = (*shape[:-1], 2, N // 2), (*shape[:-1], 1, N), (*shape[:-1], 2, N)
    h_bmru, real, imag = h.reshape(*shape[:-1], 4, N // 2).split_with_sizes((2, 1, 1), -2)
    linear, _ = _kernel("lru", b.dtype)(*polar, b.reshape(pairs), real, imag, parts)
    cand, beta = proj.reshape(rows).chunk(2, -2)
    y, state = _kernel("hybrid", b.dtype)(cand, beta, alpha, h_bmru.reshape(row), linear.reshape(row), parts)
    return y.reshape(shape), state.reshape(shape)


@cache
def _kernel(name: str, dtype: torch.dtype) -> Callable[..., tuple[Tensor, Tensor]]:
    jiterator: Any = torch.cuda.jiterator
    return jiterator._create_multi_output_jit_fn(code(name, dtype), num_outputs=2)


@cache
def _parts(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor([[0], [1]], dtype=dtype, device=device)
