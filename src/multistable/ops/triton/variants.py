"""Every variant of the scans' kernels, compiled beforehand."""

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from triton.runtime import driver

from multistable.ops.threads import for_each
from multistable.ops.triton import latch, latch_grad, launch, linear, linear_grad
from multistable.ops.triton.primitives import NO_ASSEMBLY, planning

__all__ = ["LAYERS", "THREADS", "Calls", "compile_layers", "plan_variants", "widths_of_every_kind"]

THREADS = (os.cpu_count() or 1) if sys.version_info >= (3, 12) else 1
"""Threads that compile. Python 3.11 counts the depth of recursion of all threads that parse together, and fails if a
garbage collection lets another one go on (8 of 240 times with a callback for that)."""

Plan = dict[Any, Callable[[], None]]


@dataclass(frozen=True)
class Calls:
    """The calls of a layer that differ in nothing but their sizes and in which tensors are given."""

    width: int
    dtype: torch.dtype
    parameters: torch.dtype
    """The dtype of alpha, or of constant coefficients: in half precision under autocast it is float32."""
    h0: bool
    reset: bool
    gradients: tuple[bool, bool]
    """Whether all states have a gradient, and whether the last one has."""
    alpha_surr: float
    device: torch.device

    @property
    def rows(self) -> range:
        """Rows to begin with, so that every alignment is met: a reversed scan begins with the last row. Rows of bytes,
        and of 16-bit numbers that are read one by one, do not all start at a multiple of 16 bytes."""
        return range(1 if self.width % 16 == 0 else 3)

    def steps(self, B: int, T: int, dtype: torch.dtype | None = None, row: int = 0) -> Tensor:
        """``[B, T, N]`` on a single row of memory, number ``row`` of a tensor."""
        rows = torch.empty(row + 1, self.width, dtype=dtype or self.dtype, device=self.device)
        return rows[row].expand(B, T, self.width)

    def state(self, B: int) -> Tensor:
        return torch.empty(B, self.width, dtype=self.dtype, device=self.device)

    def given(self, B: int, T: int) -> tuple[Tensor | None, Tensor | None]:
        """h0 and reset."""
        reset = torch.empty(B, 1, dtype=torch.bool, device=self.device).expand(B, T)
        return self.state(B) if self.h0 else None, reset if self.reset else None

    def arriving(self, B: int, T: int, row: int = 0) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of all states and of the last one."""
        all_states, last = self.gradients
        return self.steps(B, T, row=row) if all_states else None, self.state(B) if last else None


def _bmru(calls: Calls, B: int, T: int, backward: bool) -> None:
    """Candidates and thresholds are the halves of a layer's projection: every other row of half its width."""
    h0, reset = calls.given(B, T)
    alpha = torch.empty(calls.width, dtype=calls.parameters, device=calls.device)
    for row in calls.rows:
        h, cand, beta = (calls.steps(B, T, row=place) for place in (row, 2 * row, 2 * row + 1))
        if not backward:
            latch.bmru_forward(cand, beta, alpha, h0, reset, h, reverse=False)
            continue
        saved, options = (cand, beta, alpha, h0, reset, h), {"alpha_surr": calls.alpha_surr, "reverse": False}
        latch_grad.bmru_backward(*calls.arriving(B, T, row), *saved, cand, beta, **options)


def _latch(calls: Calls, B: int, T: int, backward: bool) -> None:
    h0, reset = calls.given(B, T)
    for row in calls.rows:
        write, x = calls.steps(B, T, torch.bool, row), calls.steps(B, T, row=row)
        if not backward:
            latch.latch_forward(write, x, h0, reset, x, reverse=False)
            continue
        for grad_write in (None, x):
            saved = write, x, h0, reset, x
            latch_grad.latch_backward(*calls.arriving(B, T, row), *saved, grad_write, x, reverse=False)


def _linear(calls: Calls, B: int, T: int, backward: bool, *, constant: bool) -> None:
    """With constant coefficients complex (LRU), otherwise real (MinGRU)."""
    x, (h0, reset) = calls.steps(B, T), calls.given(B, T)
    a = torch.empty(calls.width, dtype=calls.parameters, device=calls.device) if constant else x
    options = {"pairs": constant, "reverse": False}
    if backward:
        linear_grad.linear_backward(*calls.arriving(B, T), a, h0, reset, x, x, **options)
    else:
        linear.linear_forward(a, x, h0, reset, x, **options)


