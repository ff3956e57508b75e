"""Metrics of each epoch in TensorBoard, trackio and Weights & Biases."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from multistable_experiments.training.loop import train_run
from multistable_experiments.training.results import folder_of
from multistable_experiments.training.track import tracking
from training_runs import QUIET, copy_first_run


def test_tensorboard_gets_every_metric_of_every_epoch(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, seen = copy_first_run(), []
    train_run(run, tmp_path, replace(QUIET, track="tensorboard", after_epoch=seen.append))
    events = EventAccumulator(str(folder_of(run, tmp_path) / "tensorboard")).Reload()
    assert set(events.Tags()["scalars"]) == set(seen[0]) - {"epoch"}
    points = events.Scalars("valid_mse")
    assert [point.step for point in points] == [1, 2, 3]
    assert [point.value for point in points] == pytest.approx([record["valid_mse"] for record in seen], rel=1e-6)


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_trackio_and_wandb_are_called_by_their_common_interface(name, tmp_path, monkeypatch):
    calls = []
    fake = SimpleNamespace(
        init=lambda **options: calls.append(("init", options)),
        log=lambda metrics, step: calls.append(("log", step, metrics)),
        finish=lambda: calls.append(("finish",)),
    )
    monkeypatch.setitem(sys.modules, name, fake)
    run, seen = copy_first_run(), []
    train_run(run, tmp_path, replace(QUIET, track=name, after_epoch=seen.append))
    (_, options), *logged, last = calls
    assert last == ("finish",)
    assert logged == [("log", i + 1, {k: v for k, v in seen[i].items() if k != "epoch"}) for i in range(3)]
    assert (options["project"], options["name"]) == ("multistable", folder_of(run, tmp_path).name)
    assert (options["config"], options["resume"]) == (run.to_dict(), "allow")
    assert ("id" in options) == (name == "wandb")


def test_a_failed_run_is_finished_too(tmp_path, monkeypatch):
    calls = []
    fake = SimpleNamespace(init=lambda **options: None, finish=lambda: calls.append("finish"))
    monkeypatch.setitem(sys.modules, "trackio", fake)
    with pytest.raises(KeyboardInterrupt), tracking("trackio", copy_first_run(), tmp_path):
        raise KeyboardInterrupt
    assert calls == ["finish"]


def test_trackio_itself(tmp_path, monkeypatch):
    """The real package, where it is installed: it stores three epochs in a folder of its own."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("trackio", reason="trackio is not installed")
    train_run(copy_first_run(), tmp_path / "runs", replace(QUIET, track="trackio"))
    assert list((tmp_path / "trackio").glob("multistable*.db"))


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb"])
def test_a_missing_package_is_named_before_training(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    seen = []
    with pytest.raises(ImportError, match=f"^--track {name} needs a package: pip install {name}$"):
        train_run(copy_first_run(), tmp_path, replace(QUIET, track=name, after_epoch=seen.append))
    assert not seen


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^track must be one of tensorboard, trackio, wandb, got 'mlflow'$"):
        train_run(copy_first_run(), tmp_path, replace(QUIET, track="mlflow"))
