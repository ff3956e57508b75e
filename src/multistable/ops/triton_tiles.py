"""How the GPU kernels cut their work: strands, tiles, chunks, and tensors as pointers with strides."""

from dataclasses import dataclass
from functools import cache

import torch
import triton.language as tl
from torch import Tensor

__all__ = ["HALVES", "Plan", "Rows", "Tile", "flags", "make_plan", "pairs", "rows", "states"]

_SHORTEST = 512  # steps of a chunk: finding the state that enters it must stay cheap beside walking over it
_LANES = 32  # threads of a warp, each with one column of words
_MOST_WARPS = 8  # of a program: more strands cost more to combine


@dataclass(frozen=True)
class Tile:
    """How a kernel walks over time: ``U`` steps of each strand at once, ``stages`` tiles on their way to shared memory
    while one is computed, and as many strands as it takes to have ``enough`` warps on each multiprocessor."""

    U: int
    stages: int
    enough: int


@dataclass(frozen=True)
class Plan:
    """A program takes ``BN`` columns and walks over ``L`` steps in tiles of ``S`` strands of ``U`` steps."""

    BN: int
    S: int
    U: int
    warps: int
    stages: int
    C: int
    """Chunks per sequence."""
    L: int
    """Steps per chunk, a multiple of ``S * U``; the last chunk may be shorter."""
    blocks: int
    """Blocks of ``BN`` columns."""
    programs: int
    even: bool
    """Whether tiles and blocks fill all of time and all columns, so that no access needs a mask."""

    @property
    def tile(self) -> dict[str, int | bool]:
        """The options that the kernels share."""
        sizes = {"BN": self.BN, "S": self.S, "U": self.U, "EVEN": self.even, "STAGES": self.stages}
        return sizes | {"num_warps": self.warps}


@cache
def make_plan(B: int, T: int, N: int, tile: Tile, device: torch.device) -> Plan:
    """For ``B`` sequences of ``T`` steps of ``N`` words.

    A warp has 32 columns and walks over all of time alone, which takes the fewest instructions. If the batch has too
    few columns to fill the GPU, several warps walk over neighbouring strands; if that is not enough either, sequences
    are cut into chunks.
    """
    BN = min(_LANES, 1 << (N - 1).bit_length())
    blocks = _ceil(N, BN)
    wanted = max(1, tile.enough * _multiprocessors(device) // (B * blocks))  # warps for each block of columns
    C = max(1, min(wanted, T // _SHORTEST)) if wanted > _MOST_WARPS else 1
    warps = min(_MOST_WARPS, 1 << (_ceil(wanted, C) - 1).bit_length())
    S = _LANES * warps // BN
    L = _ceil(_ceil(T, C), S * tile.U) * S * tile.U
    C = _ceil(T, L)
    even = T % (S * tile.U) == 0 and N % BN == 0
    return Plan(BN, S, tile.U, warps, tile.stages, C, L, blocks, programs=B * C * blocks, even=even)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


Rows = tuple[Tensor, int, int, int | None]
"""The row where a scan begins; the strides of the batch and of time, in the order of the scan; the latter again if it
may be compiled in, which saves the kernels a fifth of their instructions."""


def rows(x: Tensor, reverse: bool) -> Rows:
    """``x [B, T, N]`` as the kernels take it: reading backwards is a negative stride. Columns become contiguous."""
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        x = x.contiguous()
    step = -x.stride(1) if reverse else x.stride(1)
    fixed = step if x.stride(1) <= 2 * x.shape[2] else None  # not in time-major order, where it changes with the batch
    return x[:, -1 if reverse else 0], x.stride(0), step, fixed


def flags(x: Tensor | None, reverse: bool) -> tuple[Tensor | None, int, int]:
    """``[B, T]`` booleans, or none."""
    if x is None:
        return None, 0, 0
    x = x.view(torch.uint8)
    return x[:, -1 if reverse else 0], x.stride(0), -x.stride(1) if reverse else x.stride(1)


def states(x: Tensor | None) -> Tensor | None:
    """``[B, N]``, contiguous, or none."""
    return None if x is None else x.contiguous()


HALVES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def pairs(*tensors: Tensor | None) -> list[Tensor | None] | None:
    """Views of half-precision numbers (and of bytes) as words of two, or None if one of the tensors does not allow it."""
    if all(x is None or (x.itemsize <= 2 and _even(x)) for x in tensors):
        return [None if x is None else x.view({2: torch.uint32, 1: torch.uint16}[x.itemsize]) for x in tensors]
    return None


def _even(x: Tensor) -> bool:
    """Whether neighbours along the last axis can be read in pairs."""
    numbers = x.shape[-1], x.storage_offset(), *x.stride()[:-1]
    return x.stride(-1) == 1 and all(n % 2 == 0 for n in numbers)
