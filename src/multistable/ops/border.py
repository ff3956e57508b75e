"""The borders of a piece of a cut sequence, for scans whose steps also read the step before or after them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from multistable.ops.numerics import aligned
from multistable.ops.operators import call
from multistable.ops.pieces import Pieces, has_steps

__all__ = ["Border"]


@dataclass(frozen=True)
class Border:
    """This rank's piece ``[B, T, ...]``, in the order in which it is scanned, and those of the other ranks.

    ``reverse``: the scan runs from the last rank to the first; the steps of each piece are in that order already.
    ``lengths [B]``: how many steps are valid, the first ones; None for all T.
    """

    cut: Pieces
    reverse: bool = False
    lengths: Tensor | None = None

    def valid(self, x: Tensor) -> Tensor:
        """Which steps of ``x [B, T, ...]`` are valid, ``[B, T]``."""
        B, T = x.shape[:2]
        if self.lengths is None:
            return torch.ones(B, T, dtype=torch.bool, device=x.device)
        return torch.arange(T, device=x.device) < self.lengths[:, None]

    def last(self, x: Tensor) -> Tensor:
        """``x [B, T, ...]`` at the last valid step, ``[B, ...]``; zeros with a graph to ``x`` if T = 0."""
        if x.shape[1] == 0 or self.lengths is None:
            return x[:, -1:].sum(dim=1)
        return x[torch.arange(len(x), device=x.device), (self.lengths - 1).clamp(min=0)]

    def before(self, last: Tensor, start: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """The entry of the last valid step before this piece, or ``start`` if there is none; and whether there is one,
        ``[B]``.

        ``last [B, ...]`` is the entry of this piece's own last valid step; ``like [B, T, ...]`` tells its length.
        """
        return self._nearest(last, start, like, self.reverse)

    def after(self, x: Tensor, end: Tensor) -> Tensor:
        """``x [B, T, ...]`` one step later; ``end [B, ...]`` after the last step of all."""
        first = x[:, :1].sum(dim=1)
        following = self._nearest(first, end, x, not self.reverse)[0][:, None]
        later = torch.cat([x[:, 1:], following], dim=1)[:, : x.shape[1]]
        if self.lengths is None:
            return later
        is_last = torch.arange(x.shape[1], device=x.device) == self.lengths[:, None] - 1
        return torch.where(aligned(is_last, x), following, later)

    def _nearest(self, own: Tensor, otherwise: Tensor, like: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
        has = has_steps(self.lengths, len(own), like.shape[1], own.device)
        found, exists = self.cut.nearest(own, has, reverse)
        return torch.where(aligned(exists, own), found, otherwise), exists

    def latch_scan(self, write: Tensor, value: Tensor, h0: Tensor | None, reset: Tensor | None, backend: str) -> Tensor:
        """The states of the operator ``latch_scan``, in the order of the piece. Padding must not write."""
        reset = self.turn(reset) if reset is not None else None
        args = self.turn(write), self.turn(value), h0, reset, self.reverse, backend
        return self.turn(call("latch_scan", *args)[0])

    def turn(self, x: Tensor) -> Tensor:
        """From the order of the scan to the order of time, or back."""
        return x.flip(1) if self.reverse else x
