"""Folders that appear whole or not at all, locks, and JSON files."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multistable.models.atomic import file_named, part_of, whole_file, write_atomically
from multistable.models.files import UNREADABLE

__all__ = [
    "UNREADABLE",
    "check_writable",
    "file_named",
    "locked",
    "read_json",
    "whole_file",
    "whole_folder",
    "write_atomically",
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


def read_json(path: Path) -> Any:
    """What a JSON file holds, or one of ``UNREADABLE``."""
    return json.loads(path.read_text(encoding="utf-8"))
