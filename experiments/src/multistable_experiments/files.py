"""Write folders whole or not at all, lock folders, and write and read JSON files with a checksum."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from filelock import FileLock, Timeout

from multistable.models.atomic import file_named, is_stream, new_part, whole_file, write_atomically
from multistable.models.files import UNREADABLE
from multistable.models.tensors import DamagedFileError

__all__ = [
    "UNREADABLE",
    "DamagedFileError",
    "check_types",
    "check_writable",
    "checksum",
    "file_named",
    "locked",
    "read_json",
    "stored_result",
    "whole_file",
    "write_atomically",
    "write_json",
]


def check_writable(option: str, path: Path) -> None:
    """Raise if ``path`` cannot be written, before hours of work for it; make its folder."""
    if path.is_dir():
        raise ValueError(f"{option} must be a file, but {path} is a folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not is_stream(path):
        with new_part(path, path.resolve()):
            pass


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Try to lock the folder; yield False if another process holds it. The system unlocks it when a process dies."""
    lock = FileLock(folder / ".lock", blocking=False)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write ``values``, one entry per line, and their checksum as the last entry."""
    entries = values | {"checksum": checksum(values)}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in entries.items())
    write_atomically(path, f"{{\n{lines}\n}}\n".encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read what :func:`write_json` wrote; raise if it is not JSON or does not match its checksum."""
    if is_stream(path):  # reading a pipe would wait for ever
        raise DamagedFileError(f"{path} is not a file")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        expected = values.pop("checksum")
    except UNREADABLE as error:
        raise DamagedFileError(f"{path} is truncated or corrupt: {error!r}") from error
    if expected != checksum(values):
        raise DamagedFileError(f"{path} is corrupt or was edited: its content does not match its checksum")
    return values


def stored_result(path: Path, name: str, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The result in a file, whose entry ``name`` must be these settings; None if there is no file yet.

    Raises if it is the result of other settings: no command overwrites a result.
    """
    if not path.exists():
        return None
    found, wanted = read_json(path), json.loads(json.dumps(settings))
    other = found.get(name)
    if other != wanted:
        differ = [key for key in wanted if not isinstance(other, dict) or other.get(key) != wanted[key]]
        what = ", ".join(differ) or "entries that no longer exist"
        raise ValueError(f"{path} holds the result of other settings ({what}), which is not overwritten: move it away")
    return found


def checksum(values: dict[str, Any]) -> str:
    """A checksum of values that JSON can hold, independent of the order of their names.

    >>> checksum({"a": 1, "b": [0.5]}) == checksum({"b": [0.5], "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def check_types(values: Any, kinds: dict[str, Any]) -> None:
    """Raise TypeError unless ``values``, read from JSON, is an object with these names, each of its type.

    >>> check_types({"a": [1, 2.5]}, {"a": list[float]})
    """
    if not isinstance(values, dict):
        raise TypeError(f"expected an object, got {type(values).__name__}")
    for name, kind in kinds.items():
        if name not in values or not is_of(values[name], kind):
            shown = repr(values.get(name, "nothing"))
            raise TypeError(f"{name} must be {getattr(kind, '__name__', kind)}, got {shown[:50]}")


def is_of(value: Any, kind: Any) -> bool:
    """Check a value read from JSON against a type: a plain one, a union, ``list[...]``, ``dict[str, ...]`` or Any.

    >>> is_of({"a": [1]}, dict[str, list[float] | None]), is_of(True, int)
    (True, False)
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is UnionType:
        return any(is_of(value, each) for each in inner)
    if origin is list:
        return isinstance(value, list) and all(is_of(each, inner[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(is_of(each, inner[1]) for each in value.values())
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)
