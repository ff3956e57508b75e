"""The parallel scan of the paper's appendix B, in plain torch, for claims on its operator and its depth."""

from collections.abc import Callable
from typing import Any

import torch


def associative_scan(combine: Callable[[Any, Any], Any], elements: Any) -> Any:
    """Prefixes ``e_1, e_1 e_2, e_1 e_2 e_3, ...`` along axis 1 of tuples of tensors, in O(T) work and O(log T) depth.

    ``combine(first, then)`` must be associative.
    """
    T = elements[0].shape[1]
    if T == 1:
        return elements
    pairs = combine(tuple(x[:, : T - 1 : 2] for x in elements), tuple(x[:, 1::2] for x in elements))
    odd = associative_scan(combine, pairs)  # prefixes that end at steps 1, 3, 5, ...
    rest = (T - 1) // 2
    even = combine(tuple(x[:, :rest] for x in odd), tuple(x[:, 2::2] for x in elements))
    result = tuple(torch.empty_like(x) for x in elements)
    for out, x, at_odd, at_even in zip(result, elements, odd, even, strict=True):
        out[:, 0], out[:, 1::2], out[:, 2::2] = x[:, 0], at_odd, at_even
    return result
