"""What every cell shares with ``torch.nn.GRU``: layouts, packed and unbatched input, padding, segments."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

__all__ = [
    "Steps",
    "check_input",
    "check_step_state",
    "initial_states",
    "run_loop",
    "run_packed",
    "run_padded",
    "run_unbatched",
]


class Segment(NamedTuple):
    """Steps ``start`` to ``end`` (exclusive) of one sequence, between two resets or the ends of its valid part."""

    sequence: int
    start: int
    end: int
    enters: bool
    """Whether it begins with the state that the caller gave: the first segment, unless marked itself."""
    last: bool
    """Whether it ends the sequence."""


@dataclass(frozen=True)
class Steps:
    """The timesteps of a padded batch: which are valid, and where the state starts anew.

    ``lengths [B]`` counts the valid steps and ``valid`` has the layout of the input with a last axis of 1; both are
    None if all steps are valid. ``reset`` and ``reset_reverse`` are ``[B, T]``, or None.
    """

    B: int
    batch_first: bool
    lengths: Tensor | None
    valid: Tensor | None
    reset: Tensor | None
    reset_reverse: Tensor | None

    @classmethod
    def of(cls, x: Tensor, batch_first: bool, reset: Tensor | None, lengths: Tensor | None) -> "Steps":
        """From an input ``[T, B, D]`` or ``[B, T, D]`` and what the caller says of it."""
        if x.ndim != 3:
            raise ValueError(f"input must have 2 or 3 dimensions (unbatched or batched), got {x.ndim}")
        B, T = x.shape[:2] if batch_first else (x.shape[1], x.shape[0])
        valid = None
        if lengths is not None:
            lengths = _check_lengths(lengths, B, T).to(x.device)
            valid = torch.arange(T, device=x.device) < lengths[:, None]  # [B, T]
        if reset is not None:
            reset = _check_reset(reset, x.shape[:2], x.device) if T > 0 else None  # no step, no segment
        if reset is None:
            reset_reverse = None
        else:
            reset = reset if batch_first else reset.transpose(0, 1)
            reset = reset if valid is None else reset & valid  # what padding says does not count
            # A mark at t starts a segment; read backwards, the segment before it starts at t - 1.
            reset_reverse = torch.cat([reset[:, 1:], torch.zeros_like(reset[:, :1])], dim=1)
        if valid is not None:
            valid = (valid if batch_first else valid.transpose(0, 1)).unsqueeze(-1)
        return cls(B, batch_first, lengths, valid, reset, reset_reverse)

    def resets(self, reverse: bool) -> Tensor | None:
        """``[B, T]``: before which steps the state of a direction is zero, or None."""
        return self.reset_reverse if reverse else self.reset

    def zero_padding(self, x: Tensor) -> Tensor:
        """``x`` with zeros at the steps that are not valid, as ``pad_packed_sequence`` leaves them."""
        return x if self.valid is None else torch.where(self.valid, x, torch.zeros_like(x))

    def last_state(self, h: Tensor, h_last: Tensor, reverse: bool) -> Tensor:
        """``h_n [B, N]`` of one direction: where its scan ended or, backwards with resets, that of the last segment."""
        return self.at_last_segment(h) if reverse and self.reset is not None else h_last

    def at_last_segment(self, h: Tensor) -> Tensor:
        """Of states in the layout of the input, those where each sequence's last segment starts: ``[B, N]``."""
        assert self.reset is not None
        h = h if self.batch_first else h.transpose(0, 1)  # [B, T, N]
        positions = torch.arange(h.shape[1], device=h.device)
        start = torch.where(self.reset, positions, torch.zeros_like(positions)).amax(dim=1)
        return at_steps(h, start[:, None]).squeeze(1)

    def at_last_valid(self, h: Tensor, h0: Tensor | None) -> Tensor:
        """Of states in the layout of the input, that of each sequence's last valid step, ``[B, N]``; h0 if none is."""
        assert self.lengths is not None
        h = h if self.batch_first else h.transpose(0, 1)  # [B, T, N]
        h0 = h.new_zeros(h.shape[0], h.shape[2]) if h0 is None else h0.to(h.dtype)
        if h.shape[1] == 0:
            return h0
        last = at_steps(h, (self.lengths - 1).clamp(min=0)[:, None]).squeeze(1)
        return torch.where(self.lengths[:, None] > 0, last, h0)

    def turn(self, x: Tensor) -> Tensor:
        """``x`` in the layout of the input with the valid part of each sequence turned around; its own inverse."""
        axis = 1 if self.batch_first else 0
        index = self.turned_index(x.shape[axis])
        return at_steps(x, index if self.batch_first else index.T, axis)

    def turned_index(self, T: int) -> Tensor:
        """``[B, T]``: the step that stands at each place once the valid part of each sequence is turned around."""
        assert self.lengths is not None
        t, lengths = torch.arange(T, device=self.lengths.device), self.lengths[:, None]
        return torch.where(t < lengths, lengths - 1 - t, t)

    def segments(self, T: int) -> list[Segment]:
        """All segments of all sequences, in order; this reads ``lengths`` and ``reset`` and so waits for a GPU."""
        lengths = [T] * self.B if self.lengths is None else self.lengths.tolist()
        marks: list[list[int]] = [[] for _ in range(self.B)]
        if self.reset is not None:
            for sequence, t in self.reset.nonzero().tolist():
                marks[sequence].append(t)
        found = []
        for sequence, (length, starts) in enumerate(zip(lengths, marks, strict=True)):
            inner = [t for t in starts if t > 0]
            bounds = [0, *inner, length] if length > 0 else []
            for start, end in pairwise(bounds):
                enters = start == 0 and 0 not in starts
                found.append(Segment(sequence, start, end, enters, end == length))
        return found


