"""A sequence cut over two and four ranks (gloo) gives what one process computes; see ranks.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import multistable
from multistable.ops import pieces

HERE = Path(__file__).parent


def launch(script: str, size: int, *args: object) -> list[subprocess.Popen]:
    """One process per rank."""
    source = Path(multistable.__file__).parents[1]
    env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(size)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, str(HERE / script), *map(str, args)]
    return [subprocess.Popen(command, env=env | {"RANK": str(rank)}, **pipes) for rank in range(size)]


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.extra)])
def test_ranks_compute_what_one_process_does(size, tmp_path):
    ranks = launch("ranks.py", size, tmp_path)
    try:
        results = [rank.communicate(timeout=400) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            if rank.stdout and not rank.stdout.closed:
                rank.communicate()
    for rank, (output, errors) in zip(ranks, results, strict=True):
        assert rank.returncode == 0, errors[-3000:]
        assert output == "all equal\n"


def test_a_context_ends_also_by_an_error():
    """And without one, every input is a whole sequence."""
    marker = object()
    with pytest.raises(KeyError), pieces.use(marker):
        assert pieces.current() is marker
        raise KeyError
    assert pieces.current() is None
    multistable.BMRU(2, 3)(torch.randn(4, 1, 2))
