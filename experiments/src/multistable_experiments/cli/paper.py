"""The commands on the paper: compute its experiments, draw its figures, measure its claims, write the report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from multistable_experiments.cli.options import DEVICE_HELP, Scale, default_folder
from multistable_experiments.errors import exit_on_error

if TYPE_CHECKING:
    from multistable_experiments.paper.store import Record

__all__ = ["claims", "figure", "report", "reproduce"]

FIGURES_HELP = "copy-first, generalisation, permuted-mnist, pathfinder; all of them by default."
SCALE_HELP = (
    "paper: all numbers of the paper's tables. small: its models with fewer epochs and images, half an hour per seed "
    "on a large GPU. smoke: seconds, learns nothing."
)
ResultsOption = Annotated[
    Path | None,
    typer.Option(help="Folder of results.", show_default="experiments/results if that folder exists, else results"),
]
ScaleOption = Annotated[Scale, typer.Option(help="The scale whose results are used.")]


def current_records(results: Path | None, scale: Scale) -> list["Record"]:
    """Load the results; name and leave out those whose settings differ from the current ones.

    A folder given by the user must exist. The default folder may be missing: a newcomer has no results yet.
    """
    from multistable_experiments.paper import store

    if results is not None and not results.is_dir():
        raise ValueError(f"--results must be a folder of results, but there is no folder {results}")
    records = store.load(results or default_folder("results"), scale)
    outdated = store.outdated(records, scale)
    for record in outdated:
        typer.echo(f"left out, computed with other settings: {record.run.task.name}/{record.name}", err=True)
    return [record for record in records if record not in outdated]


def reproduce(
    figures: Annotated[list[str] | None, typer.Argument(help=FIGURES_HELP)] = None,
    scale: Annotated[Scale, typer.Option(help=SCALE_HELP)] = "paper",
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Number of seeds: 0, 1, ...", show_default="5 at scale paper, else 1"),
    ] = None,
    budget: Annotated[str, typer.Option(help="Stop after this time, such as 9m or 1h30m.", show_default="never")] = "",
    out: Annotated[Path, typer.Option(help="Folder of checkpoints and models.")] = Path("runs"),
    results: ResultsOption = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
) -> None:
    """Compute the paper's experiments: those that are missing, the most valuable first.

    Interrupt it at any time, or give it a budget: the same command resumes,
    within a run too, and computes the same numbers.

    Exit code: 0 when all results exist, 3 when the budget is spent,
    1 when data are missing or a run cannot be computed.
    """
    from multistable_experiments.paper.reproduce import parse_duration
    from multistable_experiments.paper.reproduce import reproduce as compute
    from multistable_experiments.training.loop import Options

    with exit_on_error(resume_from=out):
        seconds = parse_duration(budget) if budget else None
        folder = results or default_folder("results")
        summary = compute(figures or None, scale, seeds, seconds, out, folder, Options(device), say=typer.echo)
    raise typer.Exit(summary.exit_code)


def figure(
    name: Annotated[str, typer.Argument(help="A figure, or 'all'; any other word lists the names.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("figures"),
    results: ResultsOption = None,
    scale: ScaleOption = "paper",
) -> None:
    """Draw a figure of the paper as SVG and PNG.

    Figures of trained models show the results that exist, and name those that are missing.
    """
    with exit_on_error():
        from multistable_experiments.files import whole_file
        from multistable_experiments.paper.figures import FIGURES

        if name != "all" and name not in FIGURES:
            raise typer.BadParameter(f"name must be 'all' or one of {', '.join(FIGURES)}, got {name!r}")
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
        findings = measure(current_records(results, scale), results or default_folder("results"))
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

    with exit_on_error(), Console(stderr=True).status("") as status:
        from multistable_experiments.paper.report import write

        records = current_records(results, scale)
        path = write(records, results or default_folder("results"), out, scale, status.update)
    typer.echo(f"The page: {path.resolve()}")
