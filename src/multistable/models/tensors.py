"""Named tensors and a JSON record in one safetensors file with a checksum.

No pickle. A file is written completely or not at all.
"""

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from multistable.models.atomic import is_stream, write_atomically

__all__ = ["DamagedFileError", "import_extra", "load_tensors", "save_tensors"]


class DamagedFileError(ValueError):
    """A file is truncated, corrupt, or not what it should be."""


def save_tensors(path: Path, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
    """Write ``tensors`` and ``info``, which must be JSON. Equal content gives equal bytes.

    The checksum covers the names, dtypes, shapes and numbers of the tensors, and ``info``.
    """
    safetensors = import_extra("safetensors.torch", "files")
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header, numbers = _split(safetensors.save(stored))
    info = json.loads(json.dumps(info))  # as it will be read: lists for tuples
    # One entry, because safetensors writes several in random order.
    record = json.dumps({"info": info, "checksum": _checksum(header, numbers, info)})
    write_atomically(path, safetensors.save(stored, {"multistable": record}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors, onto the CPU, and ``info``; nothing in the file is executed.

    A file written by another program has no record: its ``info`` is empty and nothing is checked.
    """
    safetensors = import_extra("safetensors.torch", "files")
    if is_stream(path):  # reading a pipe would wait for ever
        raise DamagedFileError(f"{path} is not a file")
    try:
        content = path.read_bytes()
    except MemoryError:
        raise MemoryError(f"{path} has {path.stat().st_size:,} bytes, more than there is memory") from None
    try:
        tensors = safetensors.load(content)
        header, numbers = _split(content)
        record = json.loads(header.pop("__metadata__", {}).get("multistable", "null"))
        if record is None:
            return tensors, {}
        if "sha256" in record:  # version 0.1.0: info beside the checksum, which is that of the numbers alone
            expected, info = record.pop("sha256"), record
            actual = hashlib.sha256(numbers).hexdigest()
        else:
            expected, info = record["checksum"], record["info"]
            actual = _checksum(header, numbers, info)
        if not isinstance(info, dict):
            raise TypeError(f"its record must be an object, got {type(info).__name__}")
    except Exception as error:  # safetensors has an exception of its own for each way in which a file can be broken
        raise DamagedFileError(f"{path} is truncated or not a safetensors file: {error}") from error
    if actual != expected:
        raise DamagedFileError(f"{path} is corrupt: its content does not match the checksum stored with it")
    return tensors, cast(dict[str, Any], info)


def _checksum(header: dict[str, Any], numbers: memoryview, info: dict[str, Any]) -> str:
    checksum = hashlib.sha256(numbers)
    checksum.update(json.dumps([header, info], sort_keys=True).encode())
    return checksum.hexdigest()


def _split(content: bytes) -> tuple[dict[str, Any], memoryview]:
    """Header and numbers of a file, which is the header's length (8 bytes, little-endian), header (JSON), numbers."""
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), memoryview(content)[start:]


def import_extra(module: str, extra: str) -> Any:
    """Import an optional dependency, with an install hint if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{module} could not be imported: pip install 'multistable[{extra}]'") from error
