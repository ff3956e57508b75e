"""Simulate a full disk and a small memory."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["full_disk", "limited_memory"]


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """Limit every file to ``room`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Let the process take at most ``more`` bytes of address space beyond those it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
