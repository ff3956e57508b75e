"""Figures of theory show the numbers of the theory."""

import pytest
import torch
import typer

from drawings import assert_drawn, texts
from multistable_experiments.cli.paper import figure
from multistable_experiments.paper.experiments import EXPERIMENTS
from multistable_experiments.paper.figures import FIGURES, theory
from multistable_experiments.paper.figures.style import BLUE, RED
from multistable_experiments.paper.simulations import HeldBit


def draw(name):
    return FIGURES[name].draw([], "full")


def y_of(line):
    return torch.as_tensor(line.get_ydata()).double()


def lines_of(axis, colour):
    return [line for line in axis.lines if line.get_color() == colour]


def test_figures_are_in_the_order_of_the_paper():
    assert {name for name, entry in FIGURES.items() if entry.trained} == set(EXPERIMENTS)
    numbers = [entry.number for entry in FIGURES.values() if entry.number is not None]
    assert numbers == list(range(1, 13))
    assert all(len(entry.caption) > 30 for entry in FIGURES.values())


def test_trajectories_meet_or_keep_their_sign():
    fading, persistent = draw("fading_and_persistent").axes
    for axis in (fading, persistent):
        starts = [float(y_of(line)[0]) for line in axis.lines]
        assert starts == pytest.approx(torch.linspace(-1, 1, 10).tolist())
        assert [line.get_color() for line in axis.lines] == [RED] * 5 + [BLUE] * 5
    assert all(abs(float(y_of(line)[-1])) < 0.01 for line in fading.lines)
    assert all(y_of(line)[-1] > 0.9 for line in lines_of(persistent, BLUE))
    assert all(y_of(line)[-1] < -0.9 for line in lines_of(persistent, RED))


def test_convergence_shows_one_end_or_two():
    axes = draw("convergence").axes
    assert len(axes) == 10
    ends = [{line.get_color() for line in axis.lines} for axis in axes]
    assert ends[:4] == [{RED}, {RED}, {BLUE}, {BLUE}], "at beta = -1.5 the input decides"
    assert ends[5:9] == [{RED}, {RED, BLUE}, {RED, BLUE}, {BLUE}], "at beta = 1.5 the state does, within the folds"
    monostable, bistable = (y_of(axes[i].lines[1]) for i in (4, 9))  # the unstable branch
    assert monostable.isnan().all()
    assert (~bistable.isnan()).sum() > 100


def test_approximation_has_flat_branches_and_thresholds_at_beta():
    axis = draw("implicit_and_approximation").axes[0]
    upper, lower, boundary, _ = (list(zip(*line.get_data(), strict=True)) for line in lines_of(axis, RED))
    assert (upper, lower) == ([(-1.5, 1), (2.5, 1)], [(1.5, -1), (-2.5, -1)])
    assert boundary == [(-1.5, 1), (1.5, -1)]
    assert " $x_c = 0.905$ " in texts(axis.figure)


def test_simulation_writes_only_outside_the_bistable_region():
    top, bottom = draw("example_simulation").axes
    x, h = y_of(top.lines[0]), y_of(bottom.lines[0])
    assert set(h.tolist()) == {-1.0, 1.0}
    written = {int(patch.get_x() + 0.5) for patch in top.patches}
    assert len(written) == len(top.patches) == len(bottom.patches) > 10
    changes = {t for t in range(1, len(h)) if h[t] != h[t - 1]}
    assert len(changes) > 3
    assert changes <= written
    assert all(h[t] == x[t].sign() for t in written)


def test_surrogates_peak_at_zero_and_are_the_slopes_of_their_functions():
    left, right = draw("surrogates").axes
    functions, slopes = [y_of(line) for line in left.lines[1:]], [y_of(line) for line in right.lines]
    assert len(functions) == len(slopes) == 4
    assert all(float(slope.max()) == float(slope[400]) == 1 for slope in slopes)
    for function, slope in zip(functions, slopes, strict=True):
        torch.testing.assert_close(function.diff() / 0.005, (slope[1:] + slope[:-1]) / 2, atol=0.01, rtol=0)


def test_stationary_memory_shows_states_and_errors(monkeypatch):
    states = {"BMRU": torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), "LRU": torch.tensor([[1.0 + 1j, 0.5], [-1.0, -0.5]])}
    errors = {"BMRU": [0.0, 0.0, 0.0], "LRU": [1e-3, 0.1, 1.0]}
    monkeypatch.setattr(
        theory, "hold_one_bit", lambda: HeldBit([10, 100, 1000], states, errors, {"BMRU": 4, "LRU": 10})
    )
    bmru, lru, right = draw("stationary_memory").axes
    assert [y_of(line).tolist() for line in bmru.lines] == [[1.0, 1.0], [-1.0, -1.0]]
    assert y_of(lru.lines[0]).tolist() == pytest.approx([2**0.5, 0.5])
    assert [y_of(line).tolist() for line in right.lines[:2]] == [[1e-16] * 3, errors["LRU"]]
    ticks = zip(right.get_yticks(), (tick.get_text() for tick in right.get_yticklabels()), strict=True)
    assert dict(ticks)[1e-16] == "0"


def test_gradients_are_constant_or_zero():
    axes = draw("gradients").axes
    for axis in axes:
        [kept], [lost] = (lines_of(axis, colour) for colour in (BLUE, RED))
        assert len(set(y_of(kept).tolist())) == 1
        assert y_of(kept)[0] != 0
        assert set(y_of(lost).tolist()) == {0.0}


def test_brc_is_monostable_singular_or_bistable():
    unstable = [int((~y_of(axis.lines[1]).isnan()).sum()) for axis in draw("brc_hysteresis").axes]
    assert unstable[:2] == [0, 0]
    assert unstable[2] > 100


def test_the_command_writes_a_picture(tmp_path):
    figure("brc_hysteresis", tmp_path)
    assert "<svg" in (tmp_path / "brc_hysteresis.svg").read_text()[:1000]
    assert_drawn(tmp_path / "brc_hysteresis.png", draw("brc_hysteresis"))


def test_an_unknown_figure_raises(tmp_path):
    with pytest.raises(typer.BadParameter, match="name must be 'all' or one of") as error:
        figure("8", tmp_path)
    assert "copy-first (figure 8), generalisation (figure 9)," in error.value.message
    assert "tails, without-positions, pathfinder (figure 11)" in error.value.message
