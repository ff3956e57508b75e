"""How the GPU kernels cut their work: strands, tiles, chunks, and tensors as pointers with strides."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

__all__ = ["Plan", "Rows", "Tile", "flags", "make_plan", "rows", "states"]

_FILL = 16  # warps per multiprocessor below which sequences are cut into chunks
_MANY = 1 << 15  # columns (sequences times words per step) from which programs are enough to hide each other's waits
_SHORTEST = 512  # steps of a chunk: finding the state that enters it must stay cheap beside walking over it


@dataclass(frozen=True)
class Tile:
    """What one program computes at a time: ``BN`` columns by strands of ``U`` steps, ``vector`` columns per thread."""

    BN: int
    U: int
    warps: int
    vector: int
    stages: int
    """Tiles in flight: the next ones are on their way to shared memory while one is computed."""


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


def make_plan(B: int, T: int, N: int, tiles: dict[str, Tile], half: bool, device: torch.device) -> Plan:
    """As many strands as fill the warps, as many chunks as fill the GPU.

    ``tiles`` has what measured best for few and for many columns in the batch, in full and in half precision.
    """
    tile = tiles[f"{'many' if B * N >= _MANY else 'few'}{' half' if half else ''}"]
    BN = min(tile.BN, 1 << (N - 1).bit_length())
    S = 32 * tile.warps * tile.vector // BN
    blocks = _ceil(N, BN)
    wanted = _FILL * _multiprocessors(device) // (B * blocks * tile.warps)
    C = max(1, min(wanted, T // _SHORTEST)) if wanted > 4 else 1
    L = _ceil(_ceil(T, C), S * tile.U) * S * tile.U
    C = _ceil(T, L)
    even = T % (S * tile.U) == 0 and N % BN == 0
    return Plan(BN, S, tile.U, tile.warps, tile.stages, C, L, blocks, programs=B * C * blocks, even=even)


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
