"""The command ``multistable``: each subcommand imports what it needs when it runs."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

_missing = [name for name in ("typer", "rich", "matplotlib") if find_spec(name) is None]
if _missing:
    sys.exit(f"The multistable command needs {', '.join(_missing)}: pip install 'multistable[experiments]'")

import typer  # noqa: E402
from rich.console import Console  # noqa: E402

__all__ = ["app", "main"]

app = typer.Typer(
    name="multistable",
    help="Recurrent layers whose memory does not fade. Start with: multistable demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()


def main() -> None:
    app()


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the initial weights and of the training lengths.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 500,
) -> None:
    """Teach one unit to hold one bit, test it up to a million steps, draw its state.

    Takes well under a minute on any CPU.
    """
    from multistable.demo import run

    run(folder, seed=seed, steps=steps, console=console)


@app.command()
def info() -> None:
    """Show this machine, the versions installed, and which backend would compute the scans, and why."""
    from multistable.info import run

    run(console)


@app.command()
def bench(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Result file. [default: benchmarks/results/<device>.json]")] = None,
) -> None:
    """Measure speed and memory against torch's own layers and operations (about five minutes).

    Every line of the table is a ratio of two things measured in turns in the same run.
    """
    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(f"must be cpu or cuda, got {device!r}", param_hint="--device")
    if find_spec(f"multistable.bench.{device}") is None:
        raise typer.BadParameter(f"there is no benchmark for {device} yet, only for cpu", param_hint="--device")
    from multistable.bench.report import run

    rows = import_module(f"multistable.bench.{device}").rows
    run(rows(), device, out or Path("benchmarks", "results", f"{device}.json"), console)
