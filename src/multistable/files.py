"""Files and folders that appear whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["whole_file", "whole_folder", "write_atomically"]


def write_atomically(path: Path, content: bytes) -> None:
    """After a kill or a crash at any moment ``path`` holds its old content or the new one, whole.

    What a killed writer leaves is ``.NAME.partial``, which the next one overwrites.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name, too, must reach the disk; elsewhere a folder cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the name ``path`` when all is written. A kill leaves only ``.NAME.part``."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """An empty folder to fill, which takes the name ``path`` in the end; what a killed writer left is removed."""
    part = path.with_name(f".{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        if path.exists():
            shutil.rmtree(path)
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
