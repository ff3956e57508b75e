import pytest
import torch

from multistable import BMRU, StepGraph


def test_needs_a_gpu():
    with pytest.raises(ValueError, match="x must be on a GPU"):
        StepGraph(BMRU(3, 4), torch.zeros(1, 3))
