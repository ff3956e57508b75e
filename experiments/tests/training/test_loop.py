"""The training loop: it learns, equal runs give equal numbers, NaN stops it and is located, results are complete."""

import json
import math
from dataclasses import replace

import pytest
import torch

from multistable.models import build_model
from multistable_experiments.files import read_json
from multistable_experiments.paper.experiments import plan
from multistable_experiments.tasks import CopyFirst
from multistable_experiments.training import checkpoint, loop
from multistable_experiments.training.loop import NonFiniteLossError, Training, train_run, worth_compiling
from multistable_experiments.training.processes import Processes
from multistable_experiments.training.results import evaluate_lengths, folder_of
from multistable_experiments.training.run import Schedule
from training_runs import ALONE, FAST, QUIET, copy_first_run, hold_bit_run, numbers


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("cell", ["bmru", "hybrid"])
def test_hold_bit_is_solved_and_held_for_a_hundred_thousand_steps(tmp_path, cell):
    run = hold_bit_run((cell,))
    result = train_run(run, tmp_path, QUIET)
    assert result["metrics"]["best"]["test_mse"] < 1e-3
    if cell == "bmru":
        [record] = evaluate_lengths(folder_of(run, tmp_path), [100_000], samples=2)
        assert record["mse"] < 1e-3


def test_bmru_learns_copy_first(tmp_path):
    """T = 20: the mean squared error falls from 1 to less than 0.05."""
    run = copy_first_run(("bmru", "bmru"), length=20, samples=4_000, d_model=32, d_state=32, epochs=8, batch_size=32)
    result = train_run(run, tmp_path, QUIET)
    assert result["history"][0]["train_mse"] > 0.2
    assert result["metrics"]["last"]["test_mse"] < 0.05


def test_same_seed_same_numbers_other_seed_others(tmp_path):
    run = copy_first_run(("hybrid", "bmru"), dropout=0.2)
    first, second = (numbers(train_run(run, tmp_path / name, QUIET)) for name in ("a", "b"))
    assert first == second
    assert numbers(train_run(replace(run, seed=1), tmp_path, QUIET)) != first


def test_another_seed_starts_from_other_weights(tmp_path):
    runs = (copy_first_run(seed=seed) for seed in (0, 1))
    first, second = (Training(run, tmp_path, QUIET, ALONE).model.encoder.weight for run in runs)
    assert not torch.equal(first, second)


def test_every_epoch_has_its_own_order(tmp_path):
    training = Training(copy_first_run(), tmp_path, QUIET, ALONE)
    first = training.order()
    training.epoch = 1
    assert not torch.equal(training.order(), first)


def test_the_result_records_what_where_and_how_long(tmp_path):
    run = copy_first_run()
    result = train_run(run, tmp_path, QUIET)
    folder = folder_of(run, tmp_path)
    assert read_json(folder / "result.json") == result
    assert result["id"] == run.id
    assert result["run"] == run.to_dict() == read_json(folder / "run.json")
    assert result["seconds"] > 0
    assert result["machine"]["device"] == "cpu"
    assert result["options"] == {"graph": False, "compiled": False}, "the options used, not those requested"
    assert {"python", "torch", "multistable", "commit"} <= result["machine"].keys()
    assert result["parameters"] == sum(p.numel() for p in build_model(run.model).parameters())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == result["history"]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[-1]["rate"] == run.schedule.end


@pytest.mark.parametrize(
    ("graph", "configuration", "expected"),
    [
        (True, "bmru-2-blocks", True),
        (True, "bmru-T300", True),
        (True, "bmru-T100", False),
        (False, "bmru-2-blocks", False),
    ],
)
def test_long_runs_are_compiled(graph, configuration, expected):
    experiments = plan(None, "full", (0,), ("tuned",))
    [run] = [experiment.run for experiment in experiments if experiment.configuration == configuration]
    assert worth_compiling(graph, build_model(run.model), 54_000 * run.epochs * run.task.length) == expected


@pytest.mark.parametrize(
    ("cell", "expected"), [("lru", True), ("hybrid", True), ("mingru", True), ("brc", False), ("gru", False)]
)
def test_loops_over_time_are_not_compiled(cell, expected):
    model = build_model(copy_first_run(("bmru", cell)).model)
    assert worth_compiling(True, model, 10**10) == expected


