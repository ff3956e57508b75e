"""The place where scans, layers and models ask whether their input is one piece of a longer sequence.

:mod:`multistable.distributed` answers; nothing here imports it.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["Pieces", "current", "has_steps", "use"]


class Pieces(Protocol):
    """A sequence cut along time over the ranks of a process group, in rank order. Pieces may be empty.

    Every method is called by all ranks, in the same order, and may exchange numbers with them.
    """

    rank: int
    size: int

    def scan(self, name: str, *args: Any) -> tuple[Tensor, Tensor]:
        """The operator ``name`` over the whole sequence: the states of this piece, the last state of all pieces."""
        ...

    def map_states(self, *args: Any) -> tuple[Tensor, Tensor]:
        """The operator ``map_scan``: the states of this piece, and the one that enters it."""
        ...

    def in_turn(
        self, scan: Callable[..., tuple[Tensor, Tensor]], b: Tensor, start: Tensor, reverse: bool
    ) -> tuple[Tensor, Tensor]:
        """``scan(b, state that enters) -> states, last state`` on one rank after the other; the last state of all."""
        ...

    def sum(self, x: Tensor) -> Tensor:
        """The sum of ``x`` over the ranks."""
        ...

    def choose(self, x: Tensor, has: Tensor, otherwise: Tensor, first: bool = False) -> Tensor:
        """``x [B, N]`` of the last (or first) rank where ``has [B]``, or ``otherwise`` where none has."""
        ...

    def nearest(self, x: Tensor, has: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
        """``x [B, ...]`` of the nearest rank before this one (after it, if ``reverse``) where ``has [B]``, and whether
        there is one, ``[B]``."""
        ...

    def mark_after(self, reset: Tensor) -> Tensor:
        """The reset mark of the first step after this piece, ``[B]``; ``reset [B, T]``."""
        ...

    def count_before(self, start: Tensor, steps: Tensor, since_reset: Tensor) -> tuple[Tensor, Tensor]:
        """The position ``[B]`` before this piece and after the last one.

        ``start`` is that before the first piece, ``steps`` the number of steps of this piece, ``since_reset`` that from
        its last reset on, or -1.
        """
        ...


_active: list[Pieces | None] = [None]
# One per process and not per thread: the thread that recomputes a checkpointed block must see it, too.


def current() -> Pieces | None:
    """How the sequence is cut, or None if every input is a whole sequence."""
    return _active[-1]


def has_steps(lengths: Tensor | None, B: int, T: int, device: torch.device) -> Tensor:
    """Which sequences have a valid step in a piece of T steps, ``[B]``."""
    return torch.full((B,), T > 0, device=device) if lengths is None else lengths > 0


@contextmanager
def use(pieces: Pieces | None) -> Generator[None]:
    _active.append(pieces)
    try:
        yield
    finally:
        _active.pop()
