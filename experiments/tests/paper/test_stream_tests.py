"""Counts of values overwritten by noise, in a model with known units and against single steps."""

import pytest
import torch

from multistable.models import build_model
from multistable_experiments.paper.experiments import TestAt
from multistable_experiments.paper.stream_tests import keeping_units, measure
from multistable_experiments.tasks import CopyFirst
from training_runs import copy_first_run, hold_bit_run

THRESHOLD = 3.5


def known_units():
    """A model whose candidates are r.

    Unit 0 writes at the flag; 1 always; 2 at the flag and where |r| > 3.5; 3 never; 4 at the flag if |r| > 2, and where
    |r| > 3.5.
    """
    run = copy_first_run(length=10, d_model=2, d_state=5)
    model = build_model(run.model).eval()
    cell = model.blocks[0].cell
    model.blocks[0].norm.eps = 0  # makes the thresholds exact
    with torch.no_grad():
        model.encoder.weight.copy_(torch.eye(2))
        model.encoder.bias.zero_()
        thresholds, at_flag = torch.tensor([[100, 0, THRESHOLD, 100, THRESHOLD], [0, 0, 0, 100, 2]])
        cell.weight_ih_l0.zero_()
        cell.weight_ih_l0[:5, 0] = 1
        cell.weight_ih_l0[5:, 1] = at_flag - thresholds
        cell.bias_ih_l0.copy_(torch.cat([torch.zeros(5), thresholds]))
    return run, model


def test_units_that_keep_values_or_zeros():
    run, model = known_units()
    values, zeros = keeping_units(run, model, samples=500)
    assert values.tolist() == [True, False, True, False, True]
    assert zeros.tolist() == [False, False, False, True, True]


@pytest.mark.parametrize("length", [1, 2, 10, 2500])
def test_overwrites_are_counted(length):
    """Unit 2 loses its value where the last |r| > 3.5 and the first r differ in sign.

    So does unit 4 if it has a value; its zero is lost at any |r| > 3.5.
    """
    run, model = known_units()
    found = measure(run, model, TestAt(length, 1.0, 300))
    _, pieces = CopyFirst().stream(length, 300, run.seed)
    r = torch.cat(list(pieces), dim=1)[..., 0]
    lost = []
    for row in r.tolist():
        strong = [value for value in row[1:] if abs(value) > THRESHOLD]
        changed = bool(strong) and (strong[-1] > 0) != (row[0] > 0)
        lost.append(changed + (changed if abs(row[0]) > 2 else bool(strong)))
    assert found["stored"] == 4
    assert found["overwritten"] == sum(lost) / 300
    assert found["intact"] == lost.count(0)
    assert length < 100 or (lost.count(0) > 50 and lost.count(1) > 50 and lost.count(2) > 50)
    assert (found["length"], found["noise"], found["samples"]) == (length, 1.0, 300)


def test_weak_noise_overwrites_nothing():
    run, model = known_units()
    found = measure(run, model, TestAt(2500, 0.1, 50))
    assert (found["stored"], found["overwritten"], found["intact"]) == (4, 0, 50)
    assert found["restored"] == found["mse"]


@pytest.mark.parametrize("T", [1, 2, 30])
@pytest.mark.parametrize("cells", [("bmru", "bmru"), ("hybrid", "lru"), ("lru",)])
def test_errors_and_states_match_single_steps(cells, T):
    run = copy_first_run(cells, length=6, d_model=8, d_state=8)
    model = build_model(run.model).eval()
    found = measure(run, model, TestAt(T, 0.5, 40))
    target, pieces = CopyFirst(noise=0.5).stream(T, 40, run.seed)
    x = torch.cat(list(pieces), dim=1)
    states = [None]
    with torch.no_grad():
        for t in range(T):
            output, state = model.step(x[:, t], states[-1])
            states.append(state)
    assert found["mse"] == pytest.approx(float((output[:, 0] - target).square().mean()), rel=1e-5)
    if cells == ("lru",):
        assert "restored" not in found
        return
    size = {"bmru": 8, "hybrid": 4, "lru": 0}
    first, last = (
        torch.cat([h[0, :, : size[cell]] for cell, h in zip(cells, each.cells, strict=True)], dim=-1)
        for each in (states[1], states[-1])
    )
    values, zeros = keeping_units(run, model, 40)
    assert len(values) == len(zeros) == sum(size[cell] for cell in cells)
    stored = torch.where(first != 0, values, zeros)
    assert found["stored"] == pytest.approx(float(stored.sum()) / 40)
    assert found["overwritten"] == pytest.approx(float((stored & (first != last)).sum()) / 40)
    assert T < 30 or (found["overwritten"] > 0 and found["restored"] != found["mse"])
    if T > 1:
        before = [h.clone() for h in states[-2].cells]
        start = 0
        for i, cell in enumerate(cells):
            units = slice(start, start := start + size[cell])
            part = before[i][0, :, : size[cell]]
            before[i][0, :, : size[cell]] = torch.where(stored[:, units], first[:, units], part)
        with torch.no_grad():
            output, _ = model.step(x[:, -1], states[-2]._replace(cells=tuple(before)))
    assert found["restored"] == pytest.approx(float((output[:, 0] - target).square().mean()), rel=1e-5)


def test_other_tasks_raise():
    run = hold_bit_run()
    with pytest.raises(ValueError, match=r"run\.task must be copy-first, .* got hold-bit"):
        measure(run, build_model(run.model), TestAt(10, 1.0, 5))
