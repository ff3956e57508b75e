"""``exit_on_error``: expected errors become one line and an exit code, interrupts say how to resume."""

from pathlib import Path

import pytest
import torch
import typer

from multistable_experiments.errors import exit_on_error
from multistable_experiments.tasks.mnist import DataError
from multistable_experiments.training.checkpoint import CheckpointError
from multistable_experiments.training.loop import NonFiniteLossError

EXPECTED = [FileNotFoundError, ImportError, DataError, CheckpointError, NonFiniteLossError]


@pytest.mark.parametrize(
    ("kind", "code"), [*((kind, 1) for kind in EXPECTED), (torch.OutOfMemoryError, 1), (ValueError, 2)]
)
def test_an_expected_error_is_reported_in_one_line(kind, code, capsys):
    with pytest.raises(typer.Exit) as leave, exit_on_error():
        raise kind("size must be 3, got 4")
    assert leave.value.exit_code == code
    assert capsys.readouterr().err == "error: size must be 3, got 4\n"


def test_a_missing_package_gives_an_install_hint(capsys):
    with pytest.raises(typer.Exit), exit_on_error():
        import package_that_nobody_has.part  # noqa: F401  # pyright: ignore[reportMissingImports]
    expected = "package_that_nobody_has is not installed: run `pip install ./experiments` in a clone of the repository"
    assert capsys.readouterr().err == f"error: {expected}\n"


@pytest.mark.parametrize("name", ["gymnasium", "gymnasium.vector", "popgym"])
def test_a_missing_package_of_agents_is_in_an_extra(name, capsys):
    with pytest.raises(typer.Exit), exit_on_error():
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    assert "run `pip install './experiments[rl]'` in a clone" in capsys.readouterr().err


def test_a_file_is_named_without_error_numbers(tmp_path, capsys):
    path = tmp_path / "file"
    for use, message in [
        (path.read_bytes, f"{path}: No such file or directory"),
        (tmp_path.read_bytes, f"{tmp_path}: Is a directory"),
        (lambda: (path.touch(), path.mkdir(exist_ok=True)), f"{path} must be a folder, but is a file"),
        ((path / "inner").mkdir, f"{path / 'inner'}: part of this path is a file, not a folder"),
    ]:
        with pytest.raises(typer.Exit), exit_on_error():
            use()
        assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize("kind", [RuntimeError, TypeError, KeyError])
def test_a_bug_keeps_its_traceback(kind):
    with pytest.raises(kind), exit_on_error():
        raise kind("size")


def test_an_interrupt_says_how_to_resume(capsys):
    with pytest.raises(typer.Exit) as leave, exit_on_error(resume_from=Path("runs")):
        raise KeyboardInterrupt
    assert leave.value.exit_code == 130
    assert capsys.readouterr().err == "stopped; the same command resumes from runs\n"
    with pytest.raises(KeyboardInterrupt), exit_on_error():
        raise KeyboardInterrupt
