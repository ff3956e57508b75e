"""The figure of success by length shows each cell, and says when there is nothing to show."""

from drawings import texts
from multistable_experiments.files import write_json
from multistable_experiments.rl.figures import draw_t_maze, successes
from multistable_experiments.rl.results import load


def save(folder, cell: str, noise: bool, seed: int, rights: list[int], rate: float = 1e-3, kind: str = "") -> None:
    walks = [{"length": 10**i, "right": r, "wrong": 10 - r, "strayed": 0} for i, r in enumerate(rights, 1)]
    run = {"cell": cell, "noise": noise, "seed": seed, "rate": rate}
    write_json(folder / f"{kind}tmaze-{cell}-{noise}-{rate:g}-seed{seed}.json", {"run": run, "walks": walks})


def test_means_of_seeds_by_length(tmp_path):
    save(tmp_path, "bmru", True, 0, [10, 10])
    save(tmp_path, "gru", True, 0, [10, 5])
    save(tmp_path, "gru", True, 1, [8, 4])
    save(tmp_path, "gru", True, 2, [6])  # it guessed, and did not walk on
    save(tmp_path, "gru", True, 0, [1, 1], rate=3e-3)  # not the rate of this cell
    save(tmp_path, "gru-held", True, 0, [10, 7])
    save(tmp_path, "lru", False, 0, [5, 5])
    save(tmp_path, "lstm", True, 0, [9, 3], kind="apart-")
    assert successes(load(tmp_path), noise=True) == {
        "bmru": {10: [1.0], 100: [1.0]},
        "gru": {10: [1.0, 0.8, 0.6], 100: [0.5, 0.4, 0.6]},
        "gru-held": {10: [1.0], 100: [0.7]},
    }
    figure = draw_t_maze(tmp_path)
    lines = [
        {line.get_linestyle(): line.get_ydata()[-1] for line in axis.lines if len(line.get_ydata()) == 2}
        for axis in figure.axes
    ]
    assert lines[1]["--"] == 0.7, "dashed: a start made to hold"
    assert lines[3]["-"] == 0.3, "below: with a critic apart"
    above, below = ({text.get_text() for text in figure.axes[i].texts} for i in (1, 3))
    assert {"BMRU", "GRU"} <= above
    assert "LSTM" not in above
    assert "LSTM" in below


def test_without_results(tmp_path):
    assert "no results yet: multistable rl t-maze" in texts(draw_t_maze(tmp_path))
