"""The commands ``multistable rl`` and ``multistable reproduce rl``."""

import pytest
import torch
from typer.testing import CliRunner

from multistable_experiments.cli import app
from multistable_experiments.files import read_json

pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install './experiments[rl]'")

from multistable_experiments.rl import horizons, popgym, speed


def call(*words: object):
    return CliRunner().invoke(app, [*map(str, words)])


@pytest.fixture
def folders(tmp_path):
    return "--out", tmp_path / "results", "--checkpoints", tmp_path / "runs"


@pytest.fixture
def small(monkeypatch):
    """One run of each experiment, of a second."""
    run = horizons.TMazeRun("bmru", noise=True, longest=2, width=8, rollouts=1, lengths=(2, 4), episodes=4)
    monkeypatch.setattr(horizons, "search", lambda cell, kind: [])
    monkeypatch.setattr(horizons, "plan", lambda cells, seeds, folder, rate, kind: [run] * 14 * seeds)
    task = popgym.PopgymRun("RepeatFirst", "bmru", steps=2_048, width=8, envs=16, batches=1)
    monkeypatch.setattr(popgym, "search", lambda cell, steps: [])
    monkeypatch.setattr(popgym, "plan", lambda cells, tasks, seeds, steps, folder, rate: [task] * 98 * seeds)
    monkeypatch.setattr(speed, "LENGTHS", (4,))


def test_runs_are_computed_once_and_what_is_missing_is_counted(tmp_path, folders, monkeypatch):
    run = horizons.TMazeRun("bmru", noise=True, longest=2, width=8, rollouts=1, lengths=(2, 4), episodes=4)
    other = horizons.TMazeRun("bmru", noise=False, longest=2, width=8, rollouts=1, lengths=(2, 4), episodes=4)
    monkeypatch.setattr(horizons, "search", lambda cell, kind: [])
    monkeypatch.setattr(horizons, "plan", lambda cells, seeds, folder, rate, kind: [run, other])
    late = call("rl", "t-maze", "bmru", "--seeds", 1, *folders, "--budget", "0s")
    assert late.exit_code == 3, late.output
    assert "2 runs are missing" in late.output
    first = call("rl", "t-maze", "bmru", "--seeds", 1, *folders)
    assert first.exit_code == 0, first.output
    assert "tmaze-bmru-noise-seed0: " in first.output
    result = read_json(tmp_path / "results" / "tmaze-bmru-noise-seed0.json")
    assert {"commit", "dirty", "processor", "date"} <= set(result["machine"])
    assert result["machine"]["threads"] == 1, "of each run, whatever torch has here"
    assert call("rl", "t-maze", "bmru", "--seeds", 1, *folders).output == first.output


def test_a_memory_that_is_named_twice_is_computed_once(folders):
    late = call("rl", "t-maze", "bmru", "bmru", "--seeds", 1, *folders, "--budget", "0s")
    assert late.exit_code == 3, late.output
    assert "8 runs are missing" in late.output, "six of the search, one in each maze"


@pytest.mark.parametrize("option", ["--out", "--checkpoints"])
def test_a_folder_that_cannot_be_written_is_named_before_the_first_run(option, folders, tmp_path, monkeypatch):
    monkeypatch.setattr(horizons, "measure", lambda *_: pytest.fail("it has begun"))
    (tmp_path / "file").write_text("")
    result = call("rl", "t-maze", "bmru", *folders, option, tmp_path / "file")
    assert result.exit_code == 1
    assert result.output == f"error: {tmp_path / 'file'} must be a folder, but is a file\n"


@pytest.mark.extra
def test_reproduce_computes_all_that_is_missing(tmp_path, small):
    pytest.importorskip("popgym", reason="popgym is not installed: pip install './experiments[rl]'")
    words = "reproduce", "rl", "--results", tmp_path, "--out", tmp_path / "runs", "--device", "cpu"
    late = call(*words, "--budget", "0s")
    assert late.exit_code == 3, late.output
    assert not list((tmp_path / "rl").glob("[tp]*.json"))
    done = call(*words)
    assert "tmaze-bmru-noise-seed0: " in done.output
    assert "popgym-RepeatFirst-bmru-2048-rate0.001-seed0: score " in done.output
    before = {path.name: path.read_bytes() for path in (tmp_path / "rl").iterdir()}
    assert sorted(before) == [
        "popgym-RepeatFirst-bmru-2048-rate0.001-seed0.json",
        "speed-cpu.json",
        "tmaze-bmru-noise-seed0.json",
    ]
    call(*words)
    assert {path.name: path.read_bytes() for path in (tmp_path / "rl").iterdir()} == before


def test_speed_is_measured_with_the_threads_that_were_asked_for(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "LENGTHS", (4,))
    before = torch.get_num_threads()
    try:
        assert call("rl", "speed", "--threads", 2, *folders).exit_code == 0
    finally:
        torch.set_num_threads(before)
    content = read_json(tmp_path / "results" / "speed-cpu-2-threads.json")
    assert content["machine"]["threads"] == 2
    assert len(content["rows"]) == 2 * len(speed.MEMORIES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("t-maze gpt", "cells must be"),
        ("popgym gru-held", "cells must be out of bmru, hybrid, lru, mingru, gru, lstm, none, mixed, got 'gru-held'"),
        ("popgym --critic apart", "a critic apart is for t-maze, not for popgym"),
        ("popgym --tasks Go", "tasks must"),
        ("t-maze --rate -1", "rate must be a positive number, got -1.0"),
        ("t-maze --rate nan", "rate must be a positive number, got nan"),
        ("t-maze --tasks RepeatFirst --steps 9", "--steps, --tasks have no effect for t-maze"),
        ("popgym --threads 2", "--threads has no effect for popgym"),
        ("speed --seeds 1 --rate 0.1", "--seeds, --rate have no effect for speed"),
    ],
)
def test_wrong_words(words, message, folders):
    result = call("rl", *words.split(), *folders)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tasks", "RepeatFirst,Chess"), "tasks must be out of RepeatFirst, "),
        pytest.param(
            ("--device", "cuda"),
            "torch finds no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
    ids=["task", "device"],
)
def test_bad_values_are_found_before_the_first_run(words, message, folders, monkeypatch):
    monkeypatch.setattr(horizons, "measure", lambda *_: pytest.fail("it has begun"))
    result = call("rl", "all", *folders, *words)
    assert result.exit_code == 2
    assert message in result.output
