"""Maps from K states to K states as *words*: one integer per map, and composition of maps in plain torch.

    word = sum_k map[k] * 2^(bits * k),   bits = 1, 2, 3, 4 for K up to 2, 4, 8, 16

A word has 2^bits places; those from K on hold their own number, so that every place is a state. Words of up to 8 bits
are stored as uint8, of 24 as int32, of 64 as int64: a step moves 1, 1, 4 or 8 bytes instead of K, and the kernels hold
a whole map in one register.
"""

import torch
from torch import Tensor

__all__ = ["MOST_STATES", "compose", "constant", "look_up", "pack", "padding", "state_bits", "unpack", "word_dtype"]

MOST_STATES = 16
_WORDS = {1: torch.uint8, 2: torch.uint8, 3: torch.int32, 4: torch.int64}


def state_bits(K: int) -> int:
    """How many bits number K states; at least 1."""
    return max(1, (K - 1).bit_length())


def word_dtype(K: int) -> torch.dtype:
    return _WORDS[state_bits(K)]


def padding(K: int) -> int:
    """The places from K on of every word, as a signed integer."""
    bits = state_bits(K)
    word = sum(k << bits * k for k in range(K, 1 << bits))
    return word - (1 << 64) if word >> 63 else word


def pack(maps: Tensor) -> Tensor:
    """Maps ``[..., K]`` of states below K as words ``[...]``."""
    K, bits = maps.shape[-1], state_bits(maps.shape[-1])
    words = torch.full(maps.shape[:-1], padding(K), dtype=word_dtype(K), device=maps.device)
    for k in range(K):
        words |= maps[..., k].to(words.dtype) << bits * k
    return words


def unpack(words: Tensor, K: int) -> Tensor:
    """The inverse of :func:`pack`, as int64 ``[..., K]``, which can be an index."""
    bits = state_bits(K)
    shifts = bits * torch.arange(K, device=words.device)
    return (words[..., None].long() >> shifts) & ((1 << bits) - 1)


def look_up(words: Tensor, states: Tensor, bits: int) -> Tensor:
    """``map[state]``, elementwise; ``states`` has the dtype of the words."""
    return (words >> bits * states) & ((1 << bits) - 1)


def compose(first: Tensor, then: Tensor, bits: int) -> Tensor:
    """The word of ``k -> then[first[k]]``. Associative, not commutative."""
    result = torch.zeros_like(then)
    for k in range(1 << bits):
        middle = (first >> bits * k) & ((1 << bits) - 1)
        result |= look_up(then, middle, bits) << bits * k
    return result


def constant(words: Tensor, bits: int) -> Tensor:
    """The word of ``k -> map[0]``: a step whose state before was reset."""
    return (words & ((1 << bits) - 1)) * sum(1 << bits * k for k in range(1 << bits))
