"""Compile loops with numba. Only modules with such loops import this: importing numba takes a second."""

from collections.abc import Callable
from typing import Any

from numba import njit

__all__ = ["compiled"]


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate with numba's ``njit``, without the GIL, compiled once per machine.

    If neither the package's folder nor the user's is writable, numba has no place for its cache and raises; the loops
    are then compiled once per process.
    """

    def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return njit(nogil=True, cache=True, **options)(function)
        except RuntimeError:
            return njit(nogil=True, **options)(function)

    return compile_function
