"""The commands on the paper: compute its experiments, draw its figures, measure its claims, write the report."""

from pathlib import Path
from typing import Annotated

import typer

from multistable_experiments.errors import exit_on_error
from multistable_experiments.files import whole_file
from multistable_experiments.paper import store
from multistable_experiments.paper.experiments import EXPERIMENTS
from multistable_experiments.paper.settings import Scale
from multistable_experiments.paper.store import Record

__all__ = ["claims", "figure", "report", "reproduce"]

SCALE_HELP = (
    "paper: all numbers of the paper's tables. small: its models with fewer epochs and images, half an hour on a large "
    "GPU per seed. smoke: seconds, learns nothing."
)

ResultsOption = Annotated[Path | None, typer.Option(help="Folder of results.", show_default="results")]
ScaleOption = Annotated[Scale, typer.Option(help="The scale whose results are looked at.")]
RESULTS = Path("results")


def existing(results: Path | None) -> Path:
    """The folder of results. One that was named must be there; the usual one need not: a newcomer has none yet."""
    if results is not None and not results.is_dir():
        raise ValueError(f"--results must be a folder of results, but there is no folder {results}")
    return results or RESULTS


def current_records(results: Path | None, scale: Scale) -> list[Record]:
    """The results to be looked at; those of other settings than the experiments have now are named and left out."""
    records = store.load(existing(results), scale)
    outdated = store.outdated(records, scale)
    for record in outdated:
        typer.echo(f"left out, of other settings than now: {record.run.task.name}/{record.name}", err=True)
    return [record for record in records if record not in outdated]


def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"{', '.join(EXPERIMENTS)}; all of them if none is named.", autocompletion=lambda: list(EXPERIMENTS)
        ),
    ] = None,
    scale: Annotated[Scale, typer.Option(help=SCALE_HELP)] = "paper",
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="So many seeds: 0, 1, ...", show_default="5 at scale paper, else 1"),
    ] = None,
    budget: Annotated[str, typer.Option(help="Stop after this time, such as 9m or 1h30m; no limit if not given.")] = "",
    out: Annotated[Path, typer.Option(help="Folder of checkpoints and models.")] = Path("runs"),
    results: Annotated[Path, typer.Option(help="Folder of results.")] = RESULTS,
    device: Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda, cuda:1.")] = "auto",
) -> None:
    """Compute the paper's experiments: those that are missing, the most valuable first.

    Interrupt it whenever you like, or give it a budget: the same command
    goes on where it was, within a run too, and comes to the same numbers.

    Exit code: 0 when all results are there, 3 when the time was over,
    1 when data are missing or a run cannot be computed.
    """
    from multistable_experiments.paper import reproduce as compute
    from multistable_experiments.training import Options

    with exit_on_error(resume_from=out):
        seconds = compute.parse_duration(budget) if budget else None
        summary = compute.reproduce(
            figures or None, scale, seeds, seconds, out, results, Options(device), say=typer.echo
        )
    raise typer.Exit(summary.exit_code)


def figure(
    name: Annotated[str, typer.Argument(help="A figure, or 'all'; any other word lists their names.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("figures"),
    results: ResultsOption = None,
    scale: ScaleOption = "paper",
) -> None:
    """Draw a figure of the paper as SVG and PNG.

    Figures of trained models show what results there are, and say what is missing.
    """
    with exit_on_error():
        from multistable_experiments.paper.figures import (
            FIGURES,
        )  # matplotlib takes a second to load, and may be missing

    if name != "all" and name not in FIGURES:
        raise typer.BadParameter(f"name must be 'all' or one of {', '.join(FIGURES)}, got {name!r}")
    with exit_on_error():
        records = current_records(results, scale)
        out.mkdir(parents=True, exist_ok=True)
        for each in FIGURES if name == "all" else [name]:
            picture = FIGURES[each].draw(records, scale)
            for kind in ("svg", "png"):
                with whole_file(out / f"{each}.{kind}") as part:
                    picture.savefig(part, dpi=160, format=kind)
            typer.echo(f"{out / each}.svg, .png")


def claims(
    results: ResultsOption = None,
    scale: ScaleOption = "paper",
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if a claim is not held; provisional ones pass.")
    ] = False,
) -> None:
    """Measure every claim of the paper, and print a table: claim, place, measurement, verdict.

    Claims on theory are read from theory.json among the results, those on trained models from the results of runs.
    """
    from multistable_experiments.paper.claims import measure
    from multistable_experiments.paper.claims.table import show

    with exit_on_error():
        findings = measure(current_records(results, scale), existing(results))
    show(findings)
    if strict and any(finding.verdict == "not held" for finding in findings.values()):
        raise typer.Exit(1)


def report(
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    results: ResultsOption = None,
    scale: ScaleOption = "paper",
) -> None:
    """Write one HTML page with all figures and claims of the paper, the runs behind them, and what is missing."""
    from rich.console import Console

    console = Console(stderr=True)
    with exit_on_error(), console.status("") as status:
        from multistable_experiments.paper.report import write  # matplotlib may be missing

        path = write(current_records(results, scale), existing(results), out, scale, status.update)
    typer.echo(f"The page: {path.resolve()}")
