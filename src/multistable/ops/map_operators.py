"""Scans over maps as torch operators: packing, the states, the adjoint.

map_pack      maps [B, T, N, K] uint8 -> words [B, T, N], whether some state was K or more []
map_scan      words, s0 [B, N] -> states [B, T, N] uint8, the last one [B, N]
map_run       maps, s0 -> states, the last one, without words where a backend can
map_adjoint   words, grad [B, T, N, K] -> lam [B, T, N, K], the one before the first step [B, N, K]
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from multistable.ops.dispatch import choose, load
from multistable.ops.maps import word_dtype
from multistable.ops.memory import new_empty
from multistable.ops.operators import (
    backend_for,
    last_state,
    raise_no_second_derivative,
    register,
    save_nothing,
)

__all__ = ["in_range"]

_torch: Any = torch
Tensors = tuple[Tensor, ...]
Optional = Tensor | None


def in_range(name: str, states: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """``states``, none of which may be K or more, and whether one is.

    On the CPU that raises. A GPU is not waited for: there they are clamped, so that nothing is read outside, and the
    device itself raises when it gets there.
    """
    most = states.amax() if states.numel() else states.new_zeros(())  # 50 times as fast as (states >= K).any() on a CPU
    outside = most >= K
    if states.device.type != "cpu":
        _torch._assert_async(~outside, f"{name} must lie between 0 and K - 1")
        return states.clamp(max=K - 1), outside
    if bool(outside):
        raise ValueError(f"{name} must lie between 0 and K - 1 = {K - 1}, got {int(most)}")
    return states, outside


def _map_pack(maps: Tensor, backend: str) -> Tensors:
    maps, outside = in_range("maps", maps, maps.shape[3])
    words = new_empty(maps.new_empty(0, dtype=word_dtype(maps.shape[3])), maps.shape[:3])
    if words.numel():
        backend_for(backend, maps).map_pack(maps, words)
    return words, outside


def _map_pack_shapes(maps: Tensor, *_: Any) -> Tensors:
    return maps.new_empty(maps.shape[:3], dtype=word_dtype(maps.shape[3])), maps.new_empty((), dtype=torch.bool)


def _map_scan(words: Tensor, s0: Optional, reset: Optional, K: int, reverse: bool, backend: str) -> Tensors:
    states = new_empty(words.new_empty(0, dtype=torch.uint8), words.shape)
    s0 = None if s0 is None else in_range("s0", s0, K)[0]
    if states.numel():
        backend_for(backend, words).map_forward(words, s0, reset, states, K=K, reverse=reverse)
    return states, last_state(states, s0, reverse)


def _map_scan_shapes(words: Tensor, *_: Any) -> Tensors:
    B, T, N = words.shape
    return words.new_empty(B, T, N, dtype=torch.uint8), words.new_empty(B, N, dtype=torch.uint8)


def _map_run(maps: Tensor, s0: Optional, reset: Optional, reverse: bool, backend: str) -> Tensors:
    K, kind = maps.shape[3], choose(backend, maps).backend
    if kind != "cpu" or not maps.numel():
        return _map_scan(_map_pack(maps, backend)[0], s0, reset, K, reverse, backend)
    states = new_empty(maps.new_empty(0), maps.shape[:3])
    s0 = None if s0 is None else in_range("s0", s0, K)[0]
    if not load(kind).map_direct(maps, s0, reset, states, reverse=reverse):
        in_range("maps", maps, K)
    return states, last_state(states, s0, reverse)


def _map_run_shapes(maps: Tensor, *_: Any) -> Tensors:
    B, T, N = maps.shape[:3]
    return maps.new_empty(B, T, N), maps.new_empty(B, N)


def _map_adjoint(words: Tensor, grad: Tensor, reset: Optional, reverse: bool, backend: str) -> Tensors:
    lam = torch.empty_like(grad, memory_format=torch.contiguous_format)
    if not lam.numel():
        return lam, grad.new_zeros(grad.shape[0], *grad.shape[2:])
    start = backend_for(backend, words).map_adjoint(words, grad, reset, lam, reverse=reverse)
    return lam, start.to(grad.dtype)


def _map_adjoint_shapes(words: Tensor, grad: Tensor, *_: Any) -> Tensors:
    return grad.new_empty(grad.shape), grad.new_empty(grad.shape[0], *grad.shape[2:])


def _define(name: str, schema: str, compute: Callable[..., Tensors], shapes: Callable[..., Tensors]) -> None:
    register(name, f"({schema}) -> (Tensor, Tensor)", compute, shapes, save_nothing, raise_no_second_derivative)


_SCAN = "Tensor words, Tensor? s0, Tensor? reset, int K, bool reverse, str backend"
_define("map_pack", "Tensor maps, str backend", _map_pack, _map_pack_shapes)
_define("map_scan", _SCAN, _map_scan, _map_scan_shapes)
_RUN = "Tensor maps, Tensor? s0, Tensor? reset, bool reverse, str backend"
_define("map_run", _RUN, _map_run, _map_run_shapes)
_ADJOINT = "Tensor words, Tensor grad, Tensor? reset, bool reverse, str backend"
_define("map_adjoint", _ADJOINT, _map_adjoint, _map_adjoint_shapes)
