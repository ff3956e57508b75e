"""The figure of the kernels' speed shows random shapes where there are some, and says when there are none."""

import json

import pytest

from multistable_experiments.bench.figure import draw_share_of_copy

ROW = {"name": "BMRU forward", "baseline": "copy of 400 MB", "ratio": 0.9, "dtype": "float32"}


def points(figure) -> list[list[float]]:
    """The shares of each set of marks, in both panels."""
    return [list(line.get_ydata()) for axis in figure.axes for line in axis.lines if line.get_marker() == "o"]


@pytest.mark.parametrize(
    ("rows", "shown", "words"),
    [
        ([ROW], [[0.9]], "tuned"),
        ([ROW, ROW | {"name": "BMRU forward, random shape", "ratio": 0.7}], [[0.7]], "random shapes"),
        ([ROW, ROW | {"baseline": "fla chunk_hgrn", "ratio": 2.0}], [[0.9]], "tuned"),
    ],
)
def test_random_shapes_are_shown_if_there_are_any(rows, shown, words, tmp_path):
    (tmp_path / "gpu.json").write_text(json.dumps({"rows": rows}))
    figure = draw_share_of_copy(tmp_path / "gpu.json")
    assert points(figure) == shown
    assert words in figure.get_supxlabel()


def test_without_results_it_says_so(tmp_path):
    assert "no results yet" in draw_share_of_copy(tmp_path / "none.json").get_supxlabel()
