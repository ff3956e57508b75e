"""The live line: there on a terminal, silent elsewhere."""

import io
import sys

import pytest

from multistable_experiments.training import Options, loop, train_run
from multistable_experiments.training.progress import Progress, progress
from training_runs import QUIET, copy_first_run


class Screen(io.StringIO):
    """Standard error as a terminal would be."""

    def isatty(self) -> bool:
        return True


def test_silent_where_nobody_looks(monkeypatch, capsys):
    assert not isinstance(progress(10, 2), Progress)
    monkeypatch.setattr(sys, "stderr", Screen())
    assert isinstance(progress(10, 2), Progress)
    assert not isinstance(progress(10, 2, wanted=False), Progress)


@pytest.mark.parametrize("wanted", [True, False])
def test_line_has_loss_metric_speed_and_time_left(tmp_path, monkeypatch, wanted):
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(loop, "LOOK_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    train_run(copy_first_run(), tmp_path, Options("cpu") if wanted else QUIET)
    text = screen.getvalue()
    for word in ("epoch", "3/3", "loss ", "mse ", "timesteps/s", "left"):
        assert (word in text) == wanted