@pytest.mark.parametrize("cells", [("lru", "bmru"), ("bmru", "mru:simplified_brc"), ("hysteresis", "clocked:brc:2")])
def test_nan_is_stopped_with_epoch_step_and_layer(tmp_path, cells):
    """Weights of 1e30 after the first step: the second forward pass overflows in the first block."""
    run = copy_first_run(cells, schedule=Schedule(1e30, 1e30, 1e30, 0))
    with pytest.raises(NonFiniteLossError, match=r"in epoch 1, step 2: first in the layer \S+ \(\w+\)"):
        train_run(run, tmp_path, QUIET)
    assert not (folder_of(run, tmp_path) / "last.safetensors").exists()


def test_no_state_with_a_bad_loss_is_saved(tmp_path):
    """With a checkpoint after every step, the last one precedes the bad step and leads to it again."""
    run = copy_first_run(("lru", "bmru"), schedule=Schedule(1e30, 1e30, 1e30, 0))
    for _ in range(2):
        with pytest.raises(NonFiniteLossError, match="in epoch 1, step 2"):
            train_run(run, tmp_path, replace(QUIET, checkpoint_seconds=0))
        _, info = checkpoint.load(folder_of(run, tmp_path) / "last.safetensors")
        assert (info["epoch"], info["step"]) == (0, 1)


def test_a_bad_loss_of_the_first_step_is_not_saved_either(tmp_path):
    training = Training(copy_first_run(), tmp_path, QUIET, ALONE)
    for bad_step, saved in ((0, False), (-1, True)):
        training.stepper.bad_step.fill_(bad_step)
        training.save()
        assert (training.folder / "last.safetensors").exists() is saved


def test_every_step_has_a_seed_of_its_own(tmp_path, monkeypatch):
    """Otherwise dropout would leave out the same units in all steps of an epoch."""
    seeds = []
    plain = loop.Stepper.__call__

    def watched(self, index, rate):
        seeds.append(torch.initial_seed())
        plain(self, index, rate)

    monkeypatch.setattr(loop.Stepper, "__call__", watched)
    run = copy_first_run(dropout=0.5)
    train_run(run, tmp_path, QUIET)
    assert len(set(seeds)) == len(seeds) == 9 * run.epochs


def test_a_score_of_nan_is_never_the_best(tmp_path):
    training = Training(copy_first_run(), tmp_path, QUIET, ALONE)
    assert not training.is_best(math.nan)
    assert training.is_best(0.5)
    training.best = {"epoch": 1, "score": 0.5}
    assert [training.is_best(score) for score in (math.nan, 0.6, 0.5, 0.4)] == [False, False, False, True]


def test_the_best_score_is_the_largest_if_larger_is_better(tmp_path, monkeypatch):
    monkeypatch.setattr(CopyFirst, "larger_is_better", True)
    training = Training(copy_first_run(), tmp_path, QUIET, ALONE)
    training.best = {"epoch": 1, "score": 0.5}
    assert [training.is_best(score) for score in (math.nan, 0.6, 0.5, 0.4)] == [False, True, False, False]


def test_dropout_differs_between_processes(tmp_path):
    drawn = []
    for rank in (0, 1):
        Training(copy_first_run(), tmp_path, QUIET, Processes(torch.device("cpu"), rank)).seed_step()
        drawn.append(torch.rand(5).tolist())
    assert drawn[0] != drawn[1]


def test_bfloat16_trains_too(tmp_path):
    result = train_run(hold_bit_run(precision="bfloat16", epochs=6, schedule=FAST), tmp_path, QUIET)
    assert result["metrics"]["best"]["test_mse"] < 0.05


@pytest.mark.parametrize("batch_size", [181, 1000])
def test_a_batch_larger_than_the_training_set_raises(tmp_path, batch_size):
    with pytest.raises(ValueError, match=f"batch_size must not exceed the 180 training samples, got {batch_size}"):
        train_run(copy_first_run(batch_size=batch_size), tmp_path, QUIET)


def test_the_rate_changes_within_an_epoch(tmp_path, monkeypatch):
    rates = []
    plain = loop.Stepper.__call__

    def watched(self, index, rate):
        rates.append(rate)
        plain(self, index, rate)

    monkeypatch.setattr(loop.Stepper, "__call__", watched)
    run = copy_first_run()
    result = train_run(run, tmp_path, QUIET)
    steps = len(rates) // run.epochs
    assert result["history"][-1]["epoch"] == run.epochs
    assert rates == pytest.approx([run.schedule.rate(i / steps, run.epochs) for i in range(len(rates))])
    assert len(set(rates)) > run.epochs
