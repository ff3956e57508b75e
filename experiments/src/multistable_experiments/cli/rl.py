"""The command ``multistable rl``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from multistable_experiments.cli.options import default_folder
from multistable_experiments.errors import exit_on_error

__all__ = ["rl"]


def rl(
    what: Annotated[Literal["t-maze", "popgym", "speed"], typer.Argument(help="Which experiment.")],
    cells: Annotated[
        list[str] | None, typer.Argument(help="Which memories.", show_default="bmru hybrid lru mingru gru lstm none")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0 on.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Steps of all environments of a run of POPGym.")] = 2_000_000,
    tasks: Annotated[str, typer.Option(help="Tasks of POPGym, with commas.", show_default="all 14")] = "",
    budget: Annotated[str, typer.Option(help="Begin no run after this time.", show_default="never")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder of results.", show_default="results/rl")] = None,
) -> None:
    """Train agents with each memory, and test how long it lasts (t-maze), how much it scores (popgym), or time it.

    One JSON file per run. Interrupt it at any time: the same command computes the runs that are missing.
    Exit code: 0 when all results exist, 3 when the budget is spent. Needs the extra "rl" of the experiments.
    """
    import time

    with exit_on_error():
        from multistable_experiments.machine import describe
        from multistable_experiments.paper.reproduce import parse_duration
        from multistable_experiments.rl.agent import CELLS

        folder, about = out or default_folder("results") / "rl", describe()
        deadline = time.perf_counter() + parse_duration(budget) if budget else None
        chosen = tuple(cells or CELLS)
        if unknown := [cell for cell in chosen if cell not in CELLS]:
            raise ValueError(f"cells must be out of {', '.join(CELLS)}, got {unknown[0]!r}")
        if what == "t-maze":
            missing = _mazes(chosen, seeds, folder, about, deadline)
        else:
            raise ValueError(f"{what} is not there yet")
    if missing:
        typer.echo(f"{missing} runs are missing: the same command computes them")
        raise typer.Exit(3)


def _mazes(cells: tuple[str, ...], seeds: int, folder: Path, about: dict, deadline: float | None) -> int:
    from multistable_experiments.rl.study import compute, plan, walks_of

    missing = 0
    for run, result in compute(plan(cells, seeds), folder, about, deadline):
        if result is None:
            missing += 1
            continue
        words = ", ".join(f"{100 * each.success:.0f} % at {each.length:,}" for each in walks_of(result))
        typer.echo(f"{run.name}: {words}; {result['seconds']['all']:.0f} s")
    return missing
