"""Runs survive JSON and have a hash; learning rates; groups of weight decay."""

import json
import math
from dataclasses import replace

import pytest
import torch

from multistable.models import build_model
from multistable_experiments.paper.settings import PRESETS, make_run
from multistable_experiments.tasks import MNIST
from multistable_experiments.training import Decay, Run, Schedule
from multistable_experiments.training.optim import build_optimizer, decay_groups, set_rate
from training_runs import copy_first_run, hold_bit_run


@pytest.mark.parametrize("key", PRESETS, ids="-".join)
def test_a_run_survives_json(key):
    run = make_run(PRESETS[key], ("bmru", "lru", "hybrid"), dropout=0.1, seed=3)
    again = Run.from_dict(json.loads(json.dumps(run.to_dict())))
    assert again == run
    assert again.id == run.id


def test_the_hash_knows_every_part():
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
        (("copy-first", "paper"), ("bmru", "bmru"), "ae91b4b2ed86"),
        (("mnist", "paper"), ("bmru", "lru"), "44e2a3f1f93c"),
        (("pathfinder", "paper"), ("bmru",), "fe3e8eaa5597"),
    ],
)
def test_runs_keep_their_names(key, cells, name):
    """Results and checkpoints are found by them."""
    assert make_run(PRESETS[key], cells).id == name


def test_a_later_field_counts_where_it_is_used():
    run = make_run(PRESETS["mnist", "paper"], ("lru",))
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
        ({"schedule": None}, "schedule must be a Schedule, got None"),
        ({"epochs": 1}, "warmup_epochs must be at least 0 and less than the 1 epochs of the run, got 1"),
        ({"precision": "float16"}, "precision must be one of 'float32', 'bfloat16', got 'float16'"),
        ({"decay": Decay(reading="mine")}, "decay.reading must be one of 'paper', 'usual', got 'mine'"),
        ({"task": MNIST()}, "model.d_input must be 1 for the task mnist, got 2"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        copy_first_run(**changes)


def test_unknown_task_in_json_is_refused():
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
    """1e-4 -> 1e-3 in 10 epochs, then a half cosine to 1e-5: (1e-3 + 1e-5) / 2 in the middle of the rest."""
    assert Schedule().rate(epoch, 100) == pytest.approx(rate, rel=1e-6)


def test_schedule_without_warm_up_starts_at_the_peak():
    assert Schedule(warmup_epochs=0).rate(0, 10) == 1e-3


def strengths(cells, decay):
    """Name of each parameter -> its weight decay."""
    model = build_model(copy_first_run(cells).model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [
        (names[id(parameter)], group["weight_decay"])
        for group in decay_groups(model, decay)
        for parameter in group["params"]
    ]
    assert len(found) == len(names), "each parameter once"
    return dict(found)


def test_weight_decay_of_the_paper():
    found = strengths(("bmru", "lru", "hybrid"), Decay())
    bmru = {name for name, strength in found.items() if strength == 1e-4}
    assert bmru == {
        "blocks.0.cell.weight_ih_l0",
        "blocks.0.cell.bias_ih_l0",
        "blocks.0.cell.alpha_l0",
        "blocks.0.out_proj.bmru",
        "blocks.2.cell.bmru.0.weight_ih_l0",
        "blocks.2.cell.bmru.0.bias_ih_l0",
        "blocks.2.cell.bmru.0.alpha_l0",
        "blocks.2.out_proj.bmru",
    }
    assert {strength for name, strength in found.items() if name not in bmru} == {0.05}
    assert found["blocks.0.norm.weight"] == found["blocks.1.cell.log_nu_l0"] == 0.05


def test_the_usual_reading_spares_norms_and_dynamics():
    paper, usual = (strengths(("bmru", "lru"), Decay(reading=reading)) for reading in ("paper", "usual"))
    spared = {name for name in paper if paper[name] != usual[name]}
    assert {usual[name] for name in spared} == {0.0}
    dynamics = {f"blocks.1.cell.log_{what}_l0" for what in ("nu", "theta", "gamma")}
    norms = {f"blocks.{i}.norm.{what}" for i in (0, 1) for what in ("weight", "bias")}
    assert dynamics | norms | {"blocks.1.skip"} <= spared
    assert not any(name.endswith("weight") for name in spared - norms)
    assert usual["blocks.0.cell.alpha_l0"] == 1e-4


def test_decay_shrinks_weights_by_rate_times_strength():
    """With zero gradients AdamW multiplies each weight by 1 - rate * decay and does nothing else."""
    model = build_model(copy_first_run(("bmru", "lru")).model)
    optimizer = build_optimizer(model, Decay())
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    set_rate(optimizer, 0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        strength = 1e-4 if parameter in set(model.bmru_parameters()) else 0.05
        torch.testing.assert_close(parameter.detach(), before[name] * (1 - 0.1 * strength))


def test_negative_learning_rate_is_refused():
    with pytest.raises(ValueError, match=r"schedule\.peak must be a learning rate of at least 0, got -0\.1"):
        Schedule(peak=-0.1)


@pytest.mark.parametrize("strength", [-1.0, math.nan, "much"])
def test_a_weight_decay_that_is_none_is_refused(strength):
    with pytest.raises(ValueError, match=rf"decay\.other must be a weight decay of at least 0, got {strength!r}"):
        Decay(other=strength)
