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
from multistable_experiments.mirror import Mirror

__all__ = ["Attempt", "CheckpointError", "InUseError", "alone_in", "hint_on_damage", "load", "restore", "save"]


class CheckpointError(RuntimeError):
    """A checkpoint, or another file in a run's folder, is damaged or belongs to something else."""


class InUseError(CheckpointError):
    """Another process computes the run."""


class Attempt:
    """The right to write in a run's folder. The newest attempt has it.

    A lock is lost without a word when a machine is cut off from a shared folder. The number in ``attempt.json`` is not:
    a process that finds a greater one there than its own has a successor, and stops. With a mirror, its claims decide
    in the same way between machines; an attempt starts with the files of the mirror, unless the last attempt was on
    this machine.
    """

    def __init__(self, folder: Path, mirror: Mirror | None = None) -> None:
        self.folder, self.path, self.mirror = folder, folder / "attempt.json", mirror
        if mirror is not None and mirror.is_at(self.place, folder):
            raise ValueError(f"mirror must be another place than {folder} itself")
        last = self.read()
        self.number, self.claim = last["attempt"] + 1, 0
        self.published: dict[str, tuple[int, int]] = {}
        if mirror is not None:
            here = last.get("claim") == mirror.newest(self.place)
            self.claim = mirror.claim(self.place)
            if not here:
                self.fetch(mirror)
        values = {"attempt": self.number, "machine": platform.node(), "process": os.getpid()}
        write_json(self.path, values | ({} if mirror is None else {"claim": self.claim}))

    @property
    def place(self) -> str:
        """Name of the folder in the mirror."""
        return f"runs/{self.folder.name}"

    def read(self) -> dict[str, Any]:
        """Read what the last attempt wrote; its number is 0 if there was none."""
        try:
            values = read_json(self.path)
            return values | {"attempt": int(values["attempt"])}
        except FileNotFoundError:
            return {"attempt": 0}
        except (DamagedFileError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"{error}; remove {self.path}") from error

    def check(self) -> None:
        """Raise if another attempt has started since."""
        taken = self.read()["attempt"] != self.number
        if taken or (self.mirror is not None and self.mirror.newest(self.place) != self.claim):
            raise InUseError(f"{self.path.parent} is in use: another process has taken over this run")

    def files(self) -> dict[str, tuple[int, int]]:
        """The files of the run, with their times and sizes."""
        paths = [
            path for path in self.folder.rglob("*") if path.is_file() and path.name not in (".lock", self.path.name)
        ]
        stats = {path.relative_to(self.folder).as_posix(): path.stat() for path in paths}
        return {name: (stat.st_mtime_ns, stat.st_size) for name, stat in stats.items()}

    def fetch(self, mirror: Mirror) -> None:
        """Replace the files of the folder with the mirror's, if it has any."""
        if mirror.names(self.place):
            for name in self.files():
                (self.folder / name).unlink()
            mirror.get(self.place, self.folder)

    def publish(self) -> None:
        """Make the mirror, if there is one, equal to the folder. A file that others refer to comes before them: the
        metrics and the best weights before the last ones, everything before the result."""
        if self.mirror is None:
            return
        self.check()
        found = self.files()
        changed = [name for name, state in found.items() if self.published.get(name) != state]
        order = ("metrics.jsonl", "best.safetensors", "last.safetensors", "result.json")
        self.mirror.put(self.place, self.folder, sorted(changed, key=lambda x: order.index(x) if x in order else -1))
        self.mirror.remove(self.place, [name for name in self.mirror.names(self.place) if name not in found])
        self.published = found


@contextmanager
def alone_in(folder: Path, mirror: Mirror | None = None) -> Iterator[Attempt]:
    """Lock the folder of a run; raise if another process holds it, because both would write the same files."""
    with locked(folder) as alone:
        if not alone:
            raise InUseError(f"{folder} is in use: another process computes this run")
        yield Attempt(folder, mirror)


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
