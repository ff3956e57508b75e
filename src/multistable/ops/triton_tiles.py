"""How the GPU kernels cut their work: strands, tiles, chunks, and tensors as pointers with strides."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

__all__ = ["Plan", "Rows", "flags", "make_plan", "rows", "states"]

_FILL = 16  # warps per multiprocessor below which sequences are cut into chunks
_SHORTEST = 512  # steps of a chunk: finding the state that enters it must stay cheap beside walking over it


@dataclass(frozen=True)
class Plan:
    """A program takes ``BN`` columns and walks over ``L`` steps in tiles of ``S`` strands of ``U`` steps."""

    BN: int
    S: int
    U: int
    warps: int
    C: int
    """Chunks per sequence."""
    L: int
    """Steps per chunk, a multiple of ``S * U``; the last chunk may be shorter."""
    blocks: int
    """Blocks of ``BN`` columns."""
    programs: int
    even: bool
    """Whether tiles and blocks fill all of time and all columns, so that no access needs a mask."""


def make_plan(B: int, T: int, N: int, *, BN: int, U: int, warps: int, vector: int, device: torch.device) -> Plan:
    """``vector`` columns per thread and step, as many strands as fill the warps, as many chunks as fill the GPU."""
    BN = min(BN, 1 << (N - 1).bit_length())
    S = 32 * warps * vector // BN
    blocks = -(-N // BN)
    wanted = _FILL * _multiprocessors(device) // (B * blocks * warps)
    C = max(1, min(wanted, T // _SHORTEST)) if wanted > 4 else 1
    L = -(-(-(-T // C)) // (S * U)) * S * U
    C = -(-T // L)
    return Plan(BN, S, U, warps, C, L, blocks, programs=B * C * blocks, even=T % (S * U) == 0 and N % BN == 0)


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
