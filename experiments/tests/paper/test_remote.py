"""Experiments as tasks of an engine, without the engine."""

import math
import os
import threading
from pathlib import Path

import pytest

from multistable_experiments.files import locked
from multistable_experiments.paper import remote
from multistable_experiments.paper.experiments import copy_first
from multistable_experiments.training.results import folder_of
from training_runs import QUIET


@pytest.mark.parametrize(("patience", "done"), [(30.0, 1), (0.0, 0)])
def test_a_task_waits_for_the_attempt_before_it(patience, done, tmp_path, monkeypatch):
    """The lock of a worker that is about to die."""
    monkeypatch.setattr(remote, "PATIENCE", patience)
    experiment = copy_first("smoke")[0]
    folder = folder_of(experiment.run, tmp_path / "runs")
    folder.mkdir(parents=True)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(folder) as alone:
            assert alone
            held.set()
            release.wait(2.0)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    task = remote.Task(experiment, "smoke", tmp_path / "runs", tmp_path / "results", QUIET, math.inf)
    lines, summary = remote.compute_task(task)
    release.set()
    holder.join()
    assert summary.done == done, lines
    assert len(list(Path(tmp_path / "results").rglob("*.json"))) == done
    assert ("another process" in str(summary.skipped)) == (not done)
    assert sum("in use" in line for line in lines) == 1 - done
    log = (folder / remote.LOG).read_text().splitlines()
    assert log[0].endswith(f"{os.getpid()}: begins")
    assert ("test mse" in log[-1]) == bool(done)
