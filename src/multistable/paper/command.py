"""The commands on the paper: its figures, its claims, and the page with both."""

from pathlib import Path
from typing import Annotated

import typer

from multistable.training.presets import Scale

__all__ = ["claims", "figure", "report"]

ResultsOption = Annotated[Path, typer.Option(help="Folder of results.")]
ScaleOption = Annotated[Scale, typer.Option(help="The scale whose results are looked at.")]
RESULTS = Path("results")


def figure(
    name: Annotated[str, typer.Argument(help="A figure, or 'all'.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("figures"),
    results: ResultsOption = RESULTS,
    scale: ScaleOption = "paper",
) -> None:
    """Draw a figure of the paper as SVG and PNG.

    Figures of trained models show what results there are, and say what is missing.
    """
    from multistable.paper import store
    from multistable.paper.figures import PICTURES  # matplotlib takes a second to load

    if name != "all" and name not in PICTURES:
        raise typer.BadParameter(f"name must be 'all' or one of {', '.join(PICTURES)}, got {name!r}")
    out.mkdir(parents=True, exist_ok=True)
    records = store.load(results, scale)
    for each in PICTURES if name == "all" else [name]:
        picture = PICTURES[each].draw(records, scale)
        for kind in ("svg", "png"):
            picture.savefig(out / f"{each}.{kind}", dpi=160)
        typer.echo(f"{out / each}.svg, .png")


def claims(
    results: ResultsOption = RESULTS,
    scale: ScaleOption = "paper",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a claim is not held.")] = False,
) -> None:
    """Measure every claim of the paper, and print a table: claim, place, measurement, verdict.

    Claims on theory are computed on the spot, in seconds; those on trained models are read from results.
    """
    from multistable.paper import store
    from multistable.paper.claims import measure
    from multistable.paper.claims.table import show

    measured = measure(store.load(results, scale))
    show(measured)
    if strict and any(each.verdict == "not held" for each in measured):
        raise typer.Exit(1)


def report(
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    results: ResultsOption = RESULTS,
    scale: ScaleOption = "paper",
) -> None:
    """Write one HTML page with all figures and claims of the paper, the runs behind them, and what is missing."""
    from rich.console import Console

    from multistable.paper.report import write

    console = Console(stderr=True)
    with console.status("") as status:
        path = write(results, out, scale, lambda words: status.update(words))
    typer.echo(f"The page: {path.resolve()}")
