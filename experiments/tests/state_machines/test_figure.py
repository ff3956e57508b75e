"""The graph of a trained machine, and the figure of the comparison."""

from pathlib import Path

import pytest

from multistable_experiments.files import read_json, write_json
from multistable_experiments.state_machines.contest_figure import NEVER, draw_failing_length
from multistable_experiments.state_machines.figure import SHOWN, circle, draw_machine, paired
from multistable_experiments.state_machines.rivals import CELLS
from multistable_experiments.tasks.state_tracking import machine

RESULTS = Path(__file__).parents[2] / "results" / "machines"


def test_states_stand_for_states_of_the_target():
    mod_four, parity = machine("mod4"), machine("parity")
    assert paired(mod_four, parity) == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="stands for states"):
        paired(machine("mod3"), parity)


def test_places_are_apart():
    places = circle(3, [0, 0, 0, 0, 1, 2, 2])
    assert len({(round(x, 3), round(y, 3)) for x, y in places}) == 7


def test_the_stored_machine_is_drawn():
    assert read_json(RESULTS / f"{SHOWN}.json")["verdict"]["right"] is True
    figure = draw_machine(RESULTS)
    left, right = figure.axes
    assert left.get_title() == "target: 6 states"
    assert right.get_title() == "trained model: 20 joint states of 4 units"
    assert len(left.patches) == 12, "an arrow for each state and each of two symbols"
    assert len(right.patches) == 40


def test_without_results(tmp_path):
    assert not draw_machine(tmp_path).axes[0].patches


def test_a_point_for_each_seed_that_is_not_of_the_search(tmp_path):
    for seed, length in ((0, 17), (1, None), (100, 3)):
        result = {"contest": {"machine": "S3", "cell": "lru", "seed": seed}, "test": {"failing_length": length}}
        write_json(tmp_path / f"rival-{seed}.json", result)
    [axis] = draw_failing_length(tmp_path).axes
    assert axis.get_title(loc="left") == "S3"
    _, *points = axis.get_lines()  # the first is the length of training
    assert [float(point.get_xdata()[0]) for point in points] == [17, NEVER]
    assert [text.get_text() for text in axis.texts] == ["not computed"] * (len(CELLS) - 1)
    assert "no results yet" in draw_failing_length(tmp_path / "none").get_supxlabel()
