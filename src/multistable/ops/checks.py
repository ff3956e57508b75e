"""Validate arguments. Errors name the argument, what was expected and what came."""

import math
from numbers import Real

import torch
from torch import Tensor

from multistable.ops.maps import MOST_STATES

__all__ = [
    "check_alpha_surr",
    "check_bmru",
    "check_choice",
    "check_gradient",
    "check_hysteresis",
    "check_latch",
    "check_linear",
    "check_map_adjoint",
    "check_maps",
    "check_numbers",
    "check_sizes",
    "check_start",
    "check_tensors",
]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_numbers(**values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, (Real, Tensor)):
            raise TypeError(f"{name} must be a number, got {value!r}")


def check_alpha_surr(alpha_surr: float) -> None:
    check_numbers(alpha_surr=alpha_surr)
    if not alpha_surr >= 0:
        raise ValueError(f"alpha_surr must not be negative, got {alpha_surr!r}")
    if alpha_surr == math.inf:  # at a threshold inf * 0 would make the derivative NaN
        raise ValueError(f"alpha_surr must be finite, got {alpha_surr!r}")


def check_gradient(alpha_surr: float | None, max_gain: object) -> None:
    """Of a choice of branch, and of the value on it."""
    if alpha_surr is not None:
        check_alpha_surr(alpha_surr)
    if not isinstance(max_gain, (int, float)) or not 0 < max_gain <= math.inf:
        raise ValueError(f"max_gain must be positive, got {max_gain!r}")


def check_bmru(cand: Tensor, beta: Tensor, alpha: Tensor, h0: Tensor | None, reset: Tensor | None) -> None:
    check_tensors(cand=cand, beta=beta, alpha=alpha)
    _check_sequence("cand", cand)
    _check_beta(beta, "cand", cand)
    _check_shape("alpha", alpha, (cand.shape[2],), "[N], N as in cand")
    if not alpha.is_floating_point():
        raise TypeError(f"alpha must be floating point, got {alpha.dtype}")
    _check_device("alpha", alpha, cand)
    check_start(cand, h0, reset)


def check_hysteresis(x: Tensor, beta: Tensor, h0: Tensor | None, reset: Tensor | None) -> None:
    check_tensors(x=x, beta=beta)
    _check_sequence("x", x)
    _check_beta(beta, "x", x)
    check_start(x, h0, reset)


def check_latch(write: Tensor, value: Tensor, h0: Tensor | None, reset: Tensor | None) -> None:
    check_tensors(write=write, value=value)
    _check_sequence("value", value)
    _check_shape("write", write, value.shape, "that of value")
    if write.dtype not in (torch.bool, value.dtype):
        raise TypeError(f"write must be boolean or of value's dtype {value.dtype}, got {write.dtype}")
    _check_device("write", write, value)
    check_start(value, h0, reset)


def check_linear(a: Tensor, b: Tensor, h0: Tensor | None, reset: Tensor | None) -> None:
    check_tensors(a=a, b=b)
    _check_sequence("b", b, complex_too=True)
    _check_shape("a", a, b.shape[2:] if a.ndim == 1 else b.shape, "[N] or that of b")
    if not (a.is_floating_point() or a.is_complex()):
        raise TypeError(f"a must be floating point or complex, got {a.dtype}")
    if a.is_complex() != b.is_complex():
        raise TypeError(f"a and b must both be real or both complex, got a {a.dtype} and b {b.dtype}")
    if a.ndim == 3 and a.dtype != b.dtype:
        raise TypeError(f"a must have b's dtype {b.dtype} when it changes in time, got {a.dtype}")
    _check_device("a", a, b)
    check_start(b, h0, reset)


def check_maps(maps: Tensor, s0: Tensor | None, reset: Tensor | None) -> None:
    check_tensors(maps=maps)
    if maps.ndim != 4 or not 1 <= maps.shape[3] <= MOST_STATES:
        raise ValueError(f"maps must have shape [B, T, N, K] with K from 1 to {MOST_STATES}, got {list(maps.shape)}")
    if maps.dtype != torch.uint8:
        raise TypeError(f"maps must be uint8, got {maps.dtype}")
    if s0 is not None:
        check_tensors(s0=s0)
        _check_shape("s0", s0, (maps.shape[0], maps.shape[2]), "[B, N]")
        if s0.dtype != torch.uint8:
            raise TypeError(f"s0 must be uint8, got {s0.dtype}")
        _check_device("s0", s0, maps)
    check_start(maps[..., 0], None, reset)


def check_map_adjoint(maps: Tensor, grad: Tensor, reset: Tensor | None) -> None:
    check_maps(maps, None, reset)
    check_tensors(grad=grad)
    _check_shape("grad", grad, maps.shape, "that of maps")
    if grad.dtype not in _FLOATS:
        raise TypeError(f"grad must be floating point, got {grad.dtype}")
    _check_device("grad", grad, maps)


def check_tensors(**tensors: object) -> None:
    """Raise unless all are dense tensors."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.layout is not torch.strided:
            raise TypeError(f"{name} must be a dense tensor, got {x.layout}")


def _check_beta(beta: Tensor, name: str, x: Tensor) -> None:
    """Raise unless ``beta`` has shape, dtype and device of ``x``, which errors call ``name``."""
    _check_shape("beta", beta, x.shape, f"that of {name}")
    if beta.dtype != x.dtype:
        raise TypeError(f"beta must have {name}'s dtype {x.dtype}, got {beta.dtype}")
    _check_device("beta", beta, x)


def _check_sequence(name: str, x: Tensor, complex_too: bool = False) -> None:
    if x.ndim != 3:
        raise ValueError(f"{name} must have shape [B, T, N], got {list(x.shape)}")
    if not (x.is_floating_point() or (complex_too and x.is_complex())):
        raise TypeError(f"{name} must be floating point{' or complex' if complex_too else ''}, got {x.dtype}")
    if x.is_floating_point() and x.dtype not in _FLOATS:
        raise TypeError(f"{name} must have 16, 32 or 64 bits per number, got {x.dtype}")


def _check_shape(name: str, x: Tensor, shape: tuple[int, ...], meaning: str) -> None:
    if tuple(x.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {list(shape)} ({meaning}), got {list(x.shape)}")


def _check_device(name: str, x: Tensor, other: Tensor) -> None:
    if x.device != other.device:
        raise ValueError(f"{name} must be on {other.device} like the other tensors, got {x.device}")


def check_start(x: Tensor, h0: Tensor | None, reset: Tensor | None) -> None:
    """Raise unless ``h0 [B, N]`` is real or complex like ``x [B, T, N]``, ``reset [B, T]`` boolean, on x's device."""
    B, T, N = x.shape
    if h0 is not None:
        check_tensors(h0=h0)
        _check_shape("h0", h0, (B, N), "[B, N]")
        if h0.is_complex() != x.is_complex() or not (h0.is_floating_point() or h0.is_complex()):
            raise TypeError(f"h0 must be {'complex' if x.is_complex() else 'floating point'}, got {h0.dtype}")
        _check_device("h0", h0, x)
    if reset is not None:
        check_tensors(reset=reset)
        _check_shape("reset", reset, (B, T), "[B, T]")
        if reset.dtype != torch.bool:
            raise TypeError(f"reset must be boolean, got {reset.dtype}")
        _check_device("reset", reset, x)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_sizes(at_least: int, **sizes: object) -> None:
    """Raise unless every size is an integer of at least ``at_least``; the error names the first that is not."""
    wanted = "a positive integer" if at_least == 1 else f"an integer of at least {at_least}"
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < at_least:
            raise ValueError(f"{name} must be {wanted}, got {size!r}")
