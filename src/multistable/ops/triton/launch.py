"""How the GPU kernels cut their work (strands, tiles, chunks), and tensors as kernel arguments."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

__all__ = [
    "LaunchConfig",
    "Strided",
    "Tilings",
    "can_pack",
    "contiguous",
    "contiguous_alpha",
    "contiguous_columns",
    "launch_config",
    "strided",
    "strided_reset",
]

_LANES = 32  # threads of a warp, each with one column of words
_MOST_WARPS = 8  # of a program: more strands cost more to combine
_FEWEST = 3  # warps per multiprocessor below which strands are worth their cost
_SHORTEST = 512  # steps of a chunk: finding the state that enters it must stay cheap beside walking over it

Tilings = tuple[tuple[int, int, int], ...]
"""How to walk over time: (fewest warps per multiprocessor, U steps of each strand at once, stages: tiles on the way to
shared memory while one is computed, plus one). The fewer warps there are, the more each has to fetch."""


@dataclass(frozen=True)
class LaunchConfig:
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
    column_blocks: int
    """Blocks of ``BN`` columns."""
    programs: int
    even: bool
    """Whether tiles and blocks fill all of time and all columns, so that no access needs a mask."""

    @property
    def kernel_options(self) -> dict[str, int | bool]:
        sizes = {"BN": self.BN, "S": self.S, "U": self.U, "EVEN": self.even, "STAGES": self.stages}
        return sizes | {"num_warps": self.warps}


@cache
def launch_config(B: int, T: int, N: int, tilings: Tilings, loads: int, device: torch.device) -> LaunchConfig:
    """Cut ``B`` sequences of ``T`` steps of ``N`` words, of which a step loads ``loads`` bytes per column.

    A warp has 32 columns and walks over all of time alone, which takes the fewest instructions. If there are too few
    columns to fill the GPU, several warps walk over neighbouring strands; if that is not enough, sequences are cut into
    chunks.
    """
    BN = min(_LANES, 1 << (N - 1).bit_length())
    blocks = _ceil(N, BN)
    alone = B * blocks / _multiprocessors(device)  # warps per multiprocessor if each walks alone
    C = max(1, min(round(8 / alone), T // _SHORTEST)) if alone * _MOST_WARPS < _FEWEST else 1
    warps = 1
    while alone * C * warps < _FEWEST and warps < _MOST_WARPS:
        warps *= 2
    U, stages = next((U, stages) for least, U, stages in tilings if alone * C * warps >= least)
    while stages > 1 and _LANES * warps * U * loads * stages > _shared_memory(device):
        U, stages = (U // 2, stages) if U > 1 else (U, stages - 1)  # with one stage nothing waits in shared memory
    S = _LANES * warps // BN
    L = _ceil(_ceil(T, C), S * U) * S * U
    C = _ceil(T, L)
    even = T % (S * U) == 0 and N % BN == 0
    return LaunchConfig(BN, S, U, warps, stages, C, L, blocks, programs=B * C * blocks, even=even)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that the tiles of a program may take: most of what the GPU has for one (H200: 227 KiB, RTX 4090: 99).

    torch does not report it for AMD GPUs, which have 64 KiB.
    """
    if device.type != "cuda":
        return 1 << 18
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 1 << 16) * 7 // 8


Strided = tuple[Tensor | None, int, int, int | None]
"""A tensor as kernel arguments: its first row in the order of the scan; the strides of batch and time in words; the
latter again if it may be compiled in, which saves the kernels a fifth of their instructions."""


def strided(x: Tensor | None, reverse: bool, per_word: int = 1) -> Strided:
    """``x [B, T, N]`` with contiguous columns, or None; reading backwards is a negative stride."""
    if x is None:
        return None, 0, 0, None
    x = contiguous_columns(x)
    b, t, _ = x.stride()
    fixed = t <= 2 * x.shape[2]  # not in time-major order, where it changes with the batch
    b, t = b // per_word, t // per_word
    if reverse:
        x, t = x[:, -1], -t
    return x, b, t, t if fixed else None


def strided_reset(reset: Tensor | None, reverse: bool) -> tuple[Tensor | None, int, int]:
    """``reset [B, T]`` as bytes, or None, with its strides."""
    if reset is None:
        return None, 0, 0
    x = reset.view(torch.uint8)
    return x[:, -1 if reverse else 0], x.stride(0), -x.stride(1) if reverse else x.stride(1)


def contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def contiguous_columns(x: Tensor) -> Tensor:
    """``x`` with contiguous columns. The gradient of a sum, for instance, is one number, expanded."""
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def contiguous_alpha(alpha: Tensor | None, h: Tensor) -> Tensor | None:
    """``alpha [N]``, contiguous, or None. On a GPU the kernels round float32 themselves, which saves a launch; Triton's
    interpreter would truncate it."""
    if alpha is not None and not (alpha.is_cuda and alpha.dtype == torch.float32):
        alpha = alpha.to(h.dtype)
    return contiguous(alpha)


def can_pack(*tensors: Tensor | None) -> bool:
    """Whether these are half-precision numbers (or bytes) that can be read two at a time."""
    for x in tensors:
        if x is not None and (x.itemsize > 2 or x.data_ptr() % (2 * x.itemsize) or x.shape[-1] % 2):
            return False
        if x is not None and (x.stride(-1) != 1 or any(n % 2 for n in x.stride()[:-1])):
            return False
    return True
