"""Report expected errors of a command in one line and exit with 1, or with 2 for a bad value."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

__all__ = ["exit_on_error"]


@contextmanager
def exit_on_error(resume_from: Path | None = None) -> Iterator[None]:
    """Turn an expected error into ``error: ...`` on standard error and an exit code; let others through.

    A plain ValueError means that a value on the command line is bad: 2, which typer uses for options it cannot parse.
    Other errors, such as damaged data or a full disk, exit with 1.
    An interrupt exits with 130 and says that the same command resumes from the folder ``resume_from``, if given.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, expected_errors()):
            raise
        typer.secho(f"error: {message_of(error)}", fg="red", err=True)
        raise typer.Exit(2 if type(error) is ValueError else 1) from error
    except KeyboardInterrupt as stop:
        if resume_from is None:
            raise
        typer.echo(f"stopped; the same command resumes from {resume_from}", err=True)
        raise typer.Exit(130) from stop


def expected_errors() -> tuple[type[Exception], ...]:
    """Errors that a user can cause. Any other is a bug, and its traceback is needed."""
    import torch

    from multistable_experiments.training.checkpoint import CheckpointError
    from multistable_experiments.training.loop import NonFiniteLossError
    from multistable_experiments.training.processes import LostProcessError

    own = CheckpointError, NonFiniteLossError, LostProcessError
    return ValueError, OSError, ImportError, torch.OutOfMemoryError, *own


def message_of(error: Exception) -> str:
    """The error's message. Missing packages and files get our own words, without error numbers."""
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        package = {"PIL": "pillow"}.get(name := error.name.partition(".")[0], name)
        folder = "'./experiments[rl]'" if package in ("gymnasium", "popgym") else "./experiments"
        return f"{package} is not installed: run `pip install {folder}` in a clone of the repository"
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        if isinstance(error, FileExistsError):
            return f"{error.filename} must be a folder, but is a file"
        if isinstance(error, NotADirectoryError):
            return f"{error.filename}: part of this path is a file, not a folder"
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror
    return str(error)
