"""The timesteps of a batch: which are valid, where segments start, and how a scan respects both."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from multistable.ops import pieces
from multistable.ops.layer_scans import linear_layer
from multistable.ops.operators import transformed

__all__ = [
    "Segment",
    "Steps",
    "as_tensor",
    "at_steps",
    "check_input",
    "check_state",
    "lengths_of",
    "scan_linear",
    "scan_padded",
    "scan_valid",
]


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
            lengths = _check_lengths(lengths, B, T).to(x.device)
            valid = torch.arange(T, device=x.device) < lengths[:, None]  # [B, T]
        if reset is not None:
            empty = T == 0 and pieces.current() is None
            reset = None if empty else _check_reset(reset, x.shape[:2], x.device)  # no step, no segment
        if reset is not None:
            reset = reset if batch_first else reset.transpose(0, 1)
            reset = reset if valid is None else reset & valid  # marks in padding do not count
            if both_ways:
                # A mark at t starts a segment; read backwards, the segment before it starts at t - 1.
                reset_reverse = torch.cat([reset, _mark_after(reset)], dim=1)[:, 1:].contiguous()
        if valid is not None:
            valid = (valid if batch_first else valid.transpose(0, 1)).unsqueeze(-1)
        return cls(B, batch_first, lengths, valid, reset, reset_reverse)

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
        h = h if self.batch_first else h.transpose(0, 1)  # [B, T, N]
        cut = pieces.current()
        if h.shape[1] == 0:
            here = h.sum(dim=1)
        else:
            positions = torch.arange(h.shape[1], device=h.device)
            start = torch.where(self.reset, positions, torch.zeros_like(positions)).amax(dim=1)
            here = at_steps(h, start[:, None]).squeeze(1)
        marked = self.reset.any(dim=1)
        return torch.where(marked[:, None], here, h_last) if cut is None else cut.choose(here, marked, h_last)

    def at_last_valid(self, h: Tensor, h0: Tensor | None) -> Tensor:
        """States at each sequence's last valid step, ``[B, N]``, or h0 if it has none; ``h`` as in the input."""
        assert self.lengths is not None
        h = h if self.batch_first else h.transpose(0, 1)  # [B, T, N]
        h0 = h.new_zeros(h.shape[0], h.shape[2]) if h0 is None else h0.to(h.dtype)
        if h.shape[1] == 0:
            return h0.clone(memory_format=torch.contiguous_format)
        last = at_steps(h, (self.lengths - 1).clamp(min=0)[:, None]).squeeze(1)
        return torch.where(self.lengths[:, None] > 0, last, h0)

    def reverse_valid(self, x: Tensor) -> Tensor:
        """``x`` in the layout of the input with the valid part of each sequence reversed; its own inverse."""
        axis = 1 if self.batch_first else 0
        index = self.reversed_index(x.shape[axis])
        return at_steps(x, index if self.batch_first else index.T, axis)

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


