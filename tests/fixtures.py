"""Settings and fixtures for all tests, of the library and of the experiments."""

import os
import signal
from collections.abc import Iterator

import pytest
import torch

__all__ = ["seed", "small_spans", "ten_seconds", "two_threads", "uninitialised_memory_is_nan"]

try:
    from hypothesis import settings
except ImportError:  # GPU machines may have torch, Triton and pytest only
    pass
else:
    settings.register_profile("local", deadline=None, max_examples=20)
    settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True)
    settings.load_profile("ci" if os.environ.get("CI") else "local")

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS for deterministic algorithms

torch.set_num_threads(1)  # tensors are tiny here; threads waiting for each other slow down a busy machine


@pytest.fixture(autouse=True)
def uninitialised_memory_is_nan() -> Iterator[None]:
    """Fill new memory with NaN, so that an element that was never written cannot pass for a result."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.utils.deterministic.fill_uninitialized_memory = before[1]


@pytest.fixture
def small_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the compiled backend split even small tensors among threads."""
    monkeypatch.setattr("multistable.ops.cpu._SMALLEST_SPAN", 1 << 12)


@pytest.fixture
def two_threads(small_spans: None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def ten_seconds() -> Iterator[None]:
    """Fail after ten seconds: what waits for a pipe would wait for ever."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("took ten seconds"))
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
