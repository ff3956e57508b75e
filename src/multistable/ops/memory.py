"""Memory for large tensors on the CPU: huge pages on Linux, kept by the process for the next call.

The first touch of each page of 4 KiB costs more than a scan's work on it. In pages of 2 MiB a forward scan at
(32, 1024, 256) in float32 takes 7 ms instead of 14, the backward 14 instead of 25. Kept pages are not even touched
first: a layer's training step of that size takes 128 ms, and 151 if only the projection's memory is kept (two cores, in
turns with nn.GRU; docs/log.md).
"""

import mmap
import os
import sys
import weakref
from contextlib import suppress
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["new_empty", "release_memory"]

_SMALLEST = 1 << 22  # bytes; below, pages of 4 KiB cost little
_LARGEST = 1 << 28  # beyond, a virtual machine takes up to 2 s per GiB to get huge pages back from its host
_MOST_IDLE = 1 << 28
_LARGEST_KEPT = _MOST_IDLE // 2  # a block that filled the pool would drive out all others at every turn
_HUGE_PAGE = 1 << 21

_idle: list[mmap.mmap] = []
"""Blocks that no tensor uses, the oldest first. A storage may die in any thread and at any point, even inside the
functions below, so there is no lock: whoever removes a block from the list owns it."""


def new_empty(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An uninitialised contiguous tensor like ``x``, of this shape.

    On Linux, 4 to 256 MiB come in huge pages. Up to 128 MiB are kept when the last tensor on them is gone, for the next
    call that needs at least half as much; at most 256 MiB wait in all.

    torch holds the view of the block until the *storage* is freed, whoever refers to it: views, arrays, a retained
    graph, saved-tensor hooks. The tensor is like any other, except that its storage cannot be resized.
    """
    count = prod(shape)
    size = count * x.itemsize
    if sys.platform != "linux" or x.device.type != "cpu" or type(x) is not Tensor or not _SMALLEST <= size <= _LARGEST:
        return x.new_empty(shape)
    try:
        block = _take(size)
    except OSError:  # out of memory: torch has its own error for that
        return x.new_empty(shape)
    view = memoryview(block)
    if size <= _LARGEST_KEPT:
        weakref.finalize(view, _give_back, block).atexit = False
    whole = torch.frombuffer(view, dtype=x.dtype, count=count)
    # Not a view, which autograd would track: so an output can be changed in place like any other.
    return cast(Any, x.new_empty(0)).set_(whole, 0, shape)  # torch's types require strides


def release_memory() -> None:
    """Return the memory kept for the next call of a layer or scan on the CPU, up to 256 MiB, to the system."""
    _idle.clear()


def _take(size: int) -> mmap.mmap:
    """The smallest idle block of ``size`` to twice as many bytes, or a new one."""
    for block in sorted((block for block in _idle if size <= len(block) <= 2 * size), key=len):
        with suppress(ValueError):  # another thread was faster
            _idle.remove(block)
            return block
    block = mmap.mmap(-1, -(-size // _HUGE_PAGE) * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # advice only
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _give_back(block: mmap.mmap) -> None:
    """Keep a block; drop the oldest if too much is idle. A dropped block is unmapped: nothing else refers to it."""
    _idle.append(block)
    with suppress(IndexError):  # another thread drops blocks, too
        while sum(map(len, _idle)) > _MOST_IDLE:
            del _idle[0]


if hasattr(os, "register_at_fork"):  # a child would copy every page that it writes to
    os.register_at_fork(after_in_child=_idle.clear)
