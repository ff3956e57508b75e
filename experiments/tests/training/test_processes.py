"""Two processes on the CPU: there really are two, and they train like one process with the whole batch."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from multistable_experiments.paper.settings import make_run, preset
from multistable_experiments.training import checkpoint, results
from multistable_experiments.training.loop import train_run
from multistable_experiments.training.processes import LostProcessError, Processes
from multistable_experiments.training.results import folder_of
from sources import environment
from training_runs import QUIET

pytest.importorskip("accelerate", reason="accelerate is not installed")
pytestmark = pytest.mark.extra

HERE = Path(__file__).parents[1]
# `accelerate launch --cpu --num_processes 2` would start only one process. This starts two, as torchrun does.
LAUNCHER = [
    "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
    "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "29518",
]  # fmt: skip


def launch(*words):
    env = environment(OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="true", PYTHONWARNINGS="default")
    command = [sys.executable, "-m", *LAUNCHER, str(HERE / "train_two.py"), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes_train_as_one(tmp_path):
    words = ["copy-first", "--scale", "smoke", "--cell", "bmru,lru", "--batch-size", "36", "--device", "cpu"]
    output = launch(*words, "--longer", "100", "--out", str(tmp_path / "two"))
    assert output.count("best on validation") == 1, "one table, not two"
    assert output.count("threads of gloo at exit: []") == 2, "one that outlives the interpreter aborts the process"
    run = make_run(replace(preset("copy-first", "smoke"), batch_size=36), ("bmru", "lru"))
    together = results.read(folder_of(run, tmp_path / "two"), run)
    assert together is not None
    assert together["machine"]["processes"] == 2
    alone = train_run(run, tmp_path / "one", QUIET)
    assert alone["machine"]["processes"] == 1
    assert len(alone["history"]) == len(together["history"]) == 2
    for one, two in zip(alone["history"], together["history"], strict=True):
        for key in ("train_loss", "valid_loss"):
            assert two[key] == pytest.approx(one[key], rel=2e-5)
    weights = [checkpoint.load(folder_of(run, tmp_path / which) / "last.safetensors")[0] for which in ("one", "two")]
    for name in ("model.blocks.0.norm.running_mean", "model.blocks.1.norm.running_var", "model.encoder.weight"):
        torch.testing.assert_close(weights[1][name], weights[0][name], rtol=1e-4, atol=1e-5)


def test_shares_cover_everything_once():
    for size in (0, 1, 5, 12):
        rows = [row for rank in range(3) for row in range(size)[Processes(torch.device("cpu"), rank, 3).share(size)]]
        assert rows == list(range(size))


TOOL = Path(__file__).parents[3] / "tools" / "kills.py"


def test_a_killed_process_is_named_by_the_other_and_the_run_resumes():
    command = [sys.executable, str(TOOL), "--kills", "3"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kills of a training in 2 processes, 3 named by the other" in done.stdout


@pytest.mark.parametrize(("count", "which"), [(2, "process 1"), (3, "one of the processes 1, 2")])
def test_only_errors_of_connections_are_those_of_a_lost_process(count, which):
    processes = Processes(torch.device("cpu"), 0, count)
    with pytest.raises(LostProcessError, match=f"process 0 lost {which} of {count}"), processes.naming_the_lost():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer\nmore")
    for error, group in (
        (RuntimeError("shapes differ"), processes),
        (RuntimeError("gloo"), Processes(torch.device("cpu"))),
    ):
        with pytest.raises(RuntimeError) as caught, group.naming_the_lost():
            raise error
        assert caught.value is error
