"""Checkpoints: named tensors and a JSON text in one safetensors file, written whole or not at all, and checked."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from multistable.files import UNREADABLE, locked, split_safetensors, write_atomically

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
    import safetensors.torch

    on_cpu = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    text = json.dumps(info, sort_keys=True)
    _, numbers = split_safetensors(safetensors.torch.save(on_cpu))
    sha256 = digest(numbers, text)
    write_atomically(path, safetensors.torch.save(on_cpu, metadata={"info": text, "sha256": sha256}))


def load(path: Path, way_out: str = WAY_OUT) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors on the CPU, and ``info``; nothing in the file is ever executed. ``way_out``: what to do about damage."""
    import safetensors
    import safetensors.torch

    content = path.read_bytes()
    try:
        tensors = safetensors.torch.load(content)
        metadata, numbers = split_safetensors(content)
        text, expected = metadata["info"], metadata["sha256"]
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"checkpoint {path} is truncated or corrupt: {error}; {way_out}") from error
    found = digest(numbers, text)
    if found != expected:
        raise CheckpointError(f"checkpoint {path} is corrupt: its checksum is {found}, expected {expected}; {way_out}")
    return tensors, json.loads(text)


def restore(live: dict[str, Tensor], saved: dict[str, Tensor], source: Path | str) -> None:
    """Copy saved tensors into the live ones, in place: a CUDA graph keeps their addresses."""
    if live.keys() != saved.keys():
        raise CheckpointError(f"checkpoint {source} does not fit: it differs in {sorted(live.keys() ^ saved.keys())}")
    for name, tensor in live.items():
        if tensor.shape != saved[name].shape:
            got, wanted = list(saved[name].shape), list(tensor.shape)
            raise CheckpointError(f"checkpoint {source} does not fit: {name} must have shape {wanted}, got {got}")
        tensor.detach().copy_(saved[name])


def digest(numbers: memoryview, text: str) -> str:
    found = hashlib.sha256(numbers)
    found.update(text.encode())
    return found.hexdigest()
