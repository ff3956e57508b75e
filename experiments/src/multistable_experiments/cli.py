"""The command ``multistable``: each subcommand imports what it needs when it runs."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated


def need(*packages: str) -> None:
    """Leave with one sentence if a package of the extra ``experiments`` is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        sys.exit(f"This needs {', '.join(missing)}: pip install 'multistable[experiments]'")


need("typer", "rich", "safetensors")

import typer  # noqa: E402
from rich.console import Console  # noqa: E402

from multistable_experiments.errors import exit_on_error  # noqa: E402
from multistable_experiments.files import check_writable  # noqa: E402
from multistable_experiments.paper.command import claims, figure, report, reproduce  # noqa: E402
from multistable_experiments.tasks.pathfinder import command as pathfinder  # noqa: E402
from multistable_experiments.training.command import train  # noqa: E402

__all__ = ["app", "main"]

app = typer.Typer(
    name="multistable",
    help="Recurrent layers whose memory does not fade. Start with: multistable demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
console = Console()


def main() -> None:
    app()


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the page and the trained models go.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Weights, data and order of training follow from it.")] = 0,
) -> None:
    """Teach BMRU, LRU and GRU to remember, test how long they do, and draw it: one page to look at.

    One unit holds one bit, up to a million steps; a small model gives a number back behind up to 10,000 others.
    Takes a minute or two on a CPU. Interrupt it whenever you like: the same command goes on where it was.
    """
    need("matplotlib")
    from multistable_experiments.demo import run

    with exit_on_error(resume_from=folder):
        run(folder, seed=seed, console=console)


app.command()(train)
app.command()(reproduce)
app.command()(figure)
app.command()(claims)
app.command()(report)

data = typer.Typer(help="Make data sets, and look at them.", no_args_is_help=True)
show = typer.Typer(help="Draw a sheet of samples with their labels.", no_args_is_help=True)
data.command("pathfinder")(pathfinder.generate)
show.command("pathfinder")(pathfinder.show)
data.add_typer(show, name="show")
app.add_typer(data, name="data")


@app.command()
def info() -> None:
    """Show this machine, the versions installed, and which backend would compute the scans, and why."""
    from multistable_experiments.info import run

    run(console)


@app.command()
def bench(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(help="Result file.", show_default="experiments/benchmarks/results/cpu.json, or the GPU's name"),
    ] = None,
) -> None:
    """Measure speed and memory against torch's own layers and operations (about eight minutes).

    Every line of the table is a ratio of two things measured in turns in the same run.
    """
    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(f"must be cpu or cuda, got {device!r}", param_hint="--device")
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("torch finds no GPU", param_hint="--device")
    from multistable_experiments.bench.report import run

    name = torch.cuda.get_device_name() if device == "cuda" else "this CPU"
    file = name.lower().replace(" ", "-") if device == "cuda" else device
    out = out or Path("experiments", "benchmarks", "results", f"{file}.json")
    with exit_on_error():
        check_writable("--out", out)  # to fail now, and not after eight minutes of measuring
        rows = import_module(f"multistable_experiments.bench.{device}").rows
        run(rows(), name, out, console)
