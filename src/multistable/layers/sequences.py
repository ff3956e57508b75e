"""The timesteps of a batch: which are valid, where segments start, and how a scan respects both."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from multistable.layers.checks import check_lengths, check_reset
from multistable.ops import pieces
from multistable.ops.layer_scans import linear_layer

__all__ = ["Segment", "Steps", "at_steps", "last_valid", "scan_linear"]


class Segment(NamedTuple):
    """Steps ``start`` to ``end`` (exclusive) of one sequence, between two resets or the ends of its valid part."""

    sequence: int
    start: int
    end: int
    enters: bool
    """Whether it begins with the caller's initial state: the first segment, unless it has a reset mark itself."""
    last: bool
    """Whether it ends the sequence."""


@dataclass(frozen=True)
class Steps:
    """The timesteps of a padded batch: which are valid, and where the state starts anew.

    ``lengths [B]`` counts the valid steps and ``valid`` has the layout of the input with a last axis of 1; both are
    None if all steps are valid. ``reset`` and ``reset_reverse`` are ``[B, T]``, or None: before a marked step the
    state of that direction is zero.
    """

    B: int
    batch_first: bool
    lengths: Tensor | None
    valid: Tensor | None
    reset: Tensor | None
    reset_reverse: Tensor | None

    @classmethod
    def of(
        cls, x: Tensor, batch_first: bool, reset: Tensor | None, lengths: Tensor | None, both_ways: bool = True
    ) -> "Steps":
        """From an input ``[T, B, D]`` or ``[B, T, D]`` and the caller's ``reset`` and ``lengths``.

        ``both_ways=False``: the caller will not read ``reset_reverse``; if the sequence is cut, it takes an exchange.
        """
        if x.ndim != 3:
            raise ValueError(f"input must have 2 or 3 dimensions (unbatched or batched), got shape {list(x.shape)}")
        B, T = x.shape[:2] if batch_first else (x.shape[1], x.shape[0])
        valid = reset_reverse = None
        if lengths is not None:
            lengths = check_lengths(lengths, B, T).to(x.device)
            valid = torch.arange(T, device=x.device) < lengths[:, None]  # [B, T]
        if reset is not None:
            empty = T == 0 and pieces.current() is None
            reset = None if empty else check_reset(reset, x.shape[:2], x.device)  # no step, no segment
        if reset is not None:
            reset = reset if batch_first else reset.transpose(0, 1)
            reset = reset if valid is None else reset & valid  # marks in padding do not count
            if both_ways:
                # A mark at t starts a segment; read backwards, the segment before it starts at t - 1.
                reset_reverse = torch.cat([reset, _mark_after(reset)], dim=1)[:, 1:].contiguous()
        if valid is not None:
            valid = (valid if batch_first else valid.transpose(0, 1)).unsqueeze(-1)
        return cls(B, batch_first, lengths, valid, reset, reset_reverse)

    def swap_layout(self, x: Tensor) -> Tensor:
        """From the layout of the input to ``[B, T, ...]``, or back."""
        return x if self.batch_first else x.transpose(0, 1)

    def with_batch_first(self) -> "Steps":
        """The same steps for an input ``[B, T, D]``."""
        valid = self.valid if self.batch_first or self.valid is None else self.valid.transpose(0, 1)
        return replace(self, batch_first=True, valid=valid)

    def reset_of(self, reverse: bool) -> Tensor | None:
        """The marks of one direction, ``[B, T]``, or None."""
        return self.reset_reverse if reverse else self.reset

    def zero_padding(self, x: Tensor) -> Tensor:
        """``x`` with zeros at the steps that are not valid, as ``pad_packed_sequence`` leaves them."""
        return x if self.valid is None else torch.where(self.valid, x, torch.zeros_like(x))

    def at_last_segment(self, h: Tensor, h_last: Tensor, reverse: bool) -> Tensor:
        """The state ``[B, N]`` after each sequence's last segment; ``h`` has the layout of the input.

        ``h_last`` is that after the last step of the scan. The reverse direction ends its last segment earlier, at that
        segment's first step.
        """
        if not reverse or self.reset is None:
            return h_last
        h = self.swap_layout(h)  # [B, T, N]
        cut = pieces.current()
        if h.shape[1] == 0:
            here = h.sum(dim=1)
        else:
            positions = torch.arange(h.shape[1], device=h.device)
            start = torch.where(self.reset, positions, torch.zeros_like(positions)).amax(dim=1)
            here = at_steps(h, start[:, None]).squeeze(1)
        marked = self.reset.any(dim=1)
        return torch.where(marked[:, None], here, h_last) if cut is None else cut.choose(here, marked, h_last)

    def at_end(self, h: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
        """The state ``[B, S]`` after the last valid step of a scan, out of all its states ``h [B, T, S]``; h0 where no
        step is valid.

        If the sequence is cut, that step is another rank's on all ranks but one.
        """
        T, cut = h.shape[1], pieces.current()
        own = h[:, 0] if reverse and T > 0 else last_valid(h, self.lengths)
        if cut is None and self.lengths is None and T > 0:
            return own
        h0 = torch.zeros_like(own) if h0 is None else h0.to(own.dtype)
        has = pieces.has_steps(self.lengths, self.B, T, own.device)
        return torch.where(has[:, None], own, h0) if cut is None else cut.choose(own, has, h0, first=reverse)

    def reverse_valid(self, x: Tensor) -> Tensor:
        """``x`` in the layout of the input with the valid part of each sequence reversed; its own inverse."""
        axis = 1 if self.batch_first else 0
        if self.lengths is None:
            return x.flip(axis)
        index = self.reversed_index(x.shape[axis])
        return at_steps(x, index if self.batch_first else index.T, axis)

    def reset_reversed(self) -> Tensor | None:
        """The marks of the reverse direction, ``[B, T]``, for a scan forwards over :meth:`reverse_valid`."""
        marks = self.reset_reverse
        if marks is None or self.lengths is None:
            return None if marks is None else marks.flip(1)
        return marks.gather(1, self.reversed_index(marks.shape[1]))

    def reversed_index(self, T: int) -> Tensor:
        """``[B, T]``: the step that moves to each place when the valid part of each sequence is reversed."""
        assert self.lengths is not None
        t, lengths = torch.arange(T, device=self.lengths.device), self.lengths[:, None]
        return torch.where(t < lengths, lengths - 1 - t, t)

    def segments(self, T: int) -> list[Segment]:
        """All segments of all sequences, in order. Reads ``lengths`` and ``reset``, so it waits for a GPU."""
        lengths = [T] * self.B if self.lengths is None else cast(Any, self.lengths).tolist()
        marks: list[list[int]] = [[] for _ in range(self.B)]
        if self.reset is not None:
            pairs: list[tuple[int, int]] = cast(Any, self.reset.nonzero()).tolist()
            for sequence, t in pairs:
                marks[sequence].append(t)
        segments: list[Segment] = []
        for sequence, (length, starts) in enumerate(zip(lengths, marks, strict=True)):
            bounds = [0, *(t for t in starts if t > 0), length] if length > 0 else []
            for start, end in pairwise(bounds):
                enters = start == 0 and 0 not in starts
                segments.append(Segment(sequence, start, end, enters, end == length))
        return segments


def at_steps(x: Tensor, index: Tensor, axis: int = 1) -> Tensor:
    """``x [B, T, N]`` at the steps ``index [B, K]``: ``[B, K, N]``; with axis 0 ``[T, B, N]`` at ``[K, B]``.

    Not by ``take_along_dim``: with it ``torch.export`` takes all sizes for constants.
    """
    return x.gather(axis, index[..., None].expand(*index.shape, x.shape[2]))


def last_valid(x: Tensor, lengths: Tensor | None) -> Tensor:
    """``x [B, T, N]`` at the last valid step of each sequence, ``[B, N]``; at the first step where none is valid.

    If T is 0, zeros that depend on x: every rank of a cut sequence must have the same graph.
    """
    if x.shape[1] == 0:
        return x.sum(dim=1)
    return x[:, -1] if lengths is None else at_steps(x, (lengths - 1).clamp(min=0)[:, None]).squeeze(1)


def scan_linear(
    a: Tensor, b: Tensor, h0: Tensor | None, steps: Steps, reverse: bool, *, pairs: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """States of ``h_t = a_t h_{t-1} + b_t``, shaped like ``b``, and the last one ``[B, N]``.

    ``b`` has the layout of the input, ``a`` too or is ``[N]``. Padding must keep the state, ``h = 1 * h + 0``.
    """
    options: dict[str, Any] = {"pairs": pairs, "time_major": not steps.batch_first, "backend": backend}
    h, h_last = linear_layer(a, b, h0, reset=steps.reset_of(reverse), reverse=reverse, **options)
    return h, steps.at_last_segment(h, h_last, reverse)


def _mark_after(reset: Tensor) -> Tensor:
    """``[B, 1]``: the mark of the step after the last one, which is another rank's if the sequence is cut."""
    cut = pieces.current()
    return reset.new_zeros(reset.shape[0], 1) if cut is None else cut.mark_after(reset)[:, None]
