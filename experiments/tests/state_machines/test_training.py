"""Machines are trained on short sequences and certified for all lengths."""

import pytest
import torch

from multistable.machines import certify
from multistable_experiments.state_machines.plan import RECIPES
from multistable_experiments.state_machines.training import Data, Training, train
from multistable_experiments.tasks.state_tracking import failing_length, machine


def test_parity_is_learnt_and_certified():
    model, verdict, updates = train(Training("parity", length=32, updates=500))
    assert verdict.right is True
    assert updates < 500
    assert failing_length(model, machine("parity"), longest=20_000, sequences=2) is None


def test_a_flipped_transition_is_found():
    """The certificate and the test at long lengths see the same mistake."""
    model, _, _ = train(Training("parity", length=32, updates=500))
    with torch.no_grad():
        model.rnn.value_l0.copy_(model.rnn.value_l0.flip(1))
    assert certify(model, machine("parity")).right is False
    assert failing_length(model, machine("parity"), longest=1_000, sequences=4) is not None


def test_irrelevant_symbols():
    """Nine of ten symbols are one of three that change nothing."""
    data = Data("parity", length=50, batch=200, idle=0.9, idle_symbols=3)
    symbols = data.draw(torch.Generator().manual_seed(0))
    assert data.target.n_symbols == 5
    assert 0.85 < (symbols >= 2).float().mean() < 0.95
    assert set(symbols.unique().tolist()) == set(range(5))
    model, verdict, _ = train(Training("parity", length=64, lengths="log", idle=0.9, idle_symbols=3))
    assert verdict.right is True
    options = {"idle": 0.9, "idle_symbols": 3}
    assert failing_length(model, machine("parity"), longest=5_000, sequences=2, **options) is None


def test_lengths():
    random = torch.Generator().manual_seed(0)
    lengths = [Data("parity", length=100, lengths="log").draw_length(random) for _ in range(2_000)]
    assert (min(lengths), max(lengths)) == (1, 100)
    assert 0.45 < sum(length <= 10 for length in lengths) / 2_000 < 0.55


def test_later_fields_are_stored_where_they_differ():
    """Results of earlier commits keep their settings."""
    assert "decay" not in Training("parity").settings()
    assert Training("parity", decay=0.1).settings()["decay"] == 0.1


@pytest.mark.extra
def test_a_group_that_no_unit_can_hold_is_certified():
    """S4 has 24 elements: units of four states track the points that it permutes."""
    _, verdict, _ = train(RECIPES["S4"])
    assert verdict.right is True
