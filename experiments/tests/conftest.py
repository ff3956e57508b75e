"""Fixtures that pytest finds here; ``fixtures.py`` among the library's tests has them."""

from fixtures import seed, small_spans, two_threads, uninitialised_memory_is_nan

__all__ = ["seed", "small_spans", "two_threads", "uninitialised_memory_is_nan"]
