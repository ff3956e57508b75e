"""Compile loops with numba, on any machine. Only the files with the loops import this: numba takes a second."""

from collections.abc import Callable
from typing import Any

from numba import njit

__all__ = ["compiled"]


def compiled(**options: Any) -> Callable[[Callable], Callable]:
    """A decorator: numba's ``njit`` without the GIL, compiled once per machine.

    Where neither the package's folder nor the user's can be written, numba has no place for its cache and refuses; the
    loops are then compiled once per process.
    """

    def compile_function(function: Callable) -> Callable:
        try:
            return njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:
            return njit(nogil=True, **options)(function)

    return compile_function
