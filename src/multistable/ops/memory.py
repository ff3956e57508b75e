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
_MOST_KEPT = 1 << 28
_LARGEST_KEPT = _MOST_KEPT // 2  # a block that filled the pool would drive out all others at every turn
_HUGE_PAGE = 1 << 21


class _Block(weakref.ref[memoryview]):
    """A block of memory and whether torch still holds the view of it."""

    memory: mmap.mmap


_kept: dict[int, _Block] = {}
"""Blocks that wait for the next call when their views are gone, by identity."""
_idle: list[_Block] = []
"""Those whose view is gone, the oldest first. A storage may die in any thread and at any point, even inside the
functions below, so there is no lock: whoever removes a block from the list owns it.

A view that dies runs no Python, only the list's ``append``. In a function that Python calls then, an interrupt would be
lost: with ``weakref.finalize``, 339 of 3,734 were (tools/interrupts.py)."""


def new_empty(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An uninitialised contiguous tensor like ``x``, of this shape.

    On Linux, 4 to 256 MiB come in huge pages. Up to 128 MiB are kept when the last tensor on them is gone, for the next
    call that needs at least half as much; at most 256 MiB are kept in all, waiting or in use.

    torch holds the view of the block until the *storage* is freed, whoever refers to it: views, arrays, a retained
    graph, saved-tensor hooks. The tensor is like any other, except that its storage cannot be resized.
    """
    count = prod(shape)
    size = count * x.itemsize
    if sys.platform != "linux" or x.device.type != "cpu" or type(x) is not Tensor or not _SMALLEST <= size <= _LARGEST:
        return x.new_empty(shape)
    try:
        memory = _take(size)
    except OSError:  # out of memory: torch has its own error for that
        return x.new_empty(shape)
    view = memoryview(memory)
    if size <= _LARGEST_KEPT:
        _keep(view, memory)
    whole = torch.frombuffer(view, dtype=x.dtype, count=count)
    # Not a view, which autograd would track: so an output can be changed in place like any other.
    return cast(Any, x.new_empty(0)).set_(whole, 0, shape)  # torch's types require strides


def release_memory() -> None:
    """Return the memory kept for the next call of a layer or scan on the CPU, up to 256 MiB, to the system."""
    while _drop_oldest():
        pass


def _take(size: int) -> mmap.mmap:
    """The smallest idle block of ``size`` to twice as many bytes, or a new one."""
    while fitting := [block for block in list(_idle) if size <= len(block.memory) <= 2 * size]:  # a copy: it changes
        block = min(fitting, key=lambda block: len(block.memory))
        with suppress(ValueError):  # another thread was faster
            _idle.remove(block)
            _kept.pop(id(block), None)
            return block.memory
    memory = mmap.mmap(-1, -(-size // _HUGE_PAGE) * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # advice only
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _keep(view: memoryview, memory: mmap.mmap) -> None:
    """Keep the block when its view is gone. The oldest idle ones make room; without room it is not kept."""
    block = _Block(view, _idle.append)
    block.memory = memory
    _kept[id(block)] = block  # first, so that threads that come here together see each other
    while sum(len(block.memory) for block in list(_kept.values())) > _MOST_KEPT:
        if not _drop_oldest():
            del _kept[id(block)]
            return


def _drop_oldest() -> bool:
    """Unmap the oldest idle block: nothing else refers to it. False if there is none."""
    try:
        block = _idle.pop(0)
    except IndexError:
        return False
    _kept.pop(id(block), None)
    return True


if hasattr(os, "register_at_fork"):  # a child would copy every page that it writes to
    os.register_at_fork(after_in_child=release_memory)
