"""The command ``multistable``. Each subcommand imports what it needs when it runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from multistable_experiments.cli.data import pathfinder
from multistable_experiments.cli.machines import machines
from multistable_experiments.cli.options import default_folder
from multistable_experiments.cli.paper import claims, figure, report, reproduce, sweep
from multistable_experiments.cli.rl import rl
from multistable_experiments.cli.train import train
from multistable_experiments.errors import exit_on_error

__all__ = ["app", "main"]

app = typer.Typer(
    name="multistable",
    help="Recurrent layers whose memory does not fade. Start with: multistable demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Generate data sets.", no_args_is_help=True)


def main() -> None:
    app()


def print_version(wanted: bool) -> None:
    if wanted:
        import multistable

        typer.echo(f"multistable {multistable.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Folder for the page and the trained models.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of weights, data and the order of training.")] = 0,
) -> None:
    """Train BMRU, LRU and GRU to remember, test how long they do, and show it on one page.

    One unit holds one bit for up to a million steps; a small model recalls a number after up to 10,000 others.
    Takes a minute or two on a CPU. Interrupt it at any time: the same command resumes.
    """
    from rich.console import Console

    with exit_on_error(resume_from=folder):
        from multistable_experiments.demo import run

        run(folder, seed=seed, console=Console())


@app.command()
def info() -> None:
    """Show this machine, the installed versions, which backend computes the scans, and why."""
    from rich.console import Console

    from multistable_experiments.info import show

    show(Console())


@app.command()
def bench(
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to measure.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Results file. The default folder is benchmarks/results if there is no experiments/benchmarks/results",
            show_default="experiments/benchmarks/results/cpu.json, or the GPU's name",
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(help="Measure this part only, such as steps, and keep the file's other rows; may be repeated."),
    ] = None,
) -> None:
    """Measure speed and memory against torch's own layers and operations (about eight minutes).

    Every row of the table is a ratio of two things measured alternately in the same run.
    """
    from rich.console import Console

    from multistable_experiments.bench.report import run

    with exit_on_error():
        run(device, out, default_folder("benchmarks/results"), Console(), part or ())


data.command()(pathfinder)
app.add_typer(data, name="data")
for command in (train, machines, rl, reproduce, sweep, figure, claims, report):
    app.command()(command)
