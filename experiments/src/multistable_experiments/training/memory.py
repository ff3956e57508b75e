"""Raise the same error for lack of memory on a CPU as on a GPU, so that a sweep can continue."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["named_memory_errors"]


@contextmanager
def named_memory_errors(what: str) -> Iterator[None]:
    """Raise ``torch.OutOfMemoryError`` where torch's CPU allocator or Python run out of memory, and name ``what``."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (MemoryError, RuntimeError) as error:
        # torch has no class for it: "[enforce fail at alloc_cpu.cpp:...] DefaultCPUAllocator: can't allocate memory"
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        raise torch.OutOfMemoryError(f"out of memory (CPU) in {what}: a smaller model or batch_size may fit") from error
