"""Small runs for tests to train."""

from dataclasses import replace

import torch

from multistable.models import ModelConfig
from multistable_experiments.tasks import CopyFirst, HoldBit
from multistable_experiments.training.loop import Options
from multistable_experiments.training.processes import Processes
from multistable_experiments.training.run import Run, Schedule

ALONE = Processes(torch.device("cpu"))
QUIET = Options(device="cpu", show_progress=False)
FAST = Schedule(start=1e-3, peak=4e-3, end=1e-5, warmup_epochs=1)


def copy_first_run(cells=("bmru",), length=8, samples=200, d_model=8, d_state=8, dropout=0.0, **changes) -> Run:
    task = CopyFirst(length=length, train_samples=samples, test_samples=50)
    model = ModelConfig(cells, task.d_input, task.d_output, d_model=d_model, d_state=d_state, dropout=dropout)
    return replace(Run(task, model, epochs=3, batch_size=20, schedule=FAST), **changes)


def hold_bit_run(cells=("bmru",), length=50, d_state=16, **changes) -> Run:
    task = HoldBit(length=length, train_samples=640)
    model = ModelConfig(cells, task.d_input, task.d_output, d_model=16, d_state=d_state)
    return replace(Run(task, model, epochs=10, batch_size=32, schedule=FAST), **changes)


def numbers(result: dict) -> tuple:
    """What must agree between equal runs: everything except times."""
    times = {"seconds", "timesteps_per_second"}
    history = [{key: value for key, value in record.items() if key not in times} for record in result["history"]]
    return history, result["metrics"]
