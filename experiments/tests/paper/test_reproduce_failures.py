"""``multistable reproduce``: missing data, failed runs and damaged files are named, and the rest is computed."""

import time
from dataclasses import replace

import pytest
import torch

from multistable_experiments.paper import experiments, store
from multistable_experiments.paper.experiments import Experiment, plan
from multistable_experiments.training.loop import OutOfTimeError, Training, train_run
from multistable_experiments.training.results import folder_of
from reproduced import records, without_times
from small_data import write_pathfinder
from training_runs import QUIET, copy_first_run


def test_a_run_that_needs_too_much_memory_is_named_and_skipped(reproduce_smoke, monkeypatch):
    first, *others = plan(["copy-first"], "smoke", None, ["tuned"])
    finish = Training.finish
    monkeypatch.setattr(
        Training, "finish", lambda self: torch.empty(1 << 50) if self.run == first.run else finish(self)
    )
    summary = reproduce_smoke(["copy-first"])
    assert (summary.done, list(summary.skipped), summary.exit_code) == (len(others), [first.name], 1)
    assert any(
        "cannot be computed: out of memory (CPU) in the run copy-first-" in line for line in reproduce_smoke.lines
    )


def test_a_result_without_metrics_is_not_taken_for_complete(reproduce_smoke):
    reproduce_smoke(["copy-first"])
    record = records(reproduce_smoke)["bmru-T10-seed0"]
    store.write(reproduce_smoke.path / "here" / "results", replace(record, metrics={}))
    reproduce_smoke(["copy-first"])
    assert records(reproduce_smoke)["bmru-T10-seed0"] == record


@pytest.mark.usefixtures("few_images")
def test_missing_data_is_named_and_does_not_stop_the_rest(reproduce_smoke):
    write_pathfinder("easy", 30)
    summary = reproduce_smoke(["permuted-mnist", "pathfinder", "copy-first"])
    assert summary.exit_code == 1
    assert summary.skipped.keys() == {"mnist", "pathfinder hard"}
    assert "set MULTISTABLE_DATA to the folder that holds mnist/" in summary.skipped["mnist"]
    assert "multistable data pathfinder --level hard" in summary.skipped["pathfinder hard"]
    assert summary.done == 6 + 3
    assert len([line for line in reproduce_smoke.lines if "no data for" in line]) == 2, "each is reported once"
    assert reproduce_smoke.lines[-1] == "9 of 16 are there; not computed: mnist, pathfinder hard"


def test_too_few_images_count_as_missing_data(reproduce_smoke):
    for level in ("hard", "easy"):
        write_pathfinder(level, 20)
    summary = reproduce_smoke(["pathfinder"])
    assert "easy32.npz holds 20 images" in summary.skipped["pathfinder easy"]
    assert summary.done == 0


def test_a_failed_run_is_recorded_and_not_repeated(reproduce_smoke, two_runs):
    summary = reproduce_smoke(["two"])
    assert (summary.done, summary.failed, summary.exit_code) == (2, ["bad-seed0"], 0)
    bad, good = records(reproduce_smoke)["bad-seed0"], records(reproduce_smoke)["good-seed0"]
    assert "the loss is not finite in epoch 1, step 2: first in the layer" in bad.failure
    assert bad.metrics == {}
    assert bad.options == good.options == {"graph": False, "compiled": False}, "as computed, not as requested"
    assert (bad.machine["device"], bad.machine["processes"]) == ("cpu", 1)
    assert bad.parameters > good.parameters
    assert bad.seconds > 0
    assert good.failure is None
    reproduce_smoke(["two"])
    assert reproduce_smoke.lines[0] == "2 experiments at scale smoke: 2 are there, 0 to compute"


def test_a_damaged_checkpoint_is_named_and_kept(reproduce_smoke, two_runs):
    _, good = experiments.EXPERIMENTS["two"]("smoke", 0, "tuned")
    folder = folder_of(good.run, reproduce_smoke.path / "here" / "runs")
    with pytest.raises(OutOfTimeError):
        train_run(good.run, folder.parent, replace(QUIET, deadline=time.perf_counter()))
    path = folder / "last.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    summary = reproduce_smoke(["two"], seeds=2)
    assert summary.exit_code == 1
    assert "last.safetensors is truncated" in summary.skipped["good-seed0"]
    assert summary.done == 3
    assert path.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", "{"),
        ("result.json", "[]"),
        ("result.json", "{}"),
        ("tests.json", ""),
        ("tests.json", "3"),
        ("tests.json", '{"tests": []}'),
    ],
)
def test_a_damaged_file_of_a_run_is_named_and_kept(reproduce_smoke, name, content):
    reproduce_smoke(["generalisation"])
    record = records(reproduce_smoke)["bmru-T10-seed0"]
    store.path_of(reproduce_smoke.path / "here" / "results", "smoke", "tuned", "copy-first", record.name).unlink()
    path = folder_of(record.run, reproduce_smoke.path / "here" / "runs") / name
    path.write_text(content)
    summary = reproduce_smoke(["generalisation"], seeds=2)
    assert summary.exit_code == 1
    assert f"{path} is truncated or corrupt: " in summary.skipped[record.name]
    assert summary.done == 3, "the other experiments continue"
    assert any(f"cannot be computed: {path}" in line for line in reproduce_smoke.lines)
    assert reproduce_smoke.lines[-1] == f"3 of 4 are there; not computed: {record.name}"
    assert path.read_text() == content
    path.unlink()
    assert reproduce_smoke(["generalisation"], seeds=2).exit_code == 0
    assert without_times(records(reproduce_smoke)[record.name]) == without_times(record)


def test_a_damaged_model_is_named(reproduce_smoke):
    reproduce_smoke(["copy-first"])
    record = records(reproduce_smoke)["bmru-T10-seed0"]
    folder = folder_of(record.run, reproduce_smoke.path / "here" / "runs")
    (folder / "model" / "model.safetensors").write_bytes(b"")
    summary = reproduce_smoke(["generalisation"], seeds=2)
    assert summary.exit_code == 1
    assert "model.safetensors is truncated" in summary.skipped[record.name]
    assert f"remove {folder} to compute the run anew" in summary.skipped[record.name]
    assert summary.done == summary.planned - 1


def test_the_result_of_another_run_is_not_overwritten(reproduce_smoke, two_runs, monkeypatch):
    reproduce_smoke(["two"])
    known = records(reproduce_smoke)["good-seed0"]
    changed = replace(copy_first_run(("bmru",)), batch_size=10)
    monkeypatch.setitem(experiments.EXPERIMENTS, "two", lambda scale, seed, recipe: [Experiment("good", changed)])
    summary = reproduce_smoke(["two"])
    words = f"the file of its name holds the result of another run, {known.id}"
    assert summary.skipped == {"good-seed0": words}
    assert summary.exit_code == 1
    assert f"  {words}, which is not overwritten" in reproduce_smoke.lines
    assert records(reproduce_smoke)["good-seed0"] == known


def test_damaged_results_are_not_overwritten(reproduce_smoke):
    reproduce_smoke(["copy-first"])
    path = store.path_of(reproduce_smoke.path / "here" / "results", "smoke", "tuned", "copy-first", "bmru-T10-seed0")
    path.write_text("{")
    with pytest.raises(ValueError, match=r"bmru-T10-seed0\.json is truncated or corrupt"):
        reproduce_smoke(["copy-first"])
    assert path.read_text() == "{"
