"""The scans as layers call them: in any layout and direction, with the last state apart, and over packed maps."""

from typing import Any

import torch
from torch import Tensor

from multistable.ops import pieces, reference
from multistable.ops.autograd import Function
from multistable.ops.checks import check_start
from multistable.ops.maps import unpack
from multistable.ops.numerics import from_pairs, to_pairs
from multistable.ops.operators import batch_first, call, last_state
from multistable.ops.portable import flip

__all__ = ["bmru_layer", "linear_layer", "map_credit", "map_path", "map_states", "pack_maps"]


def bmru_layer(
    proj: Tensor,
    alpha: Tensor,
    h0: Tensor | None,
    *,
    alpha_surr: float,
    reset: Tensor | None,
    reverse: bool,
    time_major: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """``bmru_scan`` for a layer: candidates and thresholds in one projection; the last state comes separately.

    ``proj [B, T, 2N]`` (``[T, B, 2N]`` if ``time_major``) -> ``h [B, T, N]`` (``[T, B, N]``), ``h_last [B, N]``. With
    ``reverse`` the scan runs from the last step to the first; ``reset [B, T]`` then marks the states before a step in
    that order.
    """
    steps: Tensor = batch_first(proj, time_major)
    check_start(steps[..., : proj.shape[2] // 2], h0, reset)
    if backend != "reference":
        return call("bmru_layer", proj, alpha, h0, reset, alpha_surr, reverse, time_major, backend)
    cand, beta = flip(steps, reverse).chunk(2, dim=-1)
    h = reference.bmru_scan(cand, beta, alpha, h0, alpha_surr=alpha_surr, reset=flip(reset, reverse))
    return batch_first(flip(h, reverse), time_major), last_state(h, h0, reverse=False)


def linear_layer(
    a: Tensor,
    b: Tensor,
    h0: Tensor | None,
    *,
    pairs: bool,
    reset: Tensor | None,
    reverse: bool,
    time_major: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """``linear_scan`` for a layer: any layout and direction, complex numbers as pairs; the last state comes
    separately.

    ``b [B, T, N]`` (``[T, B, N]`` if ``time_major``), ``a`` alike or ``[N]`` -> ``h`` shaped like b, ``h_last [B, N]``.
    With ``pairs`` the last axis of every tensor holds real parts, then imaginary ones. With ``reverse`` the scan runs
    from the last step to the first; ``reset [B, T]`` then marks the states before a step in that order.
    """
    a, b = (a if a.ndim == 1 else batch_first(a, time_major)), batch_first(b, time_major)
    check_start(b, h0, reset)
    if backend != "reference":
        h, h_last = call("linear_scan", a, b, h0, reset, pairs, reverse, backend)
    else:
        rates, inputs, start = flip(a, reverse), flip(b, reverse), h0
        if pairs:
            rates, inputs, start = from_pairs(rates), from_pairs(inputs), None if h0 is None else from_pairs(h0)
        h = reference.linear_scan(rates, inputs, start, reset=flip(reset, reverse))
        h = to_pairs(h).to(b.dtype) if pairs else h
        h, h_last = flip(h, reverse), last_state(h, h0, reverse=False)
    return batch_first(h, time_major), h_last


def pack_maps(maps: Tensor, backend: str) -> Tensor:
    """Maps ``[B, T, N, K]`` as words ``[B, T, N]``, see :mod:`multistable.ops.maps`."""
    return call("map_pack", maps, "portable" if backend == "reference" else backend)[0]


def map_states(
    words: Tensor, s0: Tensor | None, *, K: int, reset: Tensor | None, reverse: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """``map_scan`` for a layer, from packed maps ``[B, T, N]``, and the state ``[B, N]`` before the first step.

    The latter is ``s0``, or what enters from the piece before if the sequence is cut.
    """
    cut = pieces.current()
    if cut is not None:
        return cut.map_states(words, s0, reset, K, reverse, backend)
    if backend != "reference":
        states = call("map_scan", words, s0, reset, K, reverse, backend)[0]
    else:
        states = reference.map_scan(unpack(words, K).byte(), s0, reset=reset, reverse=reverse)
    return states, words.new_zeros(words.shape[0], words.shape[2], dtype=torch.uint8) if s0 is None else s0


def map_credit(
    words: Tensor, grad: Tensor, cut: pieces.Pieces | None, *, reset: Tensor | None, reverse: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """``map_adjoint`` for a layer, from packed maps ``[B, T, N]``, of the sequence of which ``cut`` has pieces."""
    if cut is not None:
        return cut.scan("map_adjoint", words, grad, reset, reverse, backend)
    if backend != "reference":
        return call("map_adjoint", words, grad, reset, reverse, backend)
    return reference.map_adjoint(unpack(words, grad.shape[3]).byte(), grad, reset=reset, reverse=reverse)


def map_path(
    chosen: Tensor, words: Tensor, start: Tensor | None, *, reset: Tensor | None, reverse: bool, backend: str
) -> Tensor:
    """The path of a machine as one-hot states ``[B, T, N, K]``, differentiable.

    ``chosen [B, T, N, K]`` is that path already: the one-hot vector of what each step chose on the realised column of
    its map. In the value nothing changes; in the gradient, what a read-out sends to ``s_t`` goes to ``chosen_t`` and
    back through the maps of all earlier steps, to their choices and to ``start [B, N, K]``: ``map_adjoint``.
    """
    return _Path.apply(chosen, words, start, reset, reverse, backend)


class _Path(Function):
    """See :func:`map_path`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        chosen: Tensor, words: Tensor, start: Tensor | None, reset: Tensor | None, reverse: bool, backend: str
    ) -> Tensor:
        return chosen.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, words, _, reset, ctx.reverse, ctx.backend = inputs
        ctx.save_for_backward(words, reset)
        ctx.cut = pieces.current()  # the backward may run outside of the context

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        words, reset = ctx.saved_tensors
        lam, start = map_credit(words, grads[0], ctx.cut, reset=reset, reverse=ctx.reverse, backend=ctx.backend)
        return lam, None, start if ctx.needs_input_grad[2] else None, None, None, None
