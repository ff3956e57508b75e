"""Exchanges between ranks other than scans: sums, one rank's tensor, marks, positions, and running in turn."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from multistable.distributed.exchange import Exchange
from multistable.distributed.scans import FromFinal, is_first
from multistable.ops import pieces
from multistable.ops.autograd import Function

__all__ = ["choose", "count_before", "in_turn", "mark_after", "nearest", "sum_over_ranks"]


def sum_over_ranks(exchange: Exchange, x: Tensor) -> Tensor:
    """The sum reaches the loss of every rank, so its gradient is summed over them too."""
    return _Sum.apply(x, exchange)


class _Sum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.sum("a sum", x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.exchange.sum("the gradient of a sum", grads[0]), None


def choose(exchange: Exchange, x: Tensor, has: Tensor, otherwise: Tensor, first: bool = False) -> Tensor:
    """``x [B, N]`` of the last (or first) rank where ``has [B]``; ``otherwise`` where none has."""
    y, found = _Choose.apply(x, has, exchange, first)
    return torch.where(found[:, None], y, otherwise)


class _Choose(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, has: Tensor, exchange: Exchange, first: bool) -> tuple[Tensor, Tensor]:
        every, owners = exchange.gather("a tensor of one rank", x, has)  # [R, B, N], [R, B]
        order = torch.arange(1, exchange.size + 1, device=x.device)[:, None]
        owner = torch.where(owners, order.flip(0) if first else order, 0).argmax(dim=0)  # [B]
        ctx.save_for_backward(owner == exchange.rank)
        ctx.exchange = exchange
        y, found = every[owner, torch.arange(len(owner), device=x.device)], owners.any(dim=0)
        ctx.mark_non_differentiable(found)
        return y, found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total = ctx.exchange.sum("the gradient of a tensor of one rank", grads[0])
        (mine,) = ctx.saved_tensors
        return torch.where(mine[:, None], total, 0.0), None, None, None


def nearest(exchange: Exchange, x: Tensor, has: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """``x [B, ...]`` of the nearest rank before this one (after it, if ``reverse``) where ``has [B]``, and whether
    there is one, ``[B]``. A gradient goes back to that rank."""
    return _Nearest.apply(x, has, exchange, reverse)


class _Nearest(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, has: Tensor, exchange: Exchange, reverse: bool) -> tuple[Tensor, Tensor]:
        every, owners = exchange.gather("the steps at borders", x, has)  # [R, B, ...], [R, B]
        read = source = torch.full_like(has, -1, dtype=torch.int64)  # from which rank, [B]
        readers = torch.zeros_like(owners)  # who reads from this one
        for rank in reversed(range(exchange.size)) if reverse else range(exchange.size):
            readers[rank] = read == exchange.rank
            source = read if rank == exchange.rank else source
            read = torch.where(owners[rank], rank, read)
        ctx.save_for_backward(readers)
        ctx.exchange = exchange
        found = source.ge(0)
        ctx.mark_non_differentiable(found)
        return every[source.clamp(min=0), torch.arange(len(has), device=x.device)], found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (every,) = ctx.exchange.gather("the gradients of steps at borders", grads[0])
        (readers,) = ctx.saved_tensors
        mine = readers.view(*readers.shape, *[1] * (every.ndim - 2))
        return torch.where(mine, every, 0.0).sum(dim=0), None, None, None


def mark_after(exchange: Exchange, reset: Tensor) -> Tensor:
    """The mark of the first step after this piece, ``[B]``; False after the last step of all. ``reset [B, T]``."""
    B, T = reset.shape
    first = reset[:, 0] if T else reset.new_zeros(B)
    marks, has_steps = exchange.gather("the first marks", first, reset.new_full((B,), T > 0))
    after = reset.new_zeros(B)
    for rank in reversed(range(exchange.rank + 1, exchange.size)):
        after = torch.where(has_steps[rank], marks[rank], after)
    return after


def count_before(exchange: Exchange, start: Tensor, steps: Tensor, since_reset: Tensor) -> tuple[Tensor, Tensor]:
    """The position before this piece and after the last one, ``[B]``.

    ``start`` is that before the first piece, ``steps [B]`` counts the steps of this piece, ``since_reset [B]`` those
    from its last reset on, or is -1.
    """
    every, since = exchange.gather("positions", steps, since_reset)
    position, before = start, start
    for rank in range(exchange.size):
        before = position if rank == exchange.rank else before
        position = torch.where(since[rank] >= 0, since[rank], position + every[rank])
    return before, position


def in_turn(
    exchange: Exchange, scan: Callable[..., tuple[Tensor, Tensor]], b: Tensor, start: Tensor, reverse: bool
) -> tuple[Tensor, Tensor]:
    """``scan(b, state that enters) -> states, last state`` on one rank after the other.

    Returns the states of this piece and the last state of all. A gradient flows back in the opposite order.
    """
    with pieces.use(None):
        h, last = scan(b, _Receive.apply(start, b, exchange, reverse))
    h, last = _HandOn.apply(h, last, exchange, reverse)
    return h, FromFinal.apply(last, exchange, reverse)


class _Receive(Function):
    """The state that enters. It depends on ``b`` in name, so that it has a gradient even if the piece is empty."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, b: Tensor, exchange: Exchange, reverse: bool) -> Tensor:
        ctx.call = exchange, reverse
        ctx.empty = b if b.numel() == 0 else None
        if is_first(exchange, reverse):
            return start.clone()
        return exchange.receive("the state that enters", start, exchange.rank + (1 if reverse else -1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        exchange, reverse = ctx.call
        empty = None if ctx.empty is None else torch.zeros_like(ctx.empty)
        if is_first(exchange, reverse):
            return grads[0], empty, None, None
        exchange.send("the gradient of the state that enters", grads[0], exchange.rank + (1 if reverse else -1))
        return torch.zeros_like(grads[0]), empty, None, None


class _HandOn(Function):
    """Send the last state to the next rank and receive its gradient; gather the final rank's last state everywhere."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, last: Tensor, exchange: Exchange, reverse: bool) -> tuple[Tensor, Tensor]:
        ctx.call = exchange, reverse
        ctx.set_materialize_grads(False)
        ctx.like = last.detach()
        if not is_first(exchange, not reverse):
            exchange.send("the last state", last, exchange.rank + (-1 if reverse else 1))
        (every,) = exchange.gather("the last state", last)
        return h.view_as(h), every[0 if reverse else -1].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        exchange, reverse = ctx.call
        if is_first(exchange, not reverse):
            return *grads, None, None
        what = "the gradient of the last state"
        return grads[0], exchange.receive(what, ctx.like, exchange.rank + (-1 if reverse else 1)), None, None
