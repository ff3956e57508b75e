"""The folder of a run: damaged files raise and are kept; trained models can be loaded."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from full_disk import limited_memory
from multistable.models import SequenceModel
from multistable_experiments.files import write_json
from multistable_experiments.tasks import TASKS, HoldBit
from multistable_experiments.training import checkpoint
from multistable_experiments.training.evaluate import Evaluator
from multistable_experiments.training.loop import train_run
from multistable_experiments.training.results import folder_of, load_trained
from multistable_experiments.training.run import Schedule
from training_runs import ALONE, QUIET, copy_first_run, hold_bit_run, numbers

RUN = copy_first_run(samples=40, epochs=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run."""
    train_run(RUN, tmp_path, QUIET)
    return folder_of(RUN, tmp_path)


DAMAGE = {
    "empty": lambda text: b"",
    "cut off": lambda text: text[: len(text) // 2],
    "a list": lambda text: b"[]",
    "nested without end": lambda text: b"[" * 100_000,
    "another encoding": lambda text: text.decode().encode("utf-16"),
    "a lost entry": lambda text: json.dumps(dict(list(json.loads(text).items())[1:])).encode(),
    "an edited number": lambda text: text.replace(b'"seed": 0', b'"seed": 1'),
}


@pytest.mark.parametrize("name", ["run.json", "result.json"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_named_and_not_overwritten(folder, name, kind):
    if name == "run.json":
        (folder / "result.json").unlink()
    path = folder / name
    whole = path.read_bytes()
    damaged = DAMAGE[kind](whole)
    assert damaged != whole
    path.write_bytes(damaged)
    with pytest.raises(checkpoint.CheckpointError, match=f"^{path} is .*corrupt.*; remove it to compute again"):
        train_run(RUN, folder.parent, QUIET)
    assert path.read_bytes() == damaged
    path.unlink()
    assert numbers(train_run(RUN, folder.parent, QUIET))
    assert name == "result.json" or path.read_bytes() == whole


@pytest.mark.parametrize("name", ["run.json", "result.json"])
def test_a_file_of_another_run_raises(folder, name):
    other = copy_first_run(seed=1)
    if name == "run.json":
        (folder / "result.json").unlink()
    write_json(folder / name, other.to_dict() if name == "run.json" else {"id": other.id, "run": other.to_dict()})
    message = f"{name} belongs to another run: {other.id}, expected {RUN.id}"
    with pytest.raises(checkpoint.CheckpointError, match=message):
        train_run(RUN, folder.parent, QUIET)


@pytest.mark.parametrize("name", ["last.safetensors", "metrics.jsonl", "result.json", "run.json"])
def test_a_folder_in_place_of_a_file_raises_before_any_work(tmp_path, name):
    (folder_of(RUN, tmp_path) / name).mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match=name):
        train_run(RUN, tmp_path, QUIET)
    assert not list(tmp_path.rglob("best.safetensors"))


def test_a_finished_run_is_not_computed_again(folder):
    result = train_run(RUN, folder.parent, QUIET)
    values = {name: value for name, value in result.items() if name != "checksum"}
    write_json(folder / "result.json", {**values, "marked": True})
    assert train_run(RUN, folder.parent, QUIET)["marked"]


def test_best_weights_are_best_on_validation_and_can_be_loaded(tmp_path):
    run = copy_first_run(epochs=6, seed=0, schedule=Schedule(5e-2, 5e-2, 5e-2, 0))
    result = train_run(run, tmp_path, QUIET)
    scores = [record["valid_mse"] for record in result["history"]]
    best = result["metrics"]["best"]
    assert best["epoch"] == scores.index(min(scores)) + 1 != 6
    for which, values in result["metrics"].items():
        again, model = load_trained(folder_of(run, tmp_path), which)
        assert again == run
        evaluated = Evaluator(run.task, model, 20, "float32", ALONE)(run.task.samples("test", run.seed))
        assert evaluated.score == values["test_mse"]
    exported = SequenceModel.from_pretrained(folder_of(run, tmp_path) / "model")
    evaluated = Evaluator(run.task, exported, 20, "float32", ALONE)(run.task.samples("test", run.seed))
    assert evaluated.score == best["test_mse"]


@pytest.mark.parametrize("which", ["best", "last"])
def test_a_small_file_that_describes_a_huge_model_is_refused_at_once(tmp_path, which):
    """948 bytes made a model of 10.9 GB before they were compared with it."""
    run = replace(RUN, model=replace(RUN.model, d_model=30_000, d_state=15_000))
    tensors = {"model.blocks.0.skip" if which == "last" else "blocks.0.skip": torch.zeros(1)}
    checkpoint.save(tmp_path / f"{which}.safetensors", tensors, {"run": run.to_dict()})
    with limited_memory(1 << 30), pytest.raises(checkpoint.CheckpointError, match="does not fit the run it describes"):
        load_trained(tmp_path, which)


@pytest.mark.parametrize(
    "run", [None, [], {}, {"task": 3}, RUN.to_dict() | {"model": "small"}, {**RUN.to_dict(), "x": 1}]
)
def test_a_file_that_describes_no_run_is_refused(tmp_path, run):
    checkpoint.save(tmp_path / "best.safetensors", {"x": torch.zeros(1)}, {"run": run})
    with pytest.raises(checkpoint.CheckpointError, match=r"best\.safetensors does not describe a run"):
        load_trained(tmp_path)
    folder = folder_of(RUN, tmp_path)
    folder.mkdir()
    write_json(folder / "result.json", {"run": run})
    with pytest.raises(checkpoint.CheckpointError, match=r"result\.json does not describe a run"):
        train_run(RUN, tmp_path, QUIET)


def test_a_pipe_is_refused(tmp_path):
    folder = folder_of(RUN, tmp_path)
    folder.mkdir()
    os.mkfifo(folder / "result.json")
    with pytest.raises(checkpoint.CheckpointError, match=r"result\.json is not a file"):
        train_run(RUN, tmp_path, QUIET)


@dataclass(frozen=True)
class Flipped(HoldBit):
    name = "flipped-bit"


def test_a_task_of_ones_own_is_registered_by_one_line(tmp_path, monkeypatch):
    """Without it a run is refused before training, and the error names the dictionary."""
    task = Flipped(length=5, train_samples=64)
    run = replace(hold_bit_run(epochs=1, schedule=None), task=task)
    with pytest.raises(checkpoint.CheckpointError, match=r"got 'flipped-bit'; add a task of your own to .*TASKS"):
        train_run(run, tmp_path / "refused", QUIET)
    assert not list(tmp_path.rglob("*.safetensors"))
    monkeypatch.setitem(TASKS, Flipped.name, Flipped)
    train_run(run, tmp_path, QUIET)
    loaded, model = load_trained(folder_of(run, tmp_path))
    assert loaded == run
    assert isinstance(loaded.task, Flipped)
    assert model(torch.zeros(2, 5, 1))[0].shape == (2, 1)