def at_steps(x: Tensor, index: Tensor, axis: int = 1) -> Tensor:
    """``x [B, T, N]`` at the steps ``index [B, K]``: ``[B, K, N]``; with axis 0 ``[T, B, N]`` at ``[K, B]``.

    Not by ``take_along_dim``: with it ``torch.export`` takes all sizes for constants.
    """
    return x.gather(axis, index[..., None].expand(*index.shape, x.shape[2]))


def run_padded(
    scan: Callable[..., tuple[Tensor, Tensor]], b: Tensor, h0: Tensor | None, steps: Steps, reverse: bool
) -> tuple[Tensor, Tensor]:
    """States and last state ``[B, N]`` of a scan whose state padding would change, ``scan(b, h0, reset=, reverse=)``.

    Forwards, the last state is taken where the sequence ends; backwards, the valid part is turned around first, so that
    padding comes last there too.
    """
    padded, reset = steps.lengths is not None, steps.resets(reverse)
    turned = reverse and padded
    if turned:
        b = steps.turn(b)
        reset = None if reset is None else reset.gather(1, steps.turned_index(reset.shape[1]))
    h, h_last = scan(b, h0, reset=reset, reverse=reverse and not padded)
    if padded:
        h_last = steps.at_last_valid(h, h0)
    h = steps.turn(h) if turned else h
    if reverse and steps.reset is not None:
        h_last = torch.where(steps.reset.any(dim=1)[:, None], steps.at_last_segment(h), h_last)
    return h, h_last


def run_loop(
    law: Callable[[Tensor, Tensor], Tensor], proj: Tensor, h0: Tensor, steps: Steps, reverse: bool
) -> tuple[Tensor, Tensor]:
    """States and last state ``[B, N]`` of a law that looks at the state, ``h = law(proj_t, h)``, step by step."""
    axis = 1 if steps.batch_first else 0
    # Cut once: the backward of a slice per step would write T gradients of the whole sequence.
    inputs, h = proj.unbind(axis), h0.to(proj.dtype)
    valid = None if steps.valid is None else steps.valid.unbind(axis)  # [B, 1] each
    reset = steps.resets(reverse)
    marks = None if reset is None else reset[..., None].unbind(1)  # [B, 1] each
    states = [h] * len(inputs)
    for t in reversed(range(len(inputs))) if reverse else range(len(inputs)):
        start = h if marks is None else torch.where(marks[t], torch.zeros_like(h), h)
        new = law(inputs[t], start)
        states[t] = h = new if valid is None else torch.where(valid[t], new, h)
    output = torch.stack(states, dim=axis) if states else proj.new_zeros(*proj.shape[:2], h.shape[-1])
    return output, steps.last_state(output, h, reverse)


