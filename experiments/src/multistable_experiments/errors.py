"""Mistakes of a user, answered by a command in one sentence instead of a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import typer

from multistable_experiments.tasks.mnist import DataError
from multistable_experiments.training.checkpoint import CheckpointError
from multistable_experiments.training.loop import NonFiniteLossError

__all__ = ["exit_on_error"]

# Other kinds are faults of this library: their traceback is wanted.
MISTAKES = (ValueError, OSError, ImportError, DataError, CheckpointError, NonFiniteLossError, torch.OutOfMemoryError)


def message_of(error: Exception) -> str:
    """The message of a mistake; for a missing package and for a file in words of our own, without error numbers."""
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        package = {"PIL": "pillow"}.get(name := error.name.partition(".")[0], name)
        return f"this needs {package}: pip install 'multistable[experiments]'"
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        if isinstance(error, FileExistsError):
            return f"{error.filename} is a file, where a folder is needed"
        if isinstance(error, NotADirectoryError):
            return f"{error.filename} leads through a file, where a folder is needed"
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror
    return str(error)


@contextmanager
def exit_on_error(resume_from: Path | None = None) -> Iterator[None]:
    """What is wrong with an argument, a file or a run becomes ``error: ...`` and exit code 1.

    ``resume_from`` is the folder from which the same command goes on: an interrupt then says so, with exit code 130.
    """
    try:
        yield
    except MISTAKES as error:
        typer.secho(f"error: {message_of(error)}", fg="red", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as stop:
        if resume_from is None:
            raise
        typer.echo(f"stopped; the same command goes on from what is in {resume_from}", err=True)
        raise typer.Exit(130) from stop
