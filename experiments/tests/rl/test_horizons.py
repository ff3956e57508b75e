"""The study of memories in T-mazes: equal sizes, files, resumption."""

from dataclasses import replace

import pytest

pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install './experiments[rl]'")

from multistable_experiments.files import read_json
from multistable_experiments.rl import horizons
from multistable_experiments.rl.agent import CELLS, Agent
from multistable_experiments.rl.horizons import TMazeRun, measure, plan, width_of
from multistable_experiments.rl.results import compute, load, walks_of

SMALL = TMazeRun("bmru", noise=True, longest=2, width=8, rollouts=2, lengths=(2, 4), episodes=10)


def test_agents_have_as_many_parameters():
    sizes = {cell: sum(p.numel() for p in Agent(cell, 3, 4, width_of(cell, 32)).parameters()) for cell in CELLS}
    assert max(sizes.values()) < 1.05 * min(sizes.values()), sizes


def test_names_are_different_and_cells_of_a_seed_come_first():
    runs = plan()
    assert len({run.name for run in runs}) == len(runs)
    assert {run.cell for run in runs[:7]} == set(CELLS)
    assert runs[0].name == "tmaze-bmru-seed0"
    assert {run.seed for run in runs} == {0, 1, 2}


def test_runs_are_stored_and_not_computed_again(tmp_path):
    calls = []

    def counted(run):
        calls.append(run)
        return measure(run)

    about = {"commit": "abc"}
    [(_, first)] = compute([SMALL], counted, tmp_path, about)
    [(_, again)] = compute([SMALL], counted, tmp_path, about)
    assert first is not None
    assert again == read_json(tmp_path / f"{SMALL.name}.json") == load(tmp_path)[0]
    assert calls == [SMALL]
    assert first["machine"] == about
    assert [each.length for each in walks_of(first)] == [2, 4]
    assert sum(walks_of(first)[0].as_dict()[k] for k in ("right", "wrong", "strayed")) == 10
    other = replace(SMALL, rollouts=3)  # the same file, other settings
    with pytest.raises(ValueError, match=r"other settings \(rollouts\), which is not overwritten"):
        list(compute([other], counted, tmp_path, about))
    assert calls == [SMALL]
    assert load(tmp_path) == [again]


def test_the_same_run_gives_the_same_numbers():
    """In a new process too, which has to find the width of a GRU first."""
    run = replace(SMALL, cell="gru")
    width_of.cache_clear()
    a, b = measure(run), measure(run)
    assert (a["training"], a["walks"]) == (b["training"], b["walks"])


def test_the_best_weights_are_kept(monkeypatch):
    """Those that played the last of the best rollouts in a row, not those after a loss of memory."""

    def fake(learner, between):
        for i, right in enumerate([0.4, 0.9, 1.0, 1.0, 1.0, 0.3]):
            learner.agent.critic.bias.data.fill_(i)
            yield {"right": right}

    monkeypatch.setattr(horizons.Learner, "train", fake)
    agent, notes = horizons.train(replace(SMALL, window=2))
    assert agent.critic.bias.item() == 4
    assert notes["right"] == [0.4, 0.9, 1.0, 1.0, 1.0, 0.3]
