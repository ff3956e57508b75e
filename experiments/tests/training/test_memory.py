"""Out of memory on a CPU, in torch or in Python, is one class of error that names the run."""

import numpy as np
import pytest
import torch

from multistable_experiments.training.loop import Training, train_run
from multistable_experiments.training.memory import named_memory_errors
from training_runs import QUIET, copy_first_run


@pytest.mark.parametrize(
    "allocate",
    [lambda: torch.empty(1 << 50), lambda: np.zeros(1 << 55), lambda: bytearray(1 << 60)],
    ids=["torch", "numpy", "python"],
)
def test_running_out_of_memory_is_one_kind_of_error(allocate):
    with pytest.raises(torch.OutOfMemoryError, match=r"^out of memory \(CPU\) in it: "), named_memory_errors("it"):
        allocate()


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="shapes") as caught, named_memory_errors("it"):
        torch.zeros(2, 3) @ torch.zeros(2, 3)
    assert not isinstance(caught.value, torch.OutOfMemoryError)


def test_a_run_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Training, "train_epoch", lambda self: torch.empty(1 << 50))
    with pytest.raises(torch.OutOfMemoryError, match=r"in the run copy-first-[0-9a-f]{12}: a smaller model"):
        train_run(copy_first_run(), tmp_path, QUIET)
