"""Three recurrences, latch, linear and map, over whole sequences ``[B, T, N]``.

Each scan is defined by a loop (``reference.py``) and computed by the fastest backend that can serve the tensors;
:func:`explain` says which one and why. Latches and maps only select, so every backend returns the same bits.
"""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

from multistable.ops import pieces, reference
from multistable.ops.checks import (
    check_alpha_surr,
    check_bmru,
    check_choice,
    check_latch,
    check_linear,
    check_map_adjoint,
    check_maps,
    check_sizes,
    check_tensors,
)
from multistable.ops.dispatch import BACKENDS, BackendError, Choice, check_name, choose
from multistable.ops.layer_scans import map_credit, map_states, pack_maps
from multistable.ops.map_operators import in_range
from multistable.ops.memory import release_memory
from multistable.ops.numerics import from_pairs, to_pairs
from multistable.ops.operators import call
from multistable.ops.steps import bmru_step

__all__ = [
    "BACKENDS",
    "BackendError",
    "Choice",
    "bmru_scan",
    "bmru_step",
    "compile_kernels",
    "explain",
    "latch_scan",
    "linear_scan",
    "map_adjoint",
    "map_scan",
    "release_memory",
]


def bmru_scan(
    cand: Tensor,
    beta: Tensor,
    alpha: Tensor,
    h0: Tensor | None = None,
    *,
    alpha_surr: float = 1.0,
    reset: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """States of a bistable memory recurrent unit::

        write_t = H(|cand_t| - |beta_t|)
        h_t     = alpha * S(cand_t)  where write_t,  else h_{t-1}

    Args:
        cand: candidates, ``[B, T, N]``.
        beta: half-widths of the bistable region before the absolute value, ``[B, T, N]``.
        alpha: levels of the two stable states, ``[N]``; rounded once to the dtype of ``cand``.
        h0: the state before the first step, ``[B, N]``; zeros if None.
        alpha_surr: sharpness of the surrogate derivative of H and S (:mod:`multistable.surrogate`).
        reset: ``[B, T]`` booleans; the state is zero just before a marked step.
        backend: ``"auto"``, or a name of :data:`BACKENDS`.

    Returns:
        ``h [B, T, N]`` in the dtype of ``cand``: the same bits from every backend; a NaN in ``cand`` or ``beta`` writes
        NaN. Gradients of ``cand``, ``beta``, ``alpha`` and ``h0`` are complete. They are sums, equal to rounding: the
        order of their terms depends on the backend.
    """
    check_name(backend)
    check_alpha_surr(alpha_surr)
    check_bmru(cand, beta, alpha, h0, reset)
    if backend == "reference":
        return reference.bmru_scan(cand, beta, alpha, h0, alpha_surr=alpha_surr, reset=reset)
    return call("bmru_scan", cand, beta, alpha, h0, reset, alpha_surr, False, backend)[0]


def latch_scan(
    write: Tensor, value: Tensor, h0: Tensor | None = None, *, reset: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    """States of a latch: ``h_t = value_t`` where ``write_t``, else ``h_{t-1}``.

    Args:
        write: ``[B, T, N]``, boolean, or zeros and ones in the dtype of ``value``; the latter receives the gradient
            ``G_t (value_t - h_{t-1})``, with ``G_t`` the gradient that reaches ``h_t`` from all later steps.
        value: ``[B, T, N]``.
        h0, reset, backend: as in :func:`bmru_scan`.

    Returns:
        ``h [B, T, N]`` in the dtype of ``value``: the same bits from every backend.
    """
    check_name(backend)
    check_latch(write, value, h0, reset)
    if backend == "reference":
        return reference.latch_scan(write, value, h0, reset=reset)
    return call("latch_scan", write, value, h0, reset, False, backend)[0]


def linear_scan(
    a: Tensor, b: Tensor, h0: Tensor | None = None, *, reset: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    """States of a linear recurrence, real or complex: ``h_t = a_t * h_{t-1} + b_t``.

    Args:
        a: coefficients, ``[B, T, N]`` in the dtype of ``b``, or ``[N]`` if they do not change in time.
        b: inputs, ``[B, T, N]``; complex if and only if ``a`` is.
        h0, reset, backend: as in :func:`bmru_scan`; ``h0`` is complex if and only if ``b`` is.

    Returns:
        ``h [B, T, N]`` in the dtype of ``b``, equal to rounding from every backend.
    """
    check_name(backend)
    check_linear(a, b, h0, reset)
    if backend == "reference":
        return reference.linear_scan(a, b, h0, reset=reset)
    if not b.is_complex():
        return call("linear_scan", a, b, h0, reset, False, False, backend)[0]
    start = None if h0 is None else to_pairs(h0)
    h = call("linear_scan", to_pairs(a), to_pairs(b), start, reset, True, False, backend)[0]
    return from_pairs(h)


def map_scan(
    maps: Tensor,
    s0: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    reverse: bool = False,
    backend: str = "auto",
) -> Tensor:
    """States of finite state machines: ``s_t = maps_t[s_{t-1}]``.

    Args:
        maps: ``[B, T, N, K]``, uint8, K up to 16: the state after step t, for each of the K states before it. All must
            be below K; on a GPU, which is not waited for, others are clamped and the device raises when it gets there.
        s0: the state before the first step, ``[B, N]``, uint8; state 0 if None.
        reset: ``[B, T]`` booleans; the state is 0 just before a marked step.
        reverse: run from the last step to the first; ``reset`` then marks the states before a step in that order.
        backend: as in :func:`bmru_scan`.

    Returns:
        ``s [B, T, N]``, uint8: the same from every backend, since states are looked up and never computed.
    """
    check_name(backend)
    check_maps(maps, s0, reset)
    if backend == "reference":
        K = maps.shape[3]
        maps, s0 = in_range("maps", maps, K)[0], None if s0 is None else in_range("s0", s0, K)[0]
        return reference.map_scan(maps, s0, reset=reset, reverse=reverse)
    if pieces.current() is None:
        return call("map_run", maps, s0, reset, reverse, backend)[0]
    return map_states(pack_maps(maps, backend), s0, K=maps.shape[3], reset=reset, reverse=reverse, backend=backend)[0]


def map_adjoint(
    maps: Tensor, grad: Tensor, *, reset: Tensor | None = None, reverse: bool = False, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """The adjoint of :func:`map_scan`, over all K states: ``lam_t[k] = grad_t[k] + lam_{t+1}[maps_{t+1}[k]]``.

    If ``grad_t[k]`` is what the loss gains, to first order, from being in state k at step t alone, then ``lam_t[k]`` is
    what it gains from step t on. A reset hands nothing back.

    Args:
        maps, reset, reverse, backend: as in :func:`map_scan`.
        grad: ``[B, T, N, K]``, floating point; sums of half precision are computed in float32.

    Returns:
        ``lam [B, T, N, K]`` and ``lam_0 [B, N, K]``, that of the state before the first step, both in grad's dtype.
    """
    check_name(backend)
    check_map_adjoint(maps, grad, reset)
    if backend == "reference":
        maps = in_range("maps", maps, maps.shape[3])[0]
        return reference.map_adjoint(maps, grad, reset=reset, reverse=reverse)
    options: dict[str, Any] = {"reset": reset, "reverse": reverse, "backend": backend}
    return map_credit(pack_maps(maps, backend), grad, pieces.current(), **options)


def explain(x: Tensor, backend: str = "auto") -> Choice:
    """Show which backend would scan tensors like ``x``, why, and why no faster one.

    >>> import torch
    >>> print(explain(torch.zeros(2, 3, 4), backend="portable"))
    portable: asked for by name (plain torch, runs on any device)
    """
    check_tensors(x=x)
    return choose(backend, x)


def compile_kernels(
    layers: Iterable[str],
    widths: Iterable[int] | None = None,
    dtypes: Iterable[torch.dtype] = (torch.float32,),
    *,
    h0: bool = False,
    reset: bool = False,
    last: bool = False,
    alpha_surr: float = 1.0,
    device: torch.device | str = "cuda",
) -> int:
    """Compile the GPU kernels of these layers, forward and backward, for every batch size and length, so that no later
    call waits for the compiler. As many threads compile as there are cores (in Python 3.11 one); apart from a few small
    sums, nothing runs on the GPU.

    Triton caches compiled kernels in a folder, so this is fast in later processes. A kernel depends on the dtype, the
    width and the number of columns per multiprocessor: a BMRU of one width and dtype has two variants of each kernel,
    an LRU three or four.

    Args:
        layers: ``"bmru"``, ``"lru"``, ``"mingru"``, ``"latch"`` (:func:`latch_scan` and ``HysteresisMRU``).
        widths: ``hidden_size`` of the layers (even for an LRU), and of both parts of a ``Hybrid``; None for all widths,
            which compiles six to nine times as many.
        dtypes: of the states. Half precision is compiled for parameters in float32 (autocast) and in the same dtype.
        h0: also compile for calls that start from a state.
        reset: also compile for calls with resets.
        last: also compile for calls in which the last state has a gradient, with or without the other states.
        alpha_surr: that of the BMRU.
        device: a GPU.

    Returns:
        How many variants were compiled or loaded from Triton's folder; 0 if this process already had all of them.

    Some variants are still compiled at their first call: those for tensors that do not start at a multiple of 16 bytes,
    for rows separated by a gap that is not a multiple of 16 bytes, for strides beyond 2^31, for sequences cut over
    ranks, and for scans over maps. On GPUs of other makers than NVIDIA, nothing is compiled beforehand.

    >>> if torch.cuda.is_available():
    ...     variants = compile_kernels(["bmru", "lru"], widths=[256], dtypes=[torch.float32, torch.bfloat16])
    """
    if isinstance(layers, str):
        raise TypeError(f"layers must be a list of names, got {layers!r}")
    names, sizes, kinds = list(layers), None if widths is None else list(widths), list(dtypes)
    for name in names:
        check_choice("layers", name, ("bmru", "lru", "mingru", "latch"))
    for size in sizes or ():
        check_sizes(1, widths=size)
        if "lru" in names and size % 2:
            raise ValueError(f"widths of an LRU must be even (a real and an imaginary part per unit), got {size}")
    for dtype in kinds:
        if not isinstance(cast(Any, dtype), torch.dtype) or not dtype.is_floating_point:
            raise TypeError(f"dtypes must be floating point, got {dtype}")
    check_alpha_surr(alpha_surr)
    try:
        x = torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:  # torch's own, without a GPU
        raise BackendError(f"backend 'triton' cannot serve: there is no device {str(device)!r}: {error}") from error
    choose("triton", x)  # raises if it cannot serve
    from multistable.ops.triton import variants

    options: dict[str, Any] = {"h0": h0, "reset": reset, "last": last, "alpha_surr": alpha_surr}
    return variants.compile_layers(names, sizes, kinds, x.device, **options)
