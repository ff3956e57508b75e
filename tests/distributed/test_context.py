"""A sequence cut over two and four ranks (gloo) gives what one process computes; see cut_sequence.py."""

import pytest
import torch

import multistable
from multistable.ops import pieces
from ranks import run


@pytest.mark.extra
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_compute_what_one_process_does(size, tmp_path):
    for status, output, errors in run("cut_sequence.py", size, tmp_path, timeout=500):
        assert status == 0, errors[-3000:]
        assert output == "all equal\n"


def test_a_context_also_ends_by_an_error():
    """And outside of it, every input is a whole sequence."""
    with pytest.raises(KeyError), pieces.use(object()):
        raise KeyError(pieces.current())
    assert pieces.current() is None
    multistable.BMRU(2, 3)(torch.randn(4, 1, 2))
