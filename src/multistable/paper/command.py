"""The commands that compute the paper's experiments and draw its figures."""

from pathlib import Path
from typing import Annotated

import typer

from multistable.paper.experiments import FIGURES as EXPERIMENTS
from multistable.training.presets import Scale

__all__ = ["figure", "reproduce"]

SCALE_HELP = (
    "paper: all numbers of the paper's tables. small: its models with fewer epochs and images, half an hour of a large "
    "GPU per seed. smoke: seconds, learns nothing."
)


def figure(
    name: Annotated[str, typer.Argument(help="A figure, or 'all'.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("figures"),
) -> None:
    """Draw a figure of the paper that needs no long training, as SVG and PNG."""
    from multistable.paper.theory_figures import FIGURES  # matplotlib takes a second to load

    if name != "all" and name not in FIGURES:
        raise typer.BadParameter(f"name must be 'all' or one of {', '.join(FIGURES)}, got {name!r}")
    out.mkdir(parents=True, exist_ok=True)
    for each in FIGURES if name == "all" else [name]:
        picture = FIGURES[each]()
        for kind in ("svg", "png"):
            picture.savefig(out / f"{each}.{kind}", dpi=160)
        typer.echo(f"{out / each}.svg, .png")


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
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    device: Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda, cuda:1.")] = "auto",
) -> None:
    """Compute the paper's experiments: those that are missing, the most valuable first.

    Interrupt it whenever you like, or give it a budget: the same command
    goes on where it was, within a run too, and comes to the same numbers.

    Exit code: 0 when all results are there, 3 when the time was over,
    1 when data are missing or a run cannot be computed.
    """
    from multistable.paper import reproduce as compute
    from multistable.training import Options

    try:
        seconds = compute.parse_duration(budget) if budget else None
        summary = compute.reproduce(
            figures or None, scale, seeds, seconds, out, results, Options(device), say=typer.echo
        )
    except KeyboardInterrupt as stop:
        typer.echo(f"stopped; the same command goes on from the last checkpoint in {out}", err=True)
        raise typer.Exit(130) from stop
    except (ValueError, OSError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        raise typer.Exit(1) from error
    raise typer.Exit(summary.exit_code)
