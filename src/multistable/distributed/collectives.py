"""What the ranks of a cut sequence exchange: scans, sums, one rank's tensor, marks, positions, and running in turn."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from multistable.distributed import scans
from multistable.distributed.exchange import Exchange
from multistable.distributed.scans import FromFinal, is_first
from multistable.ops import pieces
from multistable.ops.autograd import Function
from multistable.ops.numerics import aligned
from multistable.ops.operators import transformed

__all__ = ["SequencePieces"]

F = TypeVar("F", bound=Callable[..., Any])


def _outside_graphs(function: F) -> F:
    """Make ``torch.compile`` break the graph instead of tracing an exchange."""
    compiler: Any = torch.compiler
    return compiler.disable(function)


class SequencePieces:
    """How a sequence is cut, as :func:`~multistable.distributed.sequence_parallel` yields it.

    Attributes:
        rank, size: the place of this rank's piece, and the number of pieces.
        exchange: counts the exchanges (``exchange.count``) and the bytes this rank sent (``exchange.bytes_sent``).

    Its methods are those of :class:`multistable.ops.pieces.Pieces`, which says what they do. ``torch.compile`` breaks
    the graph at each of them.
    """

    def __init__(self, group: Any = None) -> None:
        self.exchange = Exchange(group)
        self.rank, self.size = self.exchange.rank, self.exchange.size

    @_outside_graphs
    def scan(self, name: str, *args: Any) -> tuple[Tensor, Tensor]:
        if transformed():
            raise NotImplementedError("sequence_parallel supports neither torch.func nor forward-mode AD")
        if name == "map_adjoint":
            return scans.map_adjoint(self.exchange, *args)
        return scans.scan(self.exchange, name, *args)

    @_outside_graphs
    def map_states(self, *args: Any) -> tuple[Tensor, Tensor]:
        return scans.map_states(self.exchange, *args)

    @_outside_graphs
    def in_turn(
        self, scan: Callable[..., tuple[Tensor, Tensor]], b: Tensor, start: Tensor, reverse: bool
    ) -> tuple[Tensor, Tensor]:
        entering = _Receive.apply(start, b, self.exchange, reverse)
        with pieces.use(None):
            h, last = scan(b, entering)
        h, last = _HandOn.apply(h, last, entering, self.exchange, reverse)
        return h, FromFinal.apply(last, self.exchange, reverse)

    @_outside_graphs
    def sum(self, x: Tensor) -> Tensor:
        return _Sum.apply(x, self.exchange)

    @_outside_graphs
    def choose(self, x: Tensor, has: Tensor, otherwise: Tensor, first: bool = False) -> Tensor:
        y, found = _Choose.apply(x, has, self.exchange, first)
        return torch.where(found[:, None], y, otherwise)

    @_outside_graphs
    def nearest(self, x: Tensor, has: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
        return _Nearest.apply(x, has, self.exchange, reverse)

    @_outside_graphs
    def mark_after(self, reset: Tensor) -> Tensor:
        B, T = reset.shape
        first = reset[:, 0] if T else reset.new_zeros(B)
        marks, has_steps = self.exchange.gather("the first marks", first, reset.new_full((B,), T > 0))
        after = reset.new_zeros(B)
        for rank in reversed(range(self.rank + 1, self.size)):
            after = torch.where(has_steps[rank], marks[rank], after)
        return after

    @_outside_graphs
    def count_before(self, start: Tensor, steps: Tensor, since_reset: Tensor) -> tuple[Tensor, Tensor]:
        every, since = self.exchange.gather("positions", steps, since_reset)
        position, before = start, start
        for rank in range(self.size):
            before = position if rank == self.rank else before
            position = torch.where(since[rank] >= 0, since[rank], position + every[rank])
        return before, position


class _Sum(Function):
    """The sum reaches the loss of every rank, so its gradient is summed over them too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.sum("a sum", x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.exchange.sum("the gradient of a sum", grads[0]), None


class _Choose(Function):
    """``x`` of the rank that :meth:`SequencePieces.choose` reads, and whether there is one, ``[B]``."""

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


class _Nearest(Function):
    """See :meth:`SequencePieces.nearest`. A gradient goes back to the rank that was read."""

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
        return torch.where(aligned(readers, every), every, 0.0).sum(dim=0), None, None, None


class _Receive(Function):
    """The state that enters. It depends on ``b`` in name only, so that it has a gradient even if the piece is empty."""

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
    """Send the last state to the next rank and receive its gradient; gather the final rank's last state everywhere.

    ``entering`` is here for the graph: the rank before waits for its gradient, even if no state depends on it.
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, last: Tensor, entering: Tensor, exchange: Exchange, reverse: bool
    ) -> tuple[Tensor, Tensor]:
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
            return *grads, None, None, None
        what = "the gradient of the last state"
        return grads[0], exchange.receive(what, ctx.like, exchange.rank + (-1 if reverse else 1)), None, None, None
