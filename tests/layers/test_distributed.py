"""Layers under DataParallel, DistributedDataParallel and FSDP2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import multistable
from multistable import BMRU

TESTS = Path(__file__).parents[1]


@pytest.mark.extra
def test_two_processes_compute_what_one_does(tmp_path):
    """Forward, backward, ``step`` and checkpoints under DDP and FSDP2; see two_processes.py."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = os.environ | {"PYTHONPATH": str(Path(multistable.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, TESTS / "two_processes.py", tmp_path], capture_output=True, text=True, env=env, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("all equal") == 2


def test_parameters_can_be_resized_after_a_call():
    """FSDP frees the memory of gathered parameters, which ``numpy()`` would pin."""
    for start in ("zero", "branch"):
        rnn = BMRU(3, 4, start=start, backend="cpu")
        output, _ = rnn(torch.randn(5, 2, 3))
        output.sum().backward()
        for parameter in rnn.parameters():
            parameter.untyped_storage().resize_(0)


def test_data_parallel():
    """Without a GPU it calls the module itself; on several, replicas have no parameters of their own."""
    rnn, x = BMRU(3, 4, batch_first=True), torch.randn(2, 5, 3)
    output, _ = torch.nn.DataParallel(rnn)(x)
    assert torch.equal(output, rnn(x)[0])
    replica = rnn._replicate_for_data_parallel()
    for name, parameter in rnn.named_parameters():
        setattr(replica, name, parameter.detach().clone().requires_grad_())
    assert not list(replica.parameters())
    assert torch.equal(replica(x)[0], output)
