"""Memory in huge pages where Linux gives them: fresh for what a scan returns, kept from call to call for a layer."""

import ctypes
import mmap
import os
import sys
import weakref
from contextlib import suppress
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

__all__ = ["fresh", "kept", "release_memory"]

_SMALLEST, _LARGEST = 1 << 22, 1 << 28  # bytes; below, pages of 4 KiB cost little
_MOST_IDLE = 1 << 28
_LARGEST_KEPT = _MOST_IDLE // 2  # a block that fills the pool would drive out all others at every turn
_PAGE, _HUGE_PAGE = 1 << 12, 1 << 21
_MADV_HUGEPAGE = 14

_idle: list[mmap.mmap] = []
"""Blocks that no tensor uses, the oldest first. A storage may die in any thread and in the middle of anything, the
functions below among them, so there is no lock: whoever removes a block from the list has it."""


def fresh(x: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    """An uninitialised contiguous tensor like ``x``, of its shape or another.

    On a CPU the first touch of each page of 4 KiB costs more than the scan's work on it. Asked for pages of 2 MiB, a
    forward scan at (32, 1024, 256) in float32 takes 7 ms instead of 14, the backward 14 instead of 25 (two cores).
    Beyond 256 MiB they are not asked for: a virtual machine hands freed huge pages back to its host, and getting them
    again takes 0.9 to 2 s per GiB, where small pages take 0.2 s and huge ones not yet handed back 0.06.
    """
    out = x.new_empty(x.shape if shape is None else shape)
    if _pays(out, out.nbytes):
        madvise = _madvise()
        start = -(-out.data_ptr() // _PAGE) * _PAGE
        if madvise is not None:  # advice: where it is not taken, nothing changes
            madvise(start, out.data_ptr() + out.nbytes - start, _MADV_HUGEPAGE)
    return out


def kept(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """:func:`fresh`, but of 4 to 128 MiB the memory stays with the process when the last tensor on it is gone.

    There it waits for the next call that asks for as much, or for no less than half of it; at most 256 MiB wait in all.
    In turns with nn.GRU, a training step at (32, 1024, 256) in float32 takes 128 ms, and 151 where only the memory of
    the projection is kept (two cores; docs/log.md).

    torch holds the view of the block until the *storage* is freed, whoever refers to that: views, arrays, a graph that
    is retained, hooks of saved tensors. The tensor is like any other but that its storage cannot be resized.
    """
    count = prod(shape)
    size = count * x.itemsize
    if sys.platform != "linux" or not _pays(x, size) or size > _LARGEST_KEPT:
        return fresh(x, shape)
    try:
        block = _take(size)
    except OSError:  # no memory: torch says so in its own way
        return fresh(x, shape)
    view = memoryview(block)
    weakref.finalize(view, _give_back, block).atexit = False
    whole = torch.frombuffer(view, dtype=x.dtype, count=count)
    # Not a view, which autograd would keep track of: so an output can be changed in place like any other.
    return x.new_empty(0).set_(whole, 0, shape)  # pyright: ignore[reportCallIssue]  (without strides: contiguous)


def release_memory() -> None:
    """Give the memory that waits for the next call of a layer on the CPU, up to 256 MiB, back to the system."""
    _idle.clear()


def _take(size: int) -> mmap.mmap:
    """The smallest idle block of ``size`` to twice as many bytes, or a new one."""
    for block in sorted((block for block in _idle if size <= len(block) <= 2 * size), key=len):
        with suppress(ValueError):  # another thread was faster
            _idle.remove(block)
            return block
    block = mmap.mmap(-1, -(-size // _HUGE_PAGE) * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # advice
        block.madvise(_MADV_HUGEPAGE)
    return block


def _give_back(block: mmap.mmap) -> None:
    """A block that is dropped goes back to the system at once: nothing else refers to it."""
    _idle.append(block)
    with suppress(IndexError):  # another thread drops blocks, too
        while sum(map(len, _idle)) > _MOST_IDLE:
            del _idle[0]


def _pays(x: Tensor, size: int) -> bool:
    """Whether to ask for huge pages for ``size`` bytes beside ``x``."""
    return x.device.type == "cpu" and _SMALLEST <= size <= _LARGEST and type(x) is Tensor


@cache
def _madvise() -> Any:
    """The C library's function, or None on other systems than Linux."""
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is not None:
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


if hasattr(os, "register_at_fork"):  # a child would copy each page that it writes to
    os.register_at_fork(after_in_child=_idle.clear)
