"""Tests with long tails match whole sequences read at once, and leave the model unchanged."""

import dataclasses

import pytest
import torch

from multistable.models import PositionConfig, build_model
from multistable_experiments.files import read_json, write_json
from multistable_experiments.paper import tail_tests
from multistable_experiments.paper.compute import run_tests
from multistable_experiments.paper.experiments import Experiment, TailAt
from multistable_experiments.paper.settings import Preset, make_run
from multistable_experiments.paper.tail_tests import measure_tails
from multistable_experiments.tasks import MNIST, mnist
from multistable_experiments.training.run import Schedule
from small_data import write_mnist
from training_runs import QUIET

LENGTHS = ((16, 10), (40, 10), (100, 4))


@pytest.fixture(autouse=True)
def small_mnist(tmp_path, monkeypatch):
    """40 training and 10 test images, and chunks shorter than the tails."""
    monkeypatch.setattr(mnist, "FILES", write_mnist(tmp_path))
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path))
    monkeypatch.setattr(tail_tests, "CHUNK", 25)
    monkeypatch.setattr(tail_tests, "BATCH", 3)
    mnist._load.cache_clear()


def model_of(cell, position=True):
    preset = Preset(MNIST(16), 2, 8, 8, 1, 4, Schedule(), 4 if position else 0)
    run = make_run(preset, (cell,) * 2, epochs=1, schedule=Schedule(warmup_epochs=0))
    torch.manual_seed(0)
    model = build_model(run.model)
    model(run.task.inputs(run.task.samples("train", 0).stored))  # batch norm sees images
    return run, model.eval()


def tails_up_to_100(tail, held):
    return [TailAt(tail, pixels, samples, held) for pixels, samples in LENGTHS]


@pytest.mark.parametrize("cell", ["bmru", "lru", "hybrid"])
@pytest.mark.parametrize("tail", ["black", "random", "images"])
@pytest.mark.parametrize("held", [False, True])
def test_accuracy_matches_whole_sequences(cell, tail, held):
    run, model = model_of(cell)
    found = measure_tails(run, model, tails_up_to_100(tail, held))
    position = dataclasses.replace(run.model.position, held=held)
    whole = build_model(dataclasses.replace(run.model, position=position)).eval()
    whole.load_state_dict(model.state_dict())
    first = None
    for result, (pixels, samples) in zip(found, LENGTHS, strict=True):
        task = MNIST(pixels, tail=tail)
        test = task.samples("test", run.seed)
        with torch.no_grad():
            answers = whole(task.inputs(test.stored))[0].argmax(-1)[:samples]
        first = answers if first is None else first
        assert (result["tail"], result["pixels"], result["samples"], result["held"]) == (tail, pixels, samples, held)
        assert result["accuracy"] == (answers == test.target[:samples]).double().mean()
        assert result["same"] == (answers == first[:samples]).double().mean()


def test_the_model_is_left_unchanged():
    run, model = model_of("bmru")
    measure_tails(run, model, tails_up_to_100("black", held=True))
    assert model.position.last is None
    with pytest.raises(AssertionError):
        measure_tails(run, model, [TailAt("black", 16, 10, True), TailAt("random", 16, 10, True)])
    assert model.position.last is None


def test_black_pixels_and_held_positions_leave_a_bmru_unchanged():
    """Stationarity, not learning: every step after the trained length repeats the last one."""
    run, model = model_of("bmru")
    tests = [TailAt("black", pixels, 10, True) for pixels in (16, 17, 60, 500)]
    found = measure_tails(run, model, tests)
    assert {result["same"] for result in found} == {1.0}
    assert len({result["accuracy"] for result in found}) == 1


def test_models_without_positions():
    run, model = model_of("lru", position=False)
    assert len(measure_tails(run, model, tails_up_to_100("random", held=False))) == 3
    assert isinstance(model_of("lru")[0].model.position, PositionConfig)


@pytest.mark.parametrize("lost", [0, -1])
def test_a_missing_test_is_compared_with_the_shortest_tail(tmp_path, lost):
    """Such as one that an earlier version did not have: the answers after the shortest tail are needed again."""
    run, model = model_of("lru")
    experiment = Experiment("lru", run, tuple(tails_up_to_100("random", held=True)))
    model.save_pretrained(tmp_path / "model")
    whole = run_tests(experiment, tmp_path, QUIET)
    assert whole[-1]["same"] < 1
    found = read_json(tmp_path / "tests.json")["tests"]
    del found[lost]
    write_json(tmp_path / "tests.json", {"tests": found})
    again = run_tests(experiment, tmp_path, QUIET)
    assert [test | {"seconds": 0} for test in again] == [test | {"seconds": 0} for test in whole]
