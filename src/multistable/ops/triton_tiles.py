"""How the GPU kernels cut their work: strands, tiles, chunks, and tensors as pointers with strides."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

__all__ = ["Plan", "Rows", "flags", "make_plan", "rows", "states"]

_FILL = 16  # one-warp programs per multiprocessor below which sequences are cut into chunks
_SHORTEST = 512  # steps of a chunk: finding the state that enters it must stay cheap beside walking over it


@dataclass(frozen=True)
class Plan:
    """A program of one warp takes ``BN`` units and walks over ``L`` steps in tiles of ``S`` strands of ``U`` steps."""

    BN: int
    S: int
    U: int
    warps: int
    C: int
    """Chunks per sequence."""
    L: int
    """Steps per chunk, a multiple of ``S * U``; the last chunk may be shorter."""
    programs: int
    blocks: int
    """Blocks of ``BN`` units."""


def make_plan(B: int, T: int, N: int, itemsize: int, U: int, device: torch.device) -> Plan:
    """Sixteen bytes per thread and step, as many strands as fill a warp, as many chunks as fill the GPU."""
    vector = max(1, 16 // itemsize)
    BN = min(32, 1 << (N - 1).bit_length())
    S = 32 * vector // BN
    blocks = -(-N // BN)
    tile = S * U
    wanted = -(-_FILL * _multiprocessors(device) // (B * blocks))
    C = max(1, min(wanted, T // _SHORTEST)) if wanted > 4 else 1
    L = -(-(-(-T // C)) // tile) * tile
    C = -(-T // L)
    return Plan(BN=BN, S=S, U=U, warps=1, C=C, L=L, programs=B * C * blocks, blocks=blocks)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


Rows = tuple[Tensor, int, int]
"""The row where a scan begins, the stride of the batch and the stride of time in the order of the scan."""


def rows(x: Tensor, reverse: bool) -> Rows:
    """``x [B, T, N]`` as the kernels take it: reading backwards is a negative stride. Units become contiguous."""
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        x = x.contiguous()
    return (x[:, -1], x.stride(0), -x.stride(1)) if reverse else (x[:, 0], x.stride(0), x.stride(1))


def flags(x: Tensor | None, reverse: bool) -> tuple[Tensor | None, int, int]:
    """``[B, T]`` booleans, or none."""
    if x is None:
        return None, 0, 0
    x = x.view(torch.uint8)
    return (x[:, -1], x.stride(0), -x.stride(1)) if reverse else (x[:, 0], x.stride(0), x.stride(1))


def states(x: Tensor | None) -> Tensor | None:
    """``[B, N]``, contiguous, or none."""
    return None if x is None else x.contiguous()
