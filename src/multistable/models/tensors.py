"""Named tensors and a JSON record in one safetensors file: no pickle, written whole or not at all, with a checksum."""

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from multistable.models.atomic import write_atomically

__all__ = ["DamagedFileError", "load_tensors", "save_tensors"]


class DamagedFileError(ValueError):
    """A file is truncated, corrupt, or not a safetensors file."""


def save_tensors(path: Path, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
    """Write ``tensors`` and ``info``, which must be JSON; the checksum covers both. Equal content gives equal bytes."""
    safetensors = _safetensors()
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    info = json.loads(json.dumps(info))  # as it will be read: lists for tuples
    checksum = _checksum(_split(safetensors.save(stored))[1], info)
    # One entry, because safetensors writes several in random order.
    record = json.dumps({**info, "checksum": checksum})
    write_atomically(path, safetensors.save(stored, {"multistable": record}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors, on the CPU, and ``info``; nothing in the file is executed.

    A file written by another program has no record: its ``info`` is empty and nothing is checked.
    """
    safetensors, content = _safetensors(), path.read_bytes()
    try:
        tensors = safetensors.load(content)
        metadata, numbers = _split(content)
        info = json.loads(metadata.get("multistable", "{}"))
        expected = info.pop("checksum", None)
        old = info.pop("sha256", None)  # models saved by version 0.1.0 of 2026 have that of the numbers alone
    except Exception as error:  # safetensors raises its own kinds for each way in which a file can be broken
        raise DamagedFileError(f"{path} is truncated or not a safetensors file: {error}") from error
    if expected not in (None, _checksum(numbers, info)) or old not in (None, hashlib.sha256(numbers).hexdigest()):
        raise DamagedFileError(f"{path} is corrupt: its content does not match the checksum stored with it")
    return tensors, info


def _checksum(numbers: memoryview, info: dict[str, Any]) -> str:
    found = hashlib.sha256(numbers)
    found.update(json.dumps(info, sort_keys=True).encode())
    return found.hexdigest()


def _split(content: bytes) -> tuple[dict[str, str], memoryview]:
    """Metadata and numbers of a file: length of the header (8 bytes, little-endian), header (JSON), numbers."""
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]).get("__metadata__", {}), memoryview(content)[start:]


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("saving models needs safetensors: pip install 'multistable[files]'") from error
    return safetensors.torch
