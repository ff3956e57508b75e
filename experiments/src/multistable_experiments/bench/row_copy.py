"""What memory gives a kernel that walks over time, where rows are not aligned: the same walk that only copies.

A bound for the scans at widths that are no multiple of 8 words: their blocks end inside of sectors of 32 bytes, which
memory moves whole, and writes in two parts.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from multistable_experiments.bench.gpu_clock import copy_bandwidth, milliseconds
from multistable_experiments.bench.report import Row
from multistable_experiments.bench.shapes import random_shapes

__all__ = ["row_copy_rows", "walk"]

BLOCKS = ((64, 2), (128, 4))  # columns, warps
SECTOR = 32  # bytes
CHUNK = 512  # steps of a program: few sequences must fill the GPU, too


def row_copy_rows(seed: int) -> Iterator[Row]:
    """Copies at those random shapes whose rows do not start at a sector, each by the fastest blocks."""
    for (B, T, N), itemsize in random_shapes(seed):
        if N * itemsize % SECTOR == 0:
            continue
        dtype = {4: torch.float32, 2: torch.bfloat16}[itemsize]
        x = torch.randn(B, T, N, device="cuda").to(dtype)
        y = torch.empty_like(x)
        ms = min(milliseconds(partial(walk, x, y, *block)) for block in BLOCKS)
        copied = 2 * x.nbytes
        words = f"copy of {copied / 1e6:,.0f} MB"
        dtype_name = str(dtype)[6:]
        yield Row("copy by rows, random shape", (B, T, N), dtype_name, ms, words, copied / copy_bandwidth(), "share")


def walk(x: Tensor, y: Tensor, columns: int, warps: int) -> None:
    """Copy ``x [B, T, N]`` to y: a program for each block of columns of a chunk, eight rows at a time."""
    B, T, N = x.shape
    if x.itemsize == 2 and N % 2 == 0:  # two numbers in a word, as the scans read them
        x, y, N = x.view(torch.int32), y.view(torch.int32), N // 2
    columns = min(columns, 1 << (N.bit_length() - 1))
    kernel: Any = _walk_kernel
    blocks, chunks = triton.cdiv(N, columns), triton.cdiv(T, CHUNK)
    kernel[(blocks * chunks, B)](x, y, T, N, blocks, BN=columns, U=8, L=CHUNK, num_warps=warps)


@triton.jit(do_not_specialize=["T", "N", "blocks"])
def _walk_kernel(x, y, T, N, blocks, BN: tl.constexpr, U: tl.constexpr, L: tl.constexpr):
    begin = (tl.program_id(0) // blocks) * L
    end = tl.minimum(begin + L, T)
    columns = tl.minimum((tl.program_id(0) % blocks) * BN, N - BN) + tl.arange(0, BN)
    step = tl.arange(0, U)[:, None]
    p = (tl.program_id(1).to(tl.int64) * T + begin + step) * N + columns[None, :]
    for t in tl.range(begin, end, U, num_stages=4):  # pyright: ignore[reportGeneralTypeIssues]
        inside = t + step < end
        tl.store(y + p, tl.load(x + p, mask=inside, other=0), mask=inside)
        p += U * N
