"""Write a file completely or not at all."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["file_named", "part_of", "whole_file", "write_atomically"]


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` by way of :func:`whole_file`."""
    with whole_file(path) as part:
        part.write_bytes(content)


@contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """Yield a temporary path to write to, and rename it to ``path`` when the block ends without an error.

    After a kill or a crash at any moment ``path`` holds either its old content or the new one. A killed writer leaves
    ``.NAME.part`` behind, which the next writer overwrites. An ``OSError`` names ``path``, even if the disk is full.
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


def part_of(path: Path) -> Path:
    """The temporary file beside ``path``."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def file_named(path: Path) -> Generator[None]:
    """Make OSErrors raised while writing name ``path``, not its temporary file."""
    try:
        yield
    except OSError as error:
        if error.filename in (None, str(part_of(path))):
            error.filename, error.filename2 = str(path), None
        raise