_LATCH, _LINEAR = (latch, latch_grad), (linear, linear_grad)
LAYERS: dict[str, tuple[Callable[[Calls, int, int, bool], None], tuple[Any, ...]]] = {
    "bmru": (_bmru, _LATCH),
    "latch": (_latch, _LATCH),
    "lru": (partial(_linear, constant=True), _LINEAR),
    "mingru": (partial(_linear, constant=False), _LINEAR),
}
"""What each layer calls, and the modules whose tilings that depends on."""


def widths_of_every_kind() -> list[int]:
    """Rows of every block of columns, a multiple of 8 words, of 4 or neither; in half precision a word has two numbers,
    and an LRU has two words per unit."""
    blocks = [1 << i for i in range(8)]
    words = {W for BN in blocks for W in (BN, 2 * BN - 4, 2 * BN - 1) if W >= BN}
    return sorted({W * numbers for W in words for numbers in (1, 2, 4)})


def compile_layers(
    layers: list[str],
    widths: list[int] | None,
    dtypes: list[torch.dtype],
    device: torch.device,
    *,
    h0: bool,
    reset: bool,
    last: bool,
    alpha_surr: float,
) -> int:
    """See :func:`multistable.ops.compile_kernels`."""
    if NO_ASSEMBLY:  # Triton's interpreter, or a GPU of another maker: kernels are looked up by Triton itself
        return 0
    plan: Plan = {}
    with torch.cuda.device(device):
        for layer, width, dtype in product(layers, widths_of_every_kind() if widths is None else widths, dtypes):
            half = [torch.float32] if dtype.itemsize == 2 else []
            gradients = [(True, False), *([(True, True), (False, True)] if last else [])]
            given = product({False, h0}, {False, reset}, gradients)
            if layer == "lru" and width % 2:
                continue
            for parameters, (start, marks, which) in product([dtype, *half], given):
                plan |= plan_variants(layer, Calls(width, dtype, parameters, start, marks, which, alpha_surr, device))
    compile_variants(plan, device)
    return len(plan)


def plan_variants(layer: str, calls: Calls) -> Plan:
    """What a layer's calls compile, whatever their batch size and length; gradients first: they take longest."""
    call, modules = LAYERS[layer]
    shapes = _shapes(calls, calls.width // 2 if layer == "lru" else calls.width, modules)
    with planning() as plan:
        for backward, (B, T) in product((True, False), shapes):
            call(calls, B, T, backward)
    return plan


def _shapes(calls: Calls, units: int, modules: tuple[Any, ...]) -> set[tuple[int, int]]:
    """Batches and lengths that meet all tilings, with and without chunks: the last one in a table with the smallest,
    each other one with the smallest batch that it is for, and with one sequence in so many chunks. Of few columns there
    are up to 32 strands, and a sequence of two tiles has two chunks."""
    x = calls.steps(1, 1)[..., :units]
    per_word = 2 if launch.can_pack(x) else 1
    words = units // per_word
    tables: list[launch.Tilings] = [module._TILINGS[launch.words(per_word, words, x)] for module in modules]
    fewest = {least for tilings in tables for least, _ in tilings[:-1]}
    whole = launch._multiprocessors(calls.device) / -(-words // launch._LANES)
    rows = [math.ceil(least * whole) for least in fewest]
    chunked = {(1, launch._SHORT * max(C, 2)) for C in (2, *rows)}
    tiles = {(1, 2 * launch._LANES * tiling.U) for tilings in tables for _, tiling in tilings}
    return {(1, 1), *((B, 1) for B in rows), *chunked, *tiles}


def compile_variants(plan: Plan, device: torch.device) -> None:
    """Compile all, in :data:`THREADS` threads."""
    if plan:
        driver.active.get_current_device()  # Triton builds its driver now, and not in every thread

    def compile_one(variant: Callable[[], None]) -> None:
        with torch.cuda.device(device):  # each thread has its own
            variant()

    for_each(list(plan.values()), compile_one, THREADS)
