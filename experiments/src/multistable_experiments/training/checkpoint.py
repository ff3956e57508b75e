"""Checkpoints: named tensors and a JSON text in one safetensors file, written whole or not at all, and checked."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from multistable.models.tensors import DamagedFileError, load_tensors, save_tensors
from multistable_experiments.files import UNREADABLE, locked

__all__ = ["CheckpointError", "InUseError", "alone_in", "damage_named", "load", "restore", "save"]


WAY_OUT = "remove its folder to train anew"


class CheckpointError(RuntimeError):
    """A checkpoint, or another file in a run's folder, is damaged or belongs to something else."""


class InUseError(CheckpointError):
    """Another process is at work on the run."""


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Refuse to work in the folder of a run in which another process is at work: both would write the same files."""
    with locked(folder) as alone:
        if not alone:
            raise InUseError(f"{folder} is in use: another process computes this run")
        yield


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Around the reading of a JSON file in a run's folder: if it is not what it should be, the error names it."""
    try:
        yield
    except UNREADABLE as error:
        raise CheckpointError(
            f"{path} is truncated or corrupt: {error}; remove it to compute anew what it held"
        ) from error


def save(path: Path, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
    """``info`` must be JSON; the checksum covers the tensors' bytes and ``info``."""
    save_tensors(path, tensors, info)


def load(path: Path, way_out: str = WAY_OUT) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors on the CPU, and ``info``. ``way_out``: what to do about damage."""
    try:
        tensors, info = load_tensors(path)
    except DamagedFileError as error:
        raise CheckpointError(f"checkpoint {error}; {way_out}") from error
    if not info:
        raise CheckpointError(f"checkpoint {path} has no record of a run; {way_out}")
    return tensors, info


def restore(live: dict[str, Tensor], saved: dict[str, Tensor], source: Path | str) -> None:
    """Copy saved tensors into the live ones, in place: a CUDA graph keeps their addresses."""
    if live.keys() != saved.keys():
        raise CheckpointError(f"checkpoint {source} does not fit: it differs in {sorted(live.keys() ^ saved.keys())}")
    for name, tensor in live.items():
        if tensor.shape != saved[name].shape:
            got, wanted = list(saved[name].shape), list(tensor.shape)
            raise CheckpointError(f"checkpoint {source} does not fit: {name} must have shape {wanted}, got {got}")
        tensor.detach().copy_(saved[name])
