"""The numbers behind the figures of the paper, and the drawings themselves."""

import pytest
import torch
import typer

from multistable_experiments.cli.paper import figure
from multistable_experiments.paper import theory, theory_figures


def test_stationary_memory_does_not_grow_with_length():
    data = theory.stationary_memory((10, 100, 1000, 1_000_000))
    bmru, lru = data.errors["BMRU"], data.errors["LRU"]
    assert len(set(bmru)) == 1  # the same to the last bit, a million steps on
    assert bmru[0] < 1e-3
    assert lru[0] < 0.05
    assert lru[0] < lru[1] < lru[2]
    assert lru[-1] > 0.5


def test_gradients_are_constant_in_length_to_the_last_bit():
    lengths = (2, 3, 10, 1000, 20_000)
    for values in theory.first_gradients(lengths, writes_later=False):
        assert len(set(values)) == 1
        assert values[0] != 0
    for values in theory.first_gradients(lengths, writes_later=True):
        assert set(values) == {0.0}


def test_trajectories_forget_or_remember():
    starts = torch.tensor([-0.9, -0.2, 0.2, 0.9])
    assert theory.trajectories(0.0, -1.5, starts, 3000)[-1].abs().max() < 1e-10
    ends = theory.trajectories(0.0, 1.5, starts, 3000)[-1]
    assert torch.equal(ends.sign(), starts.sign().double())
    assert ends.abs().min() > 0.9


@pytest.mark.parametrize("name", [name for name in theory_figures.FIGURES if name != "stationary_memory"])
def test_every_figure_is_drawn(name, tmp_path):
    figure(name, tmp_path)
    assert "<svg" in (tmp_path / f"{name}.svg").read_text()[:1000]
    assert (tmp_path / f"{name}.png").stat().st_size > 5000


def test_an_unknown_figure_is_refused(tmp_path):
    with pytest.raises(typer.BadParameter, match="name must be 'all' or one of"):
        figure("nothing", tmp_path)
