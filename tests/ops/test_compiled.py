"""Loops compile even where numba can keep no cache."""

import pytest
from numba import njit

from multistable.ops.compiled import compiled


def homeless():
    """A function of no file: numba finds no folder for its cache, as for a package that must not be written."""
    names = {}
    exec("def double(x):\n    return 2 * x", names)
    return names["double"]


def test_without_a_place_for_the_cache():
    with pytest.raises(RuntimeError, match="cannot cache function"):
        njit(cache=True)(homeless())
    assert compiled()(homeless())(21) == 42
