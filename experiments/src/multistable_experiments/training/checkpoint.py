"""Checkpoints: named tensors and a JSON text in one safetensors file, written whole or not at all, with a checksum."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from multistable.models.tensors import load_tensors
from multistable.models.tensors import save_tensors as save
from multistable_experiments.files import DamagedFileError, locked, read_json, write_json

__all__ = ["Attempt", "CheckpointError", "InUseError", "alone_in", "hint_on_damage", "load", "restore", "save"]


class CheckpointError(RuntimeError):
    """A checkpoint, or another file in a run's folder, is damaged or belongs to something else."""


class InUseError(CheckpointError):
    """Another process computes the run."""


class Attempt:
    """The right to write in a run's folder. The newest attempt has it.

    A lock is lost without a word when a machine is cut off from a shared folder. The number in ``attempt.json`` is not:
    a process that finds a greater one there than its own has a successor, and stops.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "attempt.json"
        self.number = self.newest() + 1
        write_json(self.path, {"attempt": self.number, "machine": platform.node(), "process": os.getpid()})

    def newest(self) -> int:
        try:
            return int(read_json(self.path)["attempt"])
        except FileNotFoundError:
            return 0
        except (DamagedFileError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"{error}; remove {self.path}") from error

    def check(self) -> None:
        """Raise if another attempt has begun since."""
        if self.newest() != self.number:
            raise InUseError(f"{self.path.parent} is in use: another process has taken over this run")


@contextmanager
def alone_in(folder: Path) -> Iterator[Attempt]:
    """Lock the folder of a run; raise if another process holds it, because both would write the same files."""
    with locked(folder) as alone:
        if not alone:
            raise InUseError(f"{folder} is in use: another process computes this run")
        yield Attempt(folder)


@contextmanager
def hint_on_damage(hint: str) -> Iterator[None]:
    """Raise :class:`CheckpointError` for a damaged file, with a hint on what to do."""
    try:
        yield
    except DamagedFileError as error:
        raise CheckpointError(f"{error}; {hint}") from error


def load(path: Path, hint: str = "remove its folder to train again") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`save` wrote: tensors, on the CPU, and ``info``. ``hint``: what to do about damage."""
    with hint_on_damage(hint):
        tensors, info = load_tensors(path)
    if not info:
        raise CheckpointError(f"{path} has no record of a run; {hint}")
    return tensors, info


def restore(live: dict[str, Tensor], saved: dict[str, Tensor], source: Path | str) -> None:
    """Copy saved tensors into the live ones, in place: a CUDA graph keeps their addresses."""
    if live.keys() != saved.keys():
        raise CheckpointError(f"checkpoint {source} does not fit: it differs in {sorted(live.keys() ^ saved.keys())}")
    for name, tensor in live.items():
        if tensor.shape != saved[name].shape:
            got, expected = list(saved[name].shape), list(tensor.shape)
            raise CheckpointError(f"checkpoint {source} does not fit: {name} must have shape {expected}, got {got}")
        if tensor.dtype != saved[name].dtype:
            got, expected = saved[name].dtype, tensor.dtype
            raise CheckpointError(f"checkpoint {source} does not fit: {name} must be {expected}, got {got}")
        tensor.detach().copy_(saved[name])
