"""Folders that appear whole or not at all, locks, and JSON files."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multistable.models.atomic import file_named, part_of, whole_file, write_atomically
from multistable.models.files import UNREADABLE
from multistable.models.tensors import DamagedFileError

__all__ = [
    "UNREADABLE",
    "DamagedFileError",
    "check_writable",
    "checksum",
    "file_named",
    "locked",
    "parse_json",
    "read_json",
    "whole_file",
    "whole_folder",
    "write_atomically",
    "write_json",
]


def check_writable(option: str, path: Path) -> None:
    """Refuse a file that could not be written, before the work whose result it is to hold; makes its folder."""
    if path.is_dir():
        raise ValueError(f"{option} must be a file, but {path} is a folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_named(path):
        part_of(path).touch()
        part_of(path).unlink()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """An empty folder to fill, which takes the name ``path`` in the end; what a killed writer left is removed."""
    part = part_of(path)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        if path.exists():
            shutil.rmtree(path)
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Whether no other process has locked this folder; then it is locked for them.

    It is locked by the system, which lets go of it when the process ends, however it does. Systems and file systems
    that cannot lock a folder (Windows, NFS) are taken on trust.
    """
    try:
        import fcntl
    except ImportError:
        yield True
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        alone = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            alone = False
        except OSError:
            pass
        yield alone
    finally:
        os.close(handle)


def parse_json(path: Path) -> Any:
    """The content of a JSON file without a checksum, or one of ``UNREADABLE``."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write ``values``, a line per entry, with a checksum of them all as the last entry."""
    entries = values | {"checksum": checksum(values)}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in entries.items())
    write_atomically(path, f"{{\n{lines}\n}}\n".encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read what :func:`write_json` wrote; raise if the file is not JSON, or if its checksum does not match."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        expected = values.pop("checksum")
    except UNREADABLE as error:
        raise DamagedFileError(f"{path} is truncated or corrupt: {error!r}") from error
    if expected != checksum(values):
        raise DamagedFileError(f"{path} is corrupt or was edited: its content does not match its checksum")
    return values


def checksum(values: dict[str, Any]) -> str:
    """A checksum of values that JSON can hold, whatever the order of their names.

    >>> checksum({"a": 1, "b": [0.5]}) == checksum({"b": [0.5], "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
