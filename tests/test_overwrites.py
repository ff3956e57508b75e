"""Counting what noise overwrote: in a model whose units are known, and against single steps."""

import time

import pytest
import torch

from multistable.models import build_model
from multistable.paper.experiments import TestAt
from multistable.paper.overwrites import measure, memory_units
from multistable.tasks import CopyFirst
from multistable.training import OutOfTimeError
from training_runs import copy_first_run, hold_bit_run

THRESHOLD = 3.5


def known_units():
    """Candidates are r. Unit 0 writes at the flag, 1 always, 2 at the flag and where |r| > 3.5, 3 never; 4 at the flag
    if |r| > 2, and where |r| > 3.5."""
    run = copy_first_run(length=10, d_model=2, d_state=5)
    model = build_model(run.model).eval()
    cell = model.blocks[0].cell
    with torch.no_grad():
        model.encoder.weight.copy_(torch.eye(2))
        model.encoder.bias.zero_()
        thresholds, at_flag = torch.tensor([[100, 0, THRESHOLD, 100, THRESHOLD], [0, 0, 0, 100, 2]])
        cell.weight_ih_l0.zero_()
        cell.weight_ih_l0[:5, 0] = 1
        cell.weight_ih_l0[5:, 1] = at_flag - thresholds
        cell.bias_ih_l0.copy_(torch.cat([torch.zeros(5), thresholds]))
    return run, model


def test_memory_units_are_those_that_hold():
    run, model = known_units()
    assert memory_units(run, model, samples=500).tolist() == [True, False, True, False, True]


@pytest.mark.parametrize("length", [1, 10, 2500])
def test_overwrites_are_counted(length):
    """Unit 2 loses its value where the last |r| > 3.5 has another sign than the first r; 4 too, if it has got one."""
    run, model = known_units()
    found = measure(run, model, TestAt(length, 1.0, 300))
    _, pieces = CopyFirst().stream(length, 300, run.seed)
    r = torch.cat(list(pieces), dim=1)[..., 0]
    lost = []
    for row in r:
        strong = [float(value) for value in row[1:] if abs(value) > THRESHOLD]
        changed = bool(strong) and (strong[-1] > 0) != (float(row[0]) > 0)
        lost.append(0 if not changed else 2 if abs(row[0]) > 2 else 1)
    counts = {(part["least"], part["most"]): part["sequences"] for part in found["overwrites"]}
    expected = {(0, 0): lost.count(0), (1, 1): lost.count(1), (2, 3): lost.count(2)}
    assert counts == {key: value for key, value in expected.items() if value}
    assert length < 100 or (lost.count(1) > 50 and lost.count(2) > 0)
    assert found["memory_units"] == 3
    assert (found["length"], found["noise"], found["samples"]) == (length, 1.0, 300)


def test_little_noise_overwrites_nothing():
    run, model = known_units()
    [only] = measure(run, model, TestAt(2500, 0.1, 50))["overwrites"]
    assert (only["least"], only["most"], only["sequences"]) == (0, 0, 50)


@pytest.mark.parametrize("cells", [("bmru", "bmru"), ("hybrid", "lru"), ("lru",)])
def test_errors_and_states_are_those_of_single_steps(cells):
    run = copy_first_run(cells, length=6, d_model=8, d_state=8)
    model = build_model(run.model).eval()
    found = measure(run, model, TestAt(30, 0.5, 40))
    target, pieces = CopyFirst(noise=0.5).stream(30, 40, run.seed)
    x = torch.cat(list(pieces), dim=1)
    state, first = None, None
    with torch.no_grad():
        for t in range(30):
            output, state = model.step(x[:, t], state)
            first = first or state
    errors = (output[:, 0] - target).square()
    assert found["mse"] == pytest.approx(float(errors.mean()), rel=1e-5)
    if cells == ("lru",):
        assert "overwrites" not in found
        return
    size = {"bmru": 8, "hybrid": 4, "lru": 0}
    before, after = (
        torch.cat([h[0, :, : size[cell]] for cell, h in zip(cells, each.cells, strict=True)], dim=-1)
        for each in (first, state)
    )
    memory = memory_units(run, model, 40)
    count = ((before != 0) & (before != after) & memory).sum(dim=1)
    assert len(memory) == sum(size[cell] for cell in cells)
    for part in found["overwrites"]:
        chosen = (count >= part["least"]) & (count <= part["most"])
        assert part["sequences"] == int(chosen.sum())
        assert part["mse"] == pytest.approx(float(errors[chosen].mean()), rel=1e-4)
    assert sum(part["sequences"] for part in found["overwrites"]) == 40


def test_a_test_stops_at_its_deadline():
    run, model = known_units()
    with pytest.raises(OutOfTimeError, match="no time to test at 5000 timesteps"):
        measure(run, model, TestAt(5000, 1.0, 10), deadline=time.perf_counter())


def test_other_tasks_are_refused():
    run = hold_bit_run()
    with pytest.raises(ValueError, match=r"run\.task must be copy-first, .* got hold-bit"):
        measure(run, build_model(run.model), TestAt(10, 1.0, 5))
