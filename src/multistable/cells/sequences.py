"""What every cell shares with ``torch.nn.GRU``: layouts, packed and unbatched input, padding, segments."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

__all__ = ["Steps", "initial_states", "run_packed", "run_unbatched"]


@dataclass(frozen=True)
class Steps:
    """The timesteps of a padded batch: which are valid, and where the state starts anew.

    ``valid`` has the layout of the input with a last axis of 1, or is None if all steps are; ``reset`` and
    ``reset_reverse`` are ``[B, T]``, or None.
    """

    B: int
    batch_first: bool
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
            valid = torch.arange(T, device=x.device) < _check_lengths(lengths, B, T).to(x.device)[:, None]  # [B, T]
        if reset is None:
            reset_reverse = None
        else:
            reset = _check_reset(reset, x.shape[:2], x.device)
            reset = reset if batch_first else reset.transpose(0, 1)
            reset = reset if valid is None else reset & valid  # what padding says does not count
            # A mark at t starts a segment; read backwards, the segment before it starts at t - 1.
            reset_reverse = torch.cat([reset[:, 1:], torch.zeros_like(reset[:, :1])], dim=1)
        if valid is not None:
            valid = (valid if batch_first else valid.transpose(0, 1)).unsqueeze(-1)
        return cls(B, batch_first, valid, reset, reset_reverse)

    def zero_padding(self, x: Tensor) -> Tensor:
        """``x`` with zeros at the steps that are not valid, as ``pad_packed_sequence`` leaves them."""
        return x if self.valid is None else torch.where(self.valid, x, torch.zeros_like(x))

    def at_last_segment(self, h: Tensor) -> Tensor:
        """Of states in the layout of the input, those where each sequence's last segment starts: ``[B, N]``."""
        assert self.reset is not None
        h = h if self.batch_first else h.transpose(0, 1)  # [B, T, N]
        positions = torch.arange(h.shape[1], device=h.device)
        start = torch.where(self.reset, positions, torch.zeros_like(positions)).amax(dim=1)
        return h.take_along_dim(start[:, None, None], dim=1).squeeze(1)


def initial_states(rnn: Any, x: Tensor, B: int, hx: Tensor | None) -> list[Tensor | None]:
    """One state or None for each layer and direction."""
    if x.shape[-1] != rnn.input_size:
        raise ValueError(f"input must have {rnn.input_size} features (input_size), got {x.shape[-1]}")
    count = rnn.num_layers * len(rnn.suffixes)
    if hx is None:
        return [None] * count
    if hx.shape != (count, B, rnn.hidden_size):
        raise ValueError(
            f"h_0 must have shape {[count, B, rnn.hidden_size]} (layers * directions, B, N), got {list(hx.shape)}"
        )
    return list(hx.unbind(0))


def run_unbatched(
    rnn: Any, x: Tensor, hx: Tensor | None, reset: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Call ``rnn`` on one sequence ``[T, D]`` as on a batch of one."""
    if lengths is not None:
        raise ValueError("lengths needs batched input: an unbatched sequence can be cut instead")
    if hx is not None and hx.ndim != 2:
        raise ValueError(f"h_0 must have 2 dimensions for unbatched input, got {hx.ndim}")
    axis = 0 if rnn.batch_first else 1
    hx = None if hx is None else hx.unsqueeze(1)
    reset = None if reset is None else reset.unsqueeze(axis)
    output, h_n = rnn(x.unsqueeze(axis), hx, reset=reset)
    return output.squeeze(axis), h_n.squeeze(1)


def run_packed(
    rnn: Any, packed: PackedSequence, hx: Tensor | None, reset: Tensor | None, lengths: Tensor | None
) -> tuple[PackedSequence, Tensor]:
    """Call ``rnn`` on a packed batch as on a padded one. States are in the caller's order of sequences."""
    if reset is not None or lengths is not None:
        raise ValueError("reset and lengths go with padded input: a PackedSequence has its own lengths")
    data, batch_sizes, sorted_indices, unsorted_indices = packed
    x, lengths = pad_packed_sequence(PackedSequence(data, batch_sizes), batch_first=rnn.batch_first)
    if hx is not None and sorted_indices is not None:
        hx = hx.index_select(1, sorted_indices)
    output, h_n = rnn(x, hx, lengths=lengths)
    output = pack_padded_sequence(output, lengths, batch_first=rnn.batch_first).data
    h_n = h_n if unsorted_indices is None else h_n.index_select(1, unsorted_indices)
    return PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices), h_n


def _check_lengths(lengths: Tensor, B: int, T: int) -> Tensor:
    lengths = torch.as_tensor(lengths)
    if lengths.shape != (B,) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ValueError(f"lengths must be {B} integers (one per sequence), got {lengths.dtype} {list(lengths.shape)}")
    # On a GPU reading them would wait for the device, so only those on the CPU are looked at.
    if lengths.device.type == "cpu" and not torch.compiler.is_compiling() and ((lengths < 0) | (lengths > T)).any():
        raise ValueError(f"lengths must lie between 0 and T = {T}, got {lengths.tolist()}")
    return lengths


def _check_reset(reset: Tensor, shape: torch.Size, device: torch.device) -> Tensor:
    if reset.dtype != torch.bool or reset.shape != shape:
        raise ValueError(f"reset must be boolean of shape {list(shape)}, got {reset.dtype} {list(reset.shape)}")
    if reset.device != device:
        raise ValueError(f"reset must be on {device} like the input, got {reset.device}")
    return reset
