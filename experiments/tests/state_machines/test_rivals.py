"""Machines and other layers under the same conditions."""

import pytest
import torch

from multistable import LRU
from multistable.ops.numerics import from_pairs
from multistable_experiments.state_machines import rivals
from multistable_experiments.state_machines.plan import CONTESTS
from multistable_experiments.state_machines.rivals import CELLS, Contest, build_rival, contest


@pytest.mark.parametrize("machine", CONTESTS)
@pytest.mark.parametrize("cell", CELLS)
def test_all_layers_have_as_many_parameters(cell, machine):
    wanted = CONTESTS[machine].parameters
    model = build_rival(Contest(machine, cell, 1e-2, 0, wanted, states=CONTESTS[machine].states))
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(wanted, rel=0.16)


@pytest.mark.parametrize("cell", CELLS)
def test_reading_in_pieces_equals_reading_at_once(cell):
    model = build_rival(Contest("S3", cell, 1e-2, 0, 2_000)).double().eval()
    symbols = torch.randint(6, (3, 20))
    if not cell.startswith("fsm"):  # F.one_hot(...).float() stands between
        model = model.float()
    whole, last = model(symbols)
    first, state = model(symbols[:, :7])
    second, state = model(symbols[:, 7:], state)
    assert torch.allclose(torch.cat([first, second], 1), whole, atol=1e-4)
    assert torch.allclose(state, last, atol=1e-4)


@pytest.mark.parametrize(("cell", "states"), [("fsm", 6), ("fsm-16", 16)])
def test_states_of_machines(cell, states):
    assert build_rival(Contest("S3", cell, 1e-2, 0, 5_000)).rnn.n_states == states


def test_the_seed_decides():
    weights = [build_rival(Contest("S3", "gru", 1e-2, seed, 2_000)).read_out.weight for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_contest_that_is_won_and_one_that_is_lost(monkeypatch):
    monkeypatch.setitem(rivals.TEST, "longest", 2_000)
    won = contest(Contest("flip-flop", "fsm", 1e-2, 0, 500, length=32, updates=300))
    assert won["check"]["failing_length"] is None
    assert won["test"]["failing_length"] is None
    lost = contest(Contest("S3", "bmru", 1e-3, 0, 500, length=32, updates=5))
    assert lost["updates"] == 5
    assert 1 <= lost["test"]["failing_length"] <= 100


def test_an_lru_on_the_ring_has_long_memory():
    model = build_rival(Contest("parity", "lru-ring", 1e-2, 0, 5_000))
    layers = [layer for layer in model.modules() if isinstance(layer, LRU)]
    assert len(layers) == 2
    for layer in layers:
        moduli = from_pairs(layer.eigenvalues().detach()).abs()
        assert moduli.min() >= 0.9
        assert 0.98 < moduli.max() < 1
