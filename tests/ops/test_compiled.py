"""Loops compile even where numba cannot cache."""

import pytest
from numba import njit

from multistable.ops.compiled import compiled


def function_without_file():
    """A function that numba finds no cache folder for, like those of a read-only package."""
    names = {}
    exec("def double(x):\n    return 2 * x", names)
    return names["double"]


def test_compiles_without_a_cache_folder():
    with pytest.raises(RuntimeError, match="cannot cache function"):
        njit(cache=True)(function_without_file())
    assert compiled()(function_without_file())(21) == 42
