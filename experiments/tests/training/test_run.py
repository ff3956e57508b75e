"""Runs survive JSON and keep their hash, bad values raise; learning rates."""

import dataclasses
import json
import math
from dataclasses import dataclass, replace

import pytest

from multistable.models import ModelConfig
from multistable.models.config import LRUConfig, PositionConfig
from multistable_experiments.paper.settings import PRESETS, make_run
from multistable_experiments.tasks import MNIST, TASKS, CopyFirst
from multistable_experiments.training.run import LATER, Decay, Run, Schedule
from training_runs import copy_first_run, hold_bit_run


@pytest.mark.parametrize("key", PRESETS, ids="-".join)
def test_a_run_survives_json(key):
    run = make_run(PRESETS[key], ("bmru", "lru", "hybrid"), dropout=0.1, seed=3)
    again = Run.from_dict(json.loads(json.dumps(run.to_dict())))
    assert again == run
    assert again.id == run.id


def test_the_hash_depends_on_every_part():
    run = copy_first_run()
    variants = [
        replace(run, seed=1),
        replace(run, epochs=4),
        replace(run, batch_size=10),
        replace(run, precision="bfloat16"),
        replace(run, decay=Decay(reading="usual")),
        replace(run, schedule=replace(run.schedule, end=1e-6)),
        replace(run, task=replace(run.task, noise=0.5)),
        replace(run, model=replace(run.model, d_state=9)),
        hold_bit_run(),
    ]
    ids = {variant.id for variant in [run, *variants]}
    assert len(ids) == 10
    assert copy_first_run().id == run.id


@pytest.mark.parametrize(
    ("key", "cells", "name"),
    [
        (("copy-first", "full"), ("bmru", "bmru"), "ae91b4b2ed86"),
        (("mnist", "full"), ("bmru", "lru"), "44e2a3f1f93c"),
        (("pathfinder", "full"), ("bmru",), "fe3e8eaa5597"),
    ],
)
def test_runs_keep_their_hashes(key, cells, name):
    """Results and checkpoints are found by their hash."""
    assert make_run(PRESETS[key], cells).id == name


@dataclass(frozen=True)
class LaterCopyFirst(CopyFirst):
    """The task with a field that was added later."""

    flags: int = 2


def test_a_later_field_keeps_the_identity_of_earlier_runs(monkeypatch):
    """The default may be new behaviour, but a stored run without the field has the old behaviour."""
    earlier = copy_first_run()
    stored = earlier.to_dict()
    monkeypatch.setitem(TASKS, "copy-first", LaterCopyFirst)
    monkeypatch.setitem(LATER, LaterCopyFirst, {"flags": 1})
    again = Run.from_dict(stored)
    assert again.task == LaterCopyFirst(**dataclasses.asdict(earlier.task), flags=1)
    assert again.id == earlier.id
    new = replace(again, task=replace(again.task, flags=2))
    assert new.id != earlier.id
    assert Run.from_dict(json.loads(json.dumps(new.to_dict()))) == new


@pytest.mark.parametrize(
    ("kind", "field", "path"),
    [
        (Run, "precision", ()),
        (Schedule, "end", ("schedule",)),
        (Decay, "reading", ("decay",)),
        (ModelConfig, "initial", ("model",)),
        (PositionConfig, "tuning", ("model", "position")),
        (LRUConfig, "r_max", ("model", "lru")),
        (MNIST, "permuted", ("task",)),
    ],
)
def test_every_part_of_a_run_can_get_a_later_field(monkeypatch, kind, field, path):
    """As if this field had been added later, with its present value in all earlier runs."""
    run = make_run(PRESETS["mnist", "full"], ("bmru", "lru"))
    stored = run.to_dict()
    part = stored
    for name in path:
        part = part[name]
    value, name = part.pop(field), run.id
    earlier = LATER.get(kind, {})
    monkeypatch.setitem(LATER, kind, earlier | {field: value})
    assert run.id != name, "the field is left out of the hash"
    again = Run.from_dict(stored)
    assert again == run
    assert again.id == run.id
    monkeypatch.setitem(LATER, kind, earlier | {field: "another value"})
    assert run.id == name, "at another value it counts"


def test_positions_everywhere_are_another_run():
    run = make_run(PRESETS["mnist", "full"], ("lru",))
    everywhere = replace(run.model, position=replace(run.model.position, everywhere=True))
    assert replace(run, model=everywhere).id != run.id


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be a positive integer, got 0"),
        ({"epochs": 1.5}, "epochs must be a positive integer, got 1.5"),
        ({"batch_size": 1}, "batch_size must be an integer of at least 2, got 1"),
        ({"batch_size": 2.5}, "batch_size must be an integer of at least 2, got 2.5"),
        ({"seed": None}, "seed must be an integer, got None"),
        ({"decay": 0.05}, "decay must be a Decay, got 0.05"),
        ({"schedule": 0.1}, "schedule must be a Schedule, got 0.1"),
        ({"epochs": 1}, "warmup_epochs must be at least 0 and less than the 1 epochs of the run, got 1"),
        ({"precision": "float16"}, "precision must be one of 'float32', 'bfloat16', got 'float16'"),
        ({"decay": Decay(reading="mine")}, "decay.reading must be one of 'paper', 'usual', got 'mine'"),
        ({"task": MNIST()}, "model.d_input must be 1 for the task mnist, got 2"),
    ],
)
def test_bad_values_raise(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        copy_first_run(**changes)


def test_unknown_task_in_json_raises():
    values = copy_first_run().to_dict()
    with pytest.raises(
        ValueError, match=r"task\.name must be one of 'hold-bit', 'copy-first', 'mnist', 'pathfinder', got 'adding'"
    ):
        Run.from_dict({**values, "task": {"name": "adding"}})


@pytest.mark.parametrize(
    ("epoch", "rate"),
    [(0, 1e-4), (5, 5.5e-4), (9.999999, 1e-3), (10, 1e-3), (55, 5.05e-4), (32.5, 8.55018e-4), (100, 1e-5)],
)
def test_schedule_values(epoch, rate):
    """1e-4 -> 1e-3 in 10 epochs, then a half cosine to 1e-5, which is (1e-3 + 1e-5) / 2 in its middle."""
    assert Schedule().rate(epoch, 100) == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize("epochs", [1, 3, 100])
def test_a_run_of_few_epochs_has_a_tenth_as_warm_up(epochs):
    run = make_run(PRESETS["mnist", "full"], ("lru",))
    assert Run(run.task, run.model, epochs=epochs).schedule == Schedule(warmup_epochs=epochs / 10)


def test_schedule_without_warm_up_starts_at_the_peak():
    assert Schedule(warmup_epochs=0).rate(0, 10) == 1e-3


def test_negative_learning_rate_raises():
    with pytest.raises(ValueError, match=r"schedule\.peak must be a learning rate of at least 0, got -0\.1"):
        Schedule(peak=-0.1)


@pytest.mark.parametrize("strength", [-1.0, math.nan, "much"])
def test_a_bad_weight_decay_raises(strength):
    with pytest.raises(ValueError, match=rf"decay\.other must be a weight decay of at least 0, got {strength!r}"):
        Decay(other=strength)
