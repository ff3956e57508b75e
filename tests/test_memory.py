"""Huge pages are asked for where they pay, as the kernel sees it."""

import sys
from pathlib import Path

import pytest
import torch

from multistable.ops import memory

SMAPS = Path("/proc/self/smaps")
MIB = 1 << 20


def advised(x: torch.Tensor) -> bool:
    """Whether the mapping that holds the middle of ``x`` was advised to use huge pages (``hg`` among its flags)."""
    inside, middle = False, x.data_ptr() + x.nbytes // 2
    for line in SMAPS.read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(bound, 16) for bound in first.split("-"))
            inside = start <= middle < end
        elif inside and first == "VmFlags:":
            return "hg" in line.split()
    raise AssertionError("no such mapping")


@pytest.mark.skipif(sys.platform != "linux" or not SMAPS.exists(), reason="reads Linux's list of mappings")
@pytest.mark.parametrize(("size", "huge"), [(64 * MIB, True), (257 * MIB, False)])
def test_huge_pages_up_to_256_mib(size: int, huge: bool) -> None:
    assert advised(memory.fresh(torch.empty(1, dtype=torch.uint8), (size,))) == huge
