"""Validate the arguments of layers: input, state, reset, lengths, mask."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from multistable.ops.operators import transformed

__all__ = ["as_tensor", "check_input", "check_lengths", "check_reset", "check_state", "lengths_of"]


def check_input(module: nn.Module, name: str, x: object) -> None:
    """Raise unless ``x`` is a float tensor with the dtype and on the device of the weights.

    Under autocast dtypes may differ, because it converts them, except float64.
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
    converted = torch.is_autocast_enabled(x.device.type) and torch.float64 not in (x.dtype, weight.dtype)
    if x.dtype != weight.dtype and not converted:
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


def check_lengths(lengths: object, B: int, T: int) -> Tensor:
    """``lengths`` as int64 ``[B]``; raise unless they lie between 0 and T."""
    lengths = as_tensor("lengths", lengths)
    if lengths.shape != (B,) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ValueError(f"lengths must be {B} integers (one per sequence), got {lengths.dtype} {list(lengths.shape)}")
    lengths = lengths.long()  # a byte cannot be compared with T = 300
    if _has_numbers(lengths) and ((lengths < 0) | (lengths > T)).any():
        raise ValueError(f"lengths must lie between 0 and T = {T}, got {cast(Any, lengths).tolist()}")
    return lengths.clamp(0, T)  # values that were not checked must not index outside


def check_reset(reset: object, shape: torch.Size, device: torch.device) -> Tensor:
    """``reset`` as a tensor; raise unless it is boolean, of this shape and on this device."""
    reset = as_tensor("reset", reset)
    if reset.dtype != torch.bool or reset.shape != shape:
        raise ValueError(f"reset must be boolean of shape {list(shape)}, got {reset.dtype} {list(reset.shape)}")
    if reset.device != device:
        raise ValueError(f"reset must be on {device} like the input, got {reset.device}")
    return reset


def _has_numbers(x: Tensor) -> bool:
    """Whether the numbers of ``x`` can be checked: on a GPU that would wait for the device, and a compiler or ``vmap``
    has none."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not transformed()
