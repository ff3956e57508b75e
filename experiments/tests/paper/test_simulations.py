"""The numbers behind the figures of theory. ``theory/`` tests the claims on them."""

import pytest
import torch

from multistable_experiments.paper import simulations


@pytest.mark.extra
def test_one_unit_holds_a_bit_for_a_million_steps():
    data = simulations.hold_one_bit((50, 100, 1000, 1_000_000))
    bmru, lru = data.errors["BMRU"], data.errors["LRU"]
    assert len(set(bmru)) == 1  # equal bit for bit
    assert bmru[0] < 1e-3
    assert lru[0] < 0.05
    assert lru[0] < lru[1] < lru[2]
    assert lru[-1] > 0.5
    assert data.learned == {"BMRU": 4, "LRU": 10}
    assert data.states["BMRU"].shape == data.states["LRU"].shape == (2, 200)
    assert (data.states["BMRU"] == data.states["BMRU"][:, :1]).all()


def test_units_are_trained_on_one_thread(monkeypatch):
    """With two, on busy cores, it took twice as long: the tensors have one unit."""
    threads = []

    def train(make, T, seed):
        threads.append(torch.get_num_threads())
        return make(), 0.0

    monkeypatch.setattr(simulations, "train_to_hold", train)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        simulations.hold_one_bit((10,))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(threads) == {1}


def test_trajectories_forget_or_remember():
    starts = torch.tensor([-0.9, -0.2, 0.2, 0.9])
    assert simulations.trajectories(0.0, -1.5, starts, 3000)[-1].abs().max() < 1e-10
    ends = simulations.trajectories(0.0, 1.5, starts, 3000)[-1]
    assert torch.equal(ends.sign(), starts.sign().double())
    assert ends.abs().min() > 0.9
