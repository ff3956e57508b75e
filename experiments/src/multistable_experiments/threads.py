"""Compute on one of torch's threads."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_thread"]


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread, for small tensors: more save nothing, and on a busy machine they wait for each other.

    On two busy cores the demo's training of copy-first took 250 s with two threads and 20 s with one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
