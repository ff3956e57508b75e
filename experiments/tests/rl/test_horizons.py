"""The study of memories in T-mazes: equal sizes, files, resumption."""

from dataclasses import asdict, replace

import pytest
import torch

pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install './experiments[rl]'")

from multistable_experiments.rl import horizons
from multistable_experiments.rl.agent import CELLS, HELD, Agent
from multistable_experiments.rl.horizons import (
    ApartRun,
    TMazeRun,
    best_rate,
    measure,
    plan,
    search,
    train,
    width_of,
)
from multistable_experiments.rl.rates import RATES, SEARCH_SEED
from multistable_experiments.rl.results import load, store, stored, walks_of

SMALL = TMazeRun("bmru", noise=True, longest=2, width=8, rollouts=2, lengths=(2, 4), episodes=10)


def test_agents_have_as_many_parameters():
    cells = (*CELLS, *HELD)
    sizes = {cell: sum(p.numel() for p in Agent(cell, 3, 4, width_of(cell, 32)).parameters()) for cell in cells}
    assert max(sizes.values()) < 1.05 * min(sizes.values()), sizes


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_start_made_to_hold(cell):
    """The gate that keeps the state is nearly 1, and nothing else differs."""
    torch.manual_seed(0)
    usual = dict(Agent(cell, 3, 4, 8).named_parameters())
    torch.manual_seed(0)
    held = dict(Agent(f"{cell}-held", 3, 4, 8).named_parameters())
    assert usual.keys() == held.keys()
    for name, parameter in usual.items():
        change = torch.zeros_like(parameter)
        if name.endswith("bias_ih_l0"):
            change[8:16] = 4  # update gates of a GRU, forget gates of an LSTM
        assert torch.equal(held[name], parameter + change)


def test_an_lru_made_to_hold():
    values = Agent("lru-held", 3, 4, 8).memory.blocks[0].cell.eigenvalues()
    moduli = torch.hypot(*values.detach().double().chunk(2))
    assert ((moduli > 0.999 - 1e-6) & (moduli < 1)).all()


def fake_search(cell, rights, folder):
    """Store a search in which the trainings had these shares of right turns, by rate, in both mazes."""
    for run in search(cell):
        store(run, {"training": [0.5] * 3 + [rights[run.rate]] * run.window, "walks": []}, folder, {})


def test_a_cell_is_tested_with_its_best_rate(tmp_path):
    assert plan(["gru"], 1, tmp_path) == search("gru")
    assert best_rate("none", tmp_path) == RATES[0]
    assert [run.cell for run in plan(["gru", "none"], 1, tmp_path)] == ["gru"] * 6 + ["none"] * 2
    fake_search("gru", {1e-3: 0.994, 3e-4: 0.8, 3e-3: 0.99}, tmp_path)
    assert best_rate("gru", tmp_path) == 1e-3, "the first of equals, in percent"
    fake_search("lru", {1e-3: 0.97, 3e-4: 0.98, 3e-3: 0.5}, tmp_path)
    runs = plan(["gru", "lru"], 2, tmp_path)
    assert len({run.name for run in runs}) == len(runs) == 12 + 8
    assert [(run.cell, run.rate, run.seed) for run in runs[12:16]] == [("gru", 1e-3, 0), ("lru", 3e-4, 0)] * 2
    assert {run.seed for run in runs} == {0, 1, SEARCH_SEED}
    assert runs[12].name == "tmaze-gru-seed0"
    given = plan(["gru", "none"], 1, tmp_path, rate=3e-3)
    assert [(run.cell, run.noise, run.rate, run.seed) for run in given] == [
        (cell, noise, 3e-3, 0) for noise in (False, True) for cell in ("gru", "none")
    ]


def test_runs_with_a_critic_apart(tmp_path):
    """Files and a search of their own, and another training."""
    runs = plan(["none"], 1, tmp_path, kind=ApartRun)
    assert [run.name for run in runs] == ["apart-tmaze-none-seed0", "apart-tmaze-none-noise-seed0"]
    fake_search("gru", {1e-3: 0.9, 3e-4: 0.99, 3e-3: 0.9}, tmp_path)
    assert plan(["gru"], 1, tmp_path, kind=ApartRun) == search("gru", ApartRun) != search("gru")
    apart = ApartRun(**asdict(SMALL))
    shared, other = train(SMALL)[0].state_dict(), train(apart)[0].state_dict()
    assert any(not torch.equal(shared[name], other[name]) for name in shared)
    store(apart, measure(apart), tmp_path, {})
    assert stored(apart, tmp_path)["run"]["critic"] == "apart"
    assert stored(SMALL, tmp_path) is None
    assert all("critic" not in result["run"] for result in load(tmp_path))


def test_results_are_stored(tmp_path):
    assert stored(SMALL, tmp_path) is None
    about = {"commit": "abc"}
    first = store(SMALL, measure(SMALL), tmp_path, about)
    assert stored(SMALL, tmp_path) == first == load(tmp_path)[0]
    assert first["machine"] == about
    assert store(SMALL, {}, tmp_path, {}) == first == stored(SMALL, tmp_path), "another process was faster"
    assert [each.length for each in walks_of(first)] == [2, 4]
    assert sum(walks_of(first)[0].as_dict()[k] for k in ("right", "wrong", "strayed")) == 10


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
    agent, notes, _ = horizons.train(replace(SMALL, window=2))
    assert agent.critic.bias.item() == 4
    assert notes["right"] == [0.4, 0.9, 1.0, 1.0, 1.0, 0.3]