def scan_linear(
    a: Tensor, b: Tensor, h0: Tensor | None, steps: Steps, reverse: bool, *, pairs: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """States of ``h_t = a_t h_{t-1} + b_t``, shaped like ``b``, and the last one ``[B, N]``.

    ``b`` has the layout of the input, ``a`` too or is ``[N]``. Padding must keep the state, ``h = 1 * h + 0``.
    """
    options: dict[str, Any] = {"pairs": pairs, "time_major": not steps.batch_first, "backend": backend}
    h, h_last = linear_layer(a, b, h0, reset=steps.reset_of(reverse), reverse=reverse, **options)
    return h, steps.at_last_segment(h, h_last, reverse)


def scan_padded(
    scan: Callable[..., tuple[Tensor, Tensor]], b: Tensor, h0: Tensor | None, steps: Steps, reverse: bool
) -> tuple[Tensor, Tensor]:
    """States and last state ``[B, N]`` of ``scan(b, h0, reset=, reverse=)``, whose state padding would change."""
    h, h_last = scan_valid(scan, b, h0, steps, reverse)
    return h, steps.at_last_segment(h, h_last, reverse)


def scan_valid(
    scan: Callable[..., tuple[Tensor, Tensor]], b: Tensor, h0: Tensor | None, steps: Steps, reverse: bool
) -> tuple[Tensor, Tensor]:
    """:func:`scan_padded`, but the last state of the reverse direction is always that at the first step.

    Forwards, the last state is taken where the sequence ends; backwards, the valid part is reversed first, so that
    padding comes last there too.
    """
    padded, reset = steps.lengths is not None, steps.reset_of(reverse)
    turned = reverse and padded
    if turned:
        b = steps.reverse_valid(b)
        reset = None if reset is None else reset.gather(1, steps.reversed_index(reset.shape[1]))
    h, h_last = scan(b, h0, reset=reset, reverse=reverse and not padded)
    if padded:
        h_last = steps.at_last_valid(h, h0)
    return steps.reverse_valid(h) if turned else h, h_last


def _mark_after(reset: Tensor) -> Tensor:
    """``[B, 1]``: the mark of the step after the last one, which is another rank's if the sequence is cut."""
    cut = pieces.current()
    return reset.new_zeros(reset.shape[0], 1) if cut is None else cut.mark_after(reset)[:, None]


def check_input(module: nn.Module, name: str, x: object) -> None:
    """Raise unless ``x`` is a float tensor with the dtype and on the device of the weights.

    Under autocast, which converts them, dtypes may differ.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {x.dtype}")
    if x.is_nested:
        raise TypeError(f"{name} must be a padded tensor or a PackedSequence, got a nested tensor")
    if torch.compiler.is_compiling():  # the compiler would guard every parameter, for errors that torch raises as well
        return
    weight = _any_parameter(module)
    if weight is None:
        return
    if x.device != weight.device:
        raise ValueError(f"{name} must be on {weight.device} like the weights, got {x.device}")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(f"{name} must have the dtype of the weights, {weight.dtype}, got {x.dtype}")


def _any_parameter(module: nn.Module) -> Tensor | None:
    """One of the weights, or None: a replica of DataParallel has none. ``parameters`` takes 4 us, this 0.5."""
    inside: Any = module
    for x in inside._parameters.values():
        if x is not None:
            return x
    for child in inside._modules.values():
        if child is not None and (found := _any_parameter(child)) is not None:
            return found
    return None


def check_state(name: str, state: object, shape: tuple[int, ...], x: Tensor, axes: str = "") -> None:
    """Raise unless ``state`` is a float tensor of this shape on x's device. ``axes`` explains the shape."""
    if not isinstance(state, Tensor):
        kind = type(state).__name__
        advice = " (for code of nn.LSTM see LikeLSTM)" if kind == "tuple" else ""
        raise TypeError(f"{name} must be one tensor, got {kind}{advice}")
    if state.shape != shape:
        raise ValueError(f"{name} must have shape {list(shape)}{axes}, got {list(state.shape)}")
    if not state.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {state.dtype}")
    if state.device != x.device:
        raise ValueError(f"{name} must be on {x.device} like the input, got {state.device}")


def as_tensor(name: str, x: object) -> Tensor:
    """``x`` if it is a tensor, else the tensor of its nested lists."""
    if isinstance(x, Tensor):
        return x
    try:
        return torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be a tensor or nested lists, got {x!r}") from error


def lengths_of(mask: object, shape: torch.Size, batch_first: bool) -> Tensor:
    """Lengths ``[B]`` of right-padded sequences, given a boolean mask of their valid steps.

    ``shape`` is that of the mask, [T, B] or [B, T]. On a GPU its values are not checked, as those of ``lengths``.
    """
    mask = as_tensor("mask", mask)
    if mask.dtype != torch.bool or mask.shape != shape:
        raise ValueError(f"mask must be boolean of shape {list(shape)}, got {mask.dtype} {list(mask.shape)}")
    mask = mask if batch_first else mask.transpose(0, 1)
    lengths = mask.sum(dim=1)
    if _has_numbers(mask) and not torch.equal(mask, torch.arange(mask.shape[1], device=mask.device) < lengths[:, None]):
        raise ValueError("mask must be True at the first steps of each sequence and False at all later ones")
    return lengths


def _check_lengths(lengths: object, B: int, T: int) -> Tensor:
    lengths = as_tensor("lengths", lengths)
    if lengths.shape != (B,) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ValueError(f"lengths must be {B} integers (one per sequence), got {lengths.dtype} {list(lengths.shape)}")
    lengths = lengths.long()  # a byte cannot be compared with T = 300
    if _has_numbers(lengths) and ((lengths < 0) | (lengths > T)).any():
        raise ValueError(f"lengths must lie between 0 and T = {T}, got {cast(Any, lengths).tolist()}")
    return lengths.clamp(0, T)  # values that were not checked must not index outside


def _has_numbers(x: Tensor) -> bool:
    """Whether the numbers of ``x`` can be checked: on a GPU that would wait for the device, and a compiler or ``vmap``
    has none."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not transformed()


def _check_reset(reset: object, shape: torch.Size, device: torch.device) -> Tensor:
    reset = as_tensor("reset", reset)
    if reset.dtype != torch.bool or reset.shape != shape:
        raise ValueError(f"reset must be boolean of shape {list(shape)}, got {reset.dtype} {list(reset.shape)}")
    if reset.device != device:
        raise ValueError(f"reset must be on {device} like the input, got {reset.device}")
    return reset
