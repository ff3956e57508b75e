"""The command ``multistable rl``."""

import pytest
from typer.testing import CliRunner

from multistable_experiments.cli import app
from multistable_experiments.files import read_json

pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install './experiments[rl]'")

from multistable_experiments.rl import horizons


def call(*words: object):
    return CliRunner().invoke(app, ["rl", *map(str, words)])


def test_runs_are_computed_once_and_what_is_missing_is_counted(tmp_path, monkeypatch):
    small = horizons.TMazeRun("bmru", noise=True, longest=2, width=8, rollouts=1, lengths=(2, 4), episodes=4)
    monkeypatch.setattr(horizons, "plan", lambda cells, seeds: [small])
    late = call("t-maze", "--out", tmp_path, "--budget", "0s")
    assert late.exit_code == 3
    assert "1 runs are missing" in late.output
    first = call("t-maze", "--out", tmp_path)
    assert first.exit_code == 0, first.output
    assert "tmaze-bmru-noise-seed0: " in first.output
    result = read_json(tmp_path / "tmaze-bmru-noise-seed0.json")
    assert {"commit", "dirty", "processor", "date"} <= set(result["machine"])
    assert call("t-maze", "--out", tmp_path).output == first.output


@pytest.mark.parametrize(("words", "message"), [("t-maze gpt", "cells must be"), ("popgym --tasks Go", "tasks must")])
def test_wrong_words(words, message, tmp_path):
    result = call(*words.split(), "--out", tmp_path)
    assert result.exit_code == 2
    assert message in result.output
