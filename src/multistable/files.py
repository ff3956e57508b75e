"""Files and folders that appear whole or not at all, locks, JSON, and the two parts of a safetensors file."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = [
    "UNREADABLE",
    "check_writable",
    "file_named",
    "locked",
    "read_json",
    "split_safetensors",
    "whole_file",
    "whole_folder",
    "write_atomically",
]

UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What comes of reading JSON that is damaged, or that holds something else than is expected."""


def check_writable(option: str, path: Path) -> None:
    """Refuse a file that could not be written, before the work whose result it is to hold; makes its folder."""
    if path.is_dir():
        raise ValueError(f"{option} must be a file, but {path} is a folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    with file_named(path):
        part_of(path).touch()
        part_of(path).unlink()


def part_of(path: Path) -> Path:
    """The name of what is being written."""
    return path.with_name(f".{path.name}.part")


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` by way of :func:`whole_file`."""
    with whole_file(path) as part:
        part.write_bytes(content)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the name ``path`` when all is written.

    After a kill or a crash at any moment ``path`` holds its old content or the new one, whole. What a killed writer
    leaves is ``.NAME.part``, which the next writer overwrites. Every error names the file, even that of a full disk.
    """
    part = part_of(path)
    try:
        with file_named(path):
            yield part
            with part.open("r+b") as file:  # Windows does not synchronise a file that is open for reading only
                os.fsync(file.fileno())
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    if os.name == "posix":  # the new name, too, must reach the disk; elsewhere a folder cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def file_named(path: Path) -> Iterator[None]:
    """Around the writing of a file: an error that names none, as that of a full disk, or its part is of this one."""
    try:
        yield
    except OSError as error:
        if error.filename in (None, str(part_of(path))):
            error.filename, error.filename2 = str(path), None
        raise


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


def read_json(path: Path) -> Any:
    """What a JSON file holds, or one of ``UNREADABLE``."""
    return json.loads(path.read_text(encoding="utf-8"))


def split_safetensors(content: bytes) -> tuple[dict[str, str], memoryview]:
    """The metadata and the numbers of a file: length of the header (8 bytes, little-endian), header (JSON), numbers."""
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]).get("__metadata__", {}), memoryview(content)[start:]
