"""The scans over a cut sequence: one exchange forwards, one backwards, and between them the ordinary operators."""

from typing import Any

import torch
from torch import Tensor

from multistable.distributed.exchange import Exchange
from multistable.distributed.piece import blocks, piece_of
from multistable.ops import maps
from multistable.ops.autograd import Function, saved_tensors
from multistable.ops.numerics import wide
from multistable.ops.operators import compute

__all__ = ["FromFinal", "is_first", "map_adjoint", "map_states", "scan"]


def scan(exchange: Exchange, name: str, *args: Any) -> tuple[Tensor, Tensor]:
    """The operator ``name`` over the sequence of all ranks: the states of this piece, the last state of all."""
    h, last = _Scan.apply(exchange, name, *args)
    reverse = piece_of(name, *args).reverse
    return h, FromFinal.apply(last, exchange, reverse)


class _Scan(Function):
    """Forwards: exchange summaries, compose them to the state that enters this piece, scan from there.

    Backwards: every piece computes the gradient ``g`` that it alone passes to the state that enters it. With P of
    the forward the gradients of the states between pieces are a linear recurrence over ranks, from the final one
    back, ``G_r = g_r + conj(P_r) G_{r+1}``. The ordinary backward follows, from ``G_{r+1}``.
    """

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, name: str, *args: Any) -> tuple[Tensor, Tensor]:
        piece = piece_of(name, *args)
        gathered = exchange.gather(f"the states of {name}", *piece.summary())
        states, last, passes = piece.compose(*gathered)
        entering = at_rank(states, exchange, -1, piece.reverse)
        if entering is None:
            h0 = piece.h0
            entering = torch.zeros_like(last) if h0 is None else h0.to(last.dtype)
        h = piece.forward(entering)[0]
        ctx.save_for_backward(*piece.kept(), piece.reset, entering, h, passes)
        ctx.call = exchange, name, piece.options, None if piece.h0 is None else piece.h0.dtype
        ctx.set_materialize_grads(False)
        return h, last.contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        exchange, name, options, h0_dtype = ctx.call
        *given, reset, entering, h, passes = saved_tensors(ctx)
        given = [h if x is None else x for x in given]  # it has the shape and dtype of an input that was not kept
        piece = piece_of(name, *given, entering, reset, *options)
        grad_h, grad_last = grads
        start = entering.to(wide(entering.dtype))  # so that its gradient is not rounded
        own = passes[:, exchange.rank]
        alone = torch.zeros_like(start) if grad_h is None else piece.passed_back(grad_h, start, h, own)
        if grad_last is not None:  # on the final rank
            alone = alone + piece.through(own, grad_last.to(alone.dtype))
        (every,) = exchange.gather(f"the gradients of {name}", alone)
        between = piece.compose_back(every.transpose(0, 1).contiguous(), passes)
        into = at_rank(between, exchange, 1, piece.reverse)
        *found, _ = piece.backward(grad_h, grad_last if into is None else into, start, h)
        first = at_rank(between, exchange, 0, piece.reverse) if is_first(exchange, piece.reverse) else None
        grad_h0 = torch.zeros_like(start) if first is None else first
        found = [x if need else None for x, need in zip(found, ctx.needs_input_grad[2:], strict=False)]
        to_h0 = None if h0_dtype is None else grad_h0.to(h0_dtype)
        return None, None, *found, to_h0, None, *(None for _ in options)


class FromFinal(Function):
    """The same tensor on all ranks, computed on the final one: it alone gets the gradients, the sum of all ranks'."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, reverse: bool) -> Tensor:
        ctx.call = exchange, reverse
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        exchange, reverse = ctx.call
        total = exchange.sum("the gradients of the last state", grads[0].to(wide(grads[0].dtype)))
        return total.to(grads[0].dtype) if is_first(exchange, not reverse) else None, None, None


def is_first(exchange: Exchange, reverse: bool) -> bool:
    """True on the rank where the scan starts."""
    return exchange.rank == (exchange.size - 1 if reverse else 0)


def at_rank(x: Tensor, exchange: Exchange, offset: int, reverse: bool) -> Tensor | None:
    """``x [B, R, ...]`` at the rank ``offset`` places after this one in the order of the scan, if there is one."""
    rank = exchange.rank + (-offset if reverse else offset)
    return x[:, rank].contiguous() if 0 <= rank < exchange.size else None


def map_states(
    exchange: Exchange, words: Tensor, s0: Tensor | None, reset: Tensor | None, K: int, reverse: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """The operator ``map_scan``: the states of this piece, and the one that enters it."""
    (every,) = exchange.gather("the states of map_scan", _whole_map(words, reset, K, reverse, backend))
    pieces = every.transpose(0, 1).contiguous()
    states, last = compute("map_scan", pieces, s0, None, K, reverse, backend)
    entering = at_rank(states, exchange, -1, reverse)
    if entering is None:
        entering = torch.zeros_like(last) if s0 is None else s0
    return compute("map_scan", words, entering, reset, K, reverse, backend)[0], entering


def _whole_map(words: Tensor, reset: Tensor | None, K: int, reverse: bool, backend: str) -> Tensor:
    """The word ``[B, N]`` of the composition of all maps of a piece, a reset included.

    From the last step back, because the maps before a constant one do not matter.
    """
    (B, T, N), bits = words.shape, maps.state_bits(K)
    same = torch.arange(K, dtype=torch.uint8, device=words.device)
    whole = maps.pack(same.expand(B, N, K))
    for steps in blocks(T, from_start=reverse):
        marks = None if reset is None else reset[:, steps]
        ends = [
            compute("map_scan", words[:, steps], same[k].expand(B, N).contiguous(), marks, K, reverse, backend)[1]
            for k in range(K)
        ]
        whole = maps.compose(maps.pack(torch.stack(ends, dim=-1)), whole, bits)
        places = maps.unpack(whole, K)
        if (places == places[..., :1]).all():
            break
    return whole


def map_adjoint(
    exchange: Exchange, words: Tensor, grad: Tensor, reset: Tensor | None, reverse: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """The operator ``map_adjoint``: what a piece passes back is ``g_r + G_{r+1}[map_r]``, and zero after a reset."""
    B, T, _, K = grad.shape
    dtype = wide(grad.dtype)
    alone = compute("map_adjoint", words, grad, reset, reverse, backend)[1].to(dtype)
    cut = torch.zeros(B, dtype=torch.bool, device=grad.device) if reset is None else reset.any(dim=1)
    told = alone, _whole_map(words, reset, K, reverse, backend), cut
    every, pieces, cuts = exchange.gather("the gradients of map_scan", *told)
    into, carry = torch.zeros_like(alone), torch.zeros_like(alone)
    for rank in range(exchange.size) if reverse else reversed(range(exchange.size)):
        into = carry if rank == exchange.rank else into
        passed = carry.gather(-1, maps.unpack(pieces[rank], K))
        carry = every[rank] + torch.where(cuts[rank][:, None, None], 0.0, passed)
    lam = grad
    if T > 0:
        grad = grad.clone()
        grad[:, 0 if reverse else -1] += into.to(grad.dtype)
        lam = compute("map_adjoint", words, grad, reset, reverse, backend)[0]
    start = carry if is_first(exchange, reverse) else torch.zeros_like(carry)
    return lam, start.to(grad.dtype)
