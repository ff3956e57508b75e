"""A run that is interrupted gives the same numbers as one that is not."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install './experiments[rl]'")

from multistable_experiments.files import DamagedFileError
from multistable_experiments.rl import checkpoint, corridors, horizons
from multistable_experiments.rl.checkpoint import Checkpoint, OutOfTimeError
from multistable_experiments.rl.driver import Driver
from multistable_experiments.rl.horizons import TMazeRun

SMALL = TMazeRun("hybrid", noise=True, longest=3, width=8, rollouts=6, window=2, lengths=(3, 6), episodes=10)


class Limited(Checkpoint):
    """Out of time after some rollouts."""

    def __init__(self, path, rollouts):
        super().__init__(path)
        self.left = rollouts

    def keep(self, learner, notes):
        self.left -= 1
        self.deadline = 0.0 if self.left == 0 else None
        super().keep(learner, notes)


def interrupted(measure, run, path, rollouts):
    """The result of a run that is interrupted after so many rollouts, again and again, and how often it was."""
    for i in range(100):
        torch.rand(7)  # what a new process has drawn before
        try:
            return measure(run, Limited(path, rollouts)), i
        except OutOfTimeError:
            assert path.exists()
    raise AssertionError("it makes no progress")


@pytest.mark.parametrize("cell", ["hybrid", "lstm", "none"])
def test_a_t_maze_goes_on_with_the_same_numbers(cell, tmp_path, monkeypatch):
    """In training and on its walk: 6 rollouts and 5 steps behind the clue."""
    monkeypatch.setattr(corridors, "CHUNK", 10)
    run = replace(SMALL, cell=cell)
    whole = horizons.measure(run)
    parts, interruptions = interrupted(horizons.measure, run, tmp_path / "run.pickle", rollouts=2)
    assert interruptions == 5
    assert {**parts, "seconds": None} == {**whole, "seconds": None}
    assert len(whole["training"]) == run.rollouts


@pytest.mark.extra
@pytest.mark.parametrize("task", ["CountRecall", "Battleship", "NoisyPositionOnlyPendulum"])
def test_a_task_of_popgym_goes_on_with_the_same_numbers(task, tmp_path):
    """CountRecall draws from numpy's global random numbers, too."""
    popgym = pytest.importorskip("multistable_experiments.rl.popgym")
    pytest.importorskip("popgym", reason="popgym is not installed: pip install './experiments[rl]'")
    run = popgym.PopgymRun(task, "bmru", steps=6_144, width=16, envs=8, batches=2)
    whole = popgym.measure(run)
    parts, interruptions = interrupted(popgym.measure, run, tmp_path / "run.pickle", rollouts=2)
    assert interruptions == 3
    assert {**parts, "seconds": None} == {**whole, "seconds": None}
    assert len(whole["returns"]) >= 3


def test_it_is_written_now_and_then_and_removed(tmp_path, monkeypatch):
    path, written = tmp_path / "deep" / "run.pickle", []
    monkeypatch.setattr(checkpoint, "write_atomically", lambda path, content: written.append(path))
    horizons.measure(SMALL, Checkpoint(path))
    assert written == []
    monkeypatch.setattr(checkpoint, "EVERY", 0.0)
    horizons.measure(SMALL, Checkpoint(path))
    assert written == [path] * (SMALL.rollouts + len(SMALL.lengths))
    path.write_bytes(b"")
    Checkpoint(path).remove()
    Checkpoint(path).remove()
    assert not path.exists()


def test_a_result_names_the_commits_of_all_its_parts(tmp_path, monkeypatch):
    driver = Driver(tmp_path, tmp_path, {"commit": "c"})
    for commit in ("a", "b", "b"):
        monkeypatch.setattr(checkpoint, "source_commit", lambda commit=commit: commit)
        with pytest.raises(OutOfTimeError):
            horizons.measure(SMALL, Limited(tmp_path / f"{SMALL.name}.pickle", 1))
    monkeypatch.setattr(checkpoint, "source_commit", lambda: "c")
    assert driver.work(SMALL, horizons.measure)["machine"] == {"commit": "c", "earlier_commits": ["a", "b"]}


def test_one_of_other_settings_is_refused(tmp_path):
    """The name of a run does not have all its settings, and neither does that of its checkpoint."""
    path = tmp_path / "run.pickle"
    with pytest.raises(OutOfTimeError):
        horizons.measure(SMALL, Limited(path, 1))
    with pytest.raises(ValueError, match=r"run\.pickle is a checkpoint of other settings"):
        horizons.measure(replace(SMALL, rollouts=7), Checkpoint(path))


@pytest.mark.parametrize(
    "content",
    [b"", b"not a pickle", b"cno_such_module\nthing\n.", b"\x80\x04K\x01.", b"]K\x05\x94h\x09."],
    ids=["empty", "text", "a module", "a number", "a memory"],
)
def test_a_damaged_one_is_named(content, tmp_path):
    path = tmp_path / "run.pickle"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"run\.pickle is truncated or corrupt; without it"):
        horizons.measure(SMALL, Checkpoint(path))
