"""How the GPU kernels cut their work (strands, tiles, chunks), and tensors as kernel arguments."""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from multistable.ops.dispatch import BackendError

__all__ = [
    "LaunchConfig",
    "Strided",
    "Tiling",
    "Tilings",
    "Words",
    "align",
    "can_pack",
    "contiguous",
    "contiguous_alpha",
    "contiguous_columns",
    "launch_config",
    "optional",
    "strided",
    "strided_reset",
    "words",
]

_LANES = 32  # threads of a warp, each with one column of words
_WANTED = 8  # warps per multiprocessor, for which sequences are cut into chunks
_SHORT, _SHORTEST, _FEW = 512, 128, 8
"""A chunk has at least 512 steps, or 128 in up to 8 chunks: few columns wait 20 to 45 ns for each step, whatever they
read, but the state that enters a chunk has to be found, too (docs/log.md)."""
_SECTOR = 8  # words of 32 bytes, what memory moves at least
_ALIGNED = 4  # words of 16 bytes, the most that a thread copies at once


class Tiling(NamedTuple):
    """How a program walks over time. Each is compiled anew."""

    U: int
    """Steps of each strand at once."""
    stages: int
    """Tiles on the way to shared memory while one is computed, plus one."""
    warps: int = 1
    BN: int = _LANES
    """Columns; ``32 * warps // BN`` strands, neighbours in time, share them."""


Words = Literal["wide", "pairs", "unaligned", "single"]
"""What a kernel reads at once: a number of 32 or 64 bits or two of 16 bits, from rows that are aligned to 32
bytes or not; or one of 16."""
Tilings = tuple[tuple[float, Tiling], ...]
"""A kernel's tilings, each with the fewest warps per multiprocessor that it is for, counted as if each warp had 32
columns and all of time: the fewer there are, the more each has to fetch. With fewer than the last one says, sequences
are cut into chunks. Measured on an H200 (docs/kernels.md)."""


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

    @property
    def kernel_options(self) -> dict[str, int]:
        return {"BN": self.BN, "S": self.S, "U": self.U, "STAGES": self.stages, "num_warps": self.warps}


@lru_cache(4096)
def launch_config(B: int, T: int, N: int, tilings: Tilings, loads: int, device: torch.device) -> LaunchConfig:
    """Cut ``B`` sequences of ``T`` steps of ``N`` words, of which a step loads ``loads`` bytes per column.

    A warp has 32 columns and walks over all of time alone, which takes the fewest instructions. If there are too few
    columns to fill the GPU, several strands of time share them, or sequences are cut into chunks.
    """
    filled = B * _ceil(N, _LANES) / _multiprocessors(device)
    C = 1
    if filled < tilings[-1][0]:
        most = max(1, T // _SHORT, min(T // _SHORTEST, _FEW))
        C = min(_ceil(max(_WANTED, tilings[0][0]), filled), most)
    tiling = next((each for fewest, each in tilings if filled * C >= fewest), tilings[-1][1])
    U, stages = tiling.U, tiling.stages
    BN = min(tiling.BN, 1 << (N.bit_length() - 1))
    while BN > _LANES and _ceil(N, BN) * BN > 1.1 * _ceil(N, BN // 2) * (BN // 2):
        BN //= 2  # fewer columns that two blocks compute; below 32 rows are too short (docs/log.md)
    warps = max(1, tiling.warps * BN // tiling.BN)
    S = _LANES * warps // BN
    blocks = _ceil(N, BN)
    while stages > 1 and BN * S * U * loads * stages > _shared_memory(device):
        U, stages = (U // 2, stages) if U > 1 else (U, stages - 1)  # with one stage nothing waits in shared memory
    L = _ceil(_ceil(T, C), S * U) * S * U
    C = _ceil(T, L)
    if C * L + S * U >= 1 << 31:  # kernels number the steps with 32 bits, also those that a last tile has too many
        raise BackendError(f"the GPU kernels scan fewer than 2^31 steps, got {T}: scan it in pieces")
    return LaunchConfig(BN, S, U, warps, stages, C, L, blocks, programs=B * C * blocks)


def _ceil(a: float, b: float) -> int:
    return int(-(-a // b))


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


Strided = tuple[Tensor | None, int, int]
"""A tensor as kernel arguments: its first row in the order of the scan; the strides of batch and time."""


def strided(x: Tensor | None, reverse: bool, per_word: int = 1) -> Strided:
    """``x [B, T, N]`` with contiguous columns, or None, with strides in words; reading backwards is a negative one."""
    if x is None:
        return None, 0, 0
    x = contiguous_columns(x)
    b, t, _ = x.stride()
    b, t = b // per_word, t // per_word
    return (x[:, -1], b, -t) if reverse else (x, b, t)


def align(N: int, *tensors: Strided) -> tuple[int, list[Strided]]:
    """ROW, and the tensors with strides in units of ROW words: 4 if all rows are aligned to as many, otherwise 1."""
    aligned = all(n % _ALIGNED == 0 for n in (N, *(n for _, b, t in tensors for n in (b, t))))
    ROW = _ALIGNED if aligned else 1
    return ROW, [(x, b // ROW, t // ROW) for x, b, t in tensors]


def strided_reset(reset: Tensor | None, reverse: bool) -> tuple[Tensor | None, int, int]:
    """``reset [B, T]`` as bytes, or None, with its strides."""
    if reset is None:
        return None, 0, 0
    x = reset.view(torch.uint8)
    return x[:, -1 if reverse else 0], x.stride(0), -x.stride(1) if reverse else x.stride(1)


def optional(x: Tensor | None, like: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
    """A tensor that may be missing, and whether it is there. A kernel that takes None is compiled again for it."""
    return (_nothing(dtype, like.device), 0) if x is None else (x, 1)


@cache
def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Without memory: it stays, and the first call may come while a CUDA graph owns what is allocated."""
    return torch.empty(0, dtype=dtype, device=device)


def words(per_word: int, N: int, x: Tensor) -> Words:
    if per_word == 1 and x.itemsize == 2:
        return "single"
    if N % _SECTOR:
        return "unaligned"
    return "pairs" if per_word > 1 else "wide"


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


def can_pack(*tensors: Tensor | None, count: int = 2) -> bool:
    """Whether ``count`` numbers of each tensor, of at most 32 bits together, can be read as one word."""
    for x in tensors:
        if x is not None and (x.itemsize * count > 4 or x.data_ptr() % (count * x.itemsize) or x.shape[-1] % count):
            return False
        if x is not None and (x.stride(-1) != 1 or any(n % count for n in x.stride()[:-1])):
            return False
    return True
