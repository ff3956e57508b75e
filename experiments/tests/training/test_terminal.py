"""The progress line on a terminal, and Ctrl-C."""

import io
import signal
import sys
import threading
from dataclasses import replace

import pytest

from multistable_experiments.training import loop, terminal
from multistable_experiments.training.loop import Options, train_run
from multistable_experiments.training.terminal import defer_interrupts, print_epoch, progress
from training_runs import QUIET, copy_first_run


class FakeTerminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("terminal", "wanted"), [(False, True), (True, False), (True, True)])
def test_progress_is_shown_on_a_terminal_if_wanted(monkeypatch, terminal, wanted):
    screen = FakeTerminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress(10, 2, wanted) as update:
        update(5, 1, "loss")
    assert bool(screen.getvalue()) == (terminal and wanted)


@pytest.mark.parametrize("wanted", [True, False])
def test_line_has_loss_metric_speed_and_time_left(tmp_path, monkeypatch, wanted):
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(loop, "SHOW_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    train_run(copy_first_run(), tmp_path, Options("cpu") if wanted else QUIET)
    text = screen.getvalue()
    for word in ("epoch", "3/3", "loss ", "mse ", "timesteps/s", "left"):
        assert (word in text) == wanted


@pytest.mark.parametrize("wanted", [True, False])
def test_a_line_per_epoch_off_a_terminal(tmp_path, monkeypatch, wanted):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    seen = []
    train_run(copy_first_run(), tmp_path, replace(Options("cpu") if wanted else QUIET, after_epoch=seen.append))
    lines = log.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == (["epoch 1/3", "epoch 2/3", "epoch 3/3"] if wanted else [])
    assert all(f"valid {record['valid_mse']:.4f}" in line for line, record in zip(lines, seen, strict=False))
    assert [record["epoch"] for record in seen] == [1, 2, 3]


@pytest.mark.parametrize(("notebook", "widgets"), [(True, True), (True, False), (False, True)])
def test_a_bar_in_a_notebook_needs_ipywidgets(monkeypatch, notebook, widgets):
    """Without a bar there is a line per epoch."""
    monkeypatch.setattr(sys, "stderr", log := io.StringIO())
    monkeypatch.setattr("rich.console._is_jupyter", lambda: notebook)  # what a new Console asks
    monkeypatch.setattr(terminal, "find_spec", lambda name: widgets or None)
    assert terminal.can_show_bar() == (notebook and widgets)
    print_epoch({"epoch": 1, "train_loss": 0.5, "train_mse": 0.5, "valid_mse": 0.25, "seconds": 1.0}, 3, "mse")
    assert bool(log.getvalue()) == (not terminal.can_show_bar())


@pytest.fixture
def default_interrupts():
    """Use Python's own handler; workers of xdist have another one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_interrupt_is_raised_immediately(default_interrupts):
    with defer_interrupts() as interrupted:
        signal.raise_signal(signal.SIGINT)
        assert interrupted.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_termination_is_deferred_too(default_interrupts):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with defer_interrupts() as interrupted:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "the next line would end pytest"
        signal.raise_signal(signal.SIGTERM)
        assert interrupted.is_set()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "a second one ends the process"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with defer_interrupts():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, handler)


def test_foreign_handlers_and_other_threads_are_left_alone(default_interrupts):
    def inside(wanted: bool = True) -> None:
        with defer_interrupts(wanted):
            handlers.append(signal.getsignal(signal.SIGINT))

    handlers = []
    inside(wanted=False)
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    inside()
    assert handlers == [signal.default_int_handler, signal.default_int_handler, signal.SIG_IGN]