def check_input(module: nn.Module, name: str, x: Tensor) -> None:
    """Refuse what is no tensor of floats, and one of another dtype or device than the weights.

    Under autocast, which converts them, dtypes may differ.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {x.dtype}")
    if x.is_nested:
        raise TypeError(f"{name} must be a padded tensor or a PackedSequence, got a nested tensor")
    if torch.compiler.is_compiling():  # the compiler would guard every parameter, for an error that torch raises, too
        return
    weight = next(module.parameters(), None)  # a replica of DataParallel has none
    if weight is None:
        return
    if x.device != weight.device:
        raise ValueError(f"{name} must be on {weight.device} like the weights, got {x.device}")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(f"{name} must have the dtype of the weights, {weight.dtype}, got {x.dtype}")


def check_step_state(name: str, state: Tensor, shape: tuple[int, ...], x: Tensor) -> None:
    """Refuse a state before one timestep that is no tensor of floats of this shape on the device of the input."""
    if not isinstance(state, Tensor):
        raise TypeError(f"{name} must be one tensor, got {type(state).__name__}")
    if state.shape != shape:
        raise ValueError(f"{name} must have shape {list(shape)}, got {list(state.shape)}")
    if not state.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {state.dtype}")
    if state.device != x.device:
        raise ValueError(f"{name} must be on {x.device} like the input, got {state.device}")


def initial_states(rnn: Any, x: Tensor, B: int, hx: Tensor | None) -> list[Tensor | None]:
    """One state or None for each layer and direction."""
    if x.shape[-1] != rnn.input_size:
        raise ValueError(f"input must have {rnn.input_size} features (input_size), got {x.shape[-1]}")
    count = rnn.num_layers * len(rnn.suffixes)
    if hx is None:
        return [None] * count
    if hx.shape != (count, B, rnn.state_size):
        raise ValueError(
            f"hx must have shape {[count, B, rnn.state_size]} (layers * directions, B, N), got {list(hx.shape)}"
        )
    if not hx.is_floating_point():
        raise TypeError(f"hx must be floating point, got {hx.dtype}")
    if hx.device != x.device:
        raise ValueError(f"hx must be on {x.device} like the input, got {hx.device}")
    return list(hx.unbind(0))


def run_unbatched(
    rnn: Any, x: Tensor, hx: Tensor | None, reset: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run ``rnn`` on one sequence ``[T, D]`` as on a batch of one."""
    if lengths is not None:
        raise ValueError("lengths needs batched input: an unbatched sequence can be cut instead")
    if hx is not None and hx.ndim != 2:
        raise ValueError(f"hx must have 2 dimensions for unbatched input, got {hx.ndim}")
    axis = 0 if rnn.batch_first else 1
    hx = None if hx is None else hx.unsqueeze(1)
    reset = None if reset is None else _as_tensor("reset", reset).unsqueeze(axis)
    output, h_n = rnn.run_batch(x.unsqueeze(axis), hx, reset)
    return output.squeeze(axis), h_n.squeeze(1)


def run_packed(
    rnn: Any, packed: PackedSequence, hx: Tensor | None, reset: Tensor | None, lengths: Tensor | None
) -> tuple[PackedSequence, Tensor]:
    """Run ``rnn`` on a packed batch as on a padded one. States are in the caller's order of sequences."""
    if reset is not None or lengths is not None:
        raise ValueError("reset and lengths go with padded input: a PackedSequence has its own lengths")
    data, batch_sizes, sorted_indices, unsorted_indices = packed
    check_input(rnn, "input", data)
    if data.ndim != 2:
        raise ValueError(f"input must be packed sequences [T, {rnn.input_size}], got sequences {_packed_shape(data)}")
    x, lengths = pad_packed_sequence(PackedSequence(data, batch_sizes), batch_first=rnn.batch_first)
    if hx is not None and sorted_indices is not None:
        initial_states(rnn, x, int(batch_sizes[0]), hx)  # refuses a wrong one before its sequences are put in order
        hx = hx.index_select(1, sorted_indices)
    output, h_n = rnn.run_batch(x, hx, lengths=lengths)
    output = pack_padded_sequence(output, lengths, batch_first=rnn.batch_first).data
    h_n = h_n if unsorted_indices is None else h_n.index_select(1, unsorted_indices)
    return PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices), h_n


def _packed_shape(data: Tensor) -> str:
    """The shape of each sequence in a packed batch, whose own lengths differ."""
    return f"[{', '.join(['T', *map(str, data.shape[1:])])}]"


def _as_tensor(name: str, x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x
    try:
        return torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be a tensor or nested lists, got {x!r}") from error


def _check_lengths(lengths: Tensor, B: int, T: int) -> Tensor:
    lengths = _as_tensor("lengths", lengths)
    if lengths.shape != (B,) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ValueError(f"lengths must be {B} integers (one per sequence), got {lengths.dtype} {list(lengths.shape)}")
    # Only lengths on the CPU are looked at: on a GPU, reading them would wait for the device.
    if lengths.device.type == "cpu" and not torch.compiler.is_compiling() and ((lengths < 0) | (lengths > T)).any():
        raise ValueError(f"lengths must lie between 0 and T = {T}, got {lengths.tolist()}")
    return lengths.clamp(0, T)  # those that were not looked at must not lead outside


def _check_reset(reset: Tensor, shape: torch.Size, device: torch.device) -> Tensor:
    reset = _as_tensor("reset", reset)
    if reset.dtype != torch.bool or reset.shape != shape:
        raise ValueError(f"reset must be boolean of shape {list(shape)}, got {reset.dtype} {list(reset.shape)}")
    if reset.device != device:
        raise ValueError(f"reset must be on {device} like the input, got {reset.device}")
    return reset
