"""Compile loops with numba. Only modules with such loops import this: importing numba takes a second."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache

__all__ = ["compiled"]


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate with numba's ``njit``, without the GIL, compiled once per machine.

    If neither the package's folder nor the user's is writable, numba has no place for its cache and raises; the loops
    are then compiled once per process.
    """

    def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
        dispatcher: Any = njit(nogil=True, **options)(function)
        with suppress(RuntimeError):
            dispatcher._cache = _Cache(function)
        return dispatcher

    return compile_function


_Base: Any = FunctionCache  # numba has no types


class _Cache(_Base):
    """numba's cache, except that files that cannot be read or written are a warning.

    numba raises at every call for ever: EOFError for an empty file, OSError for a full disk.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        base: Any = super()
        try:
            return base.load_overload(sig, target_context)
        except Exception as error:  # unpickling damaged bytes raises anything
            _warn(f"numba's cache in {self.cache_path} is damaged ({type(error).__name__}): compiling again")
            with suppress(OSError):
                self.flush()

    def save_overload(self, sig: Any, data: Any) -> None:
        base: Any = super()
        try:
            base.save_overload(sig, data)
        except OSError as error:
            _warn(f"{self.cache_path} cannot hold numba's cache ({error.strerror}): every process compiles again")


@cache
def _warn(message: str) -> None:
    """Warn once per process, whatever the filters."""
    warnings.warn(message, RuntimeWarning, stacklevel=3)
