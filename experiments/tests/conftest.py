"""Make the fixtures of the library's ``tests/fixtures.py`` available to pytest."""

from fixtures import seed, small_spans, ten_seconds, two_threads, uninitialised_memory_is_nan

__all__ = ["seed", "small_spans", "ten_seconds", "two_threads", "uninitialised_memory_is_nan"]
