"""The command ``multistable rl``."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

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
    steps: Annotated[int, typer.Option(min=1, help="Steps of all environments in a run of popgym.")] = 2_000_000,
    tasks: Annotated[str, typer.Option(help="Tasks of popgym, with commas.", show_default="all 14")] = "",
    budget: Annotated[str, typer.Option(help="Begin no run after this time.", show_default="never")] = "",
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to measure speed.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch for speed, on a CPU.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder of results.", show_default="results/rl")] = None,
) -> None:
    """Train agents with each memory and test how long it lasts (t-maze) or what it scores (popgym); time them (speed).

    One JSON file per run. Interrupt it at any time: the same command computes the runs that are missing.
    Exit code: 0 when all results exist, 3 when the budget is spent. Needs the extra "rl" of the experiments.
    """
    import time

    with exit_on_error():
        from multistable_experiments.machine import describe
        from multistable_experiments.paper.reproduce import parse_duration
        from multistable_experiments.rl.agent import CELLS
        from multistable_experiments.rl.results import compute

        folder, about = out or default_folder("results") / "rl", describe()
        chosen = tuple(cells or CELLS)
        if unknown := [cell for cell in chosen if cell not in CELLS]:
            raise ValueError(f"cells must be out of {', '.join(CELLS)}, got {unknown[0]!r}")
        if what == "speed":
            return show_speed(folder, about, device, threads)
        deadline = time.perf_counter() + parse_duration(budget) if budget else None
        if what == "t-maze":
            from multistable_experiments.rl.horizons import measure, plan

            missing = show(compute(plan(chosen, seeds), measure, folder, about, deadline))
        else:
            from multistable_experiments.rl.popgym import TASKS, measure, plan

            runs = plan(chosen, tuple(tasks.split(",")) if tasks else TASKS, seeds, steps)
            missing = show(compute(runs, measure, folder, about, deadline))
    if missing:
        typer.echo(f"{missing} runs are missing: the same command computes them")
        raise typer.Exit(3)


def show(results: Iterable[tuple[Any, dict[str, Any] | None]]) -> int:
    """Print a line per result; return how many are missing."""
    from multistable_experiments.rl.results import walks_of

    missing = 0
    for run, result in results:
        if result is None:
            missing += 1
        elif "walks" in result:
            words = ", ".join(f"{100 * each.success:.0f} % at {each.length:,}" for each in walks_of(result))
            typer.echo(f"{run.name}: {words}; {result['seconds']['all']:.0f} s")
        else:
            typer.echo(f"{run.name}: score {result['score']:.3f}; {result['seconds']:.0f} s")
    return missing


def show_speed(folder: Path, about: dict[str, Any], device: Literal["cpu", "cuda"], threads: int) -> None:
    import torch
    from rich.console import Console

    from multistable_experiments.bench.report import table
    from multistable_experiments.files import write_json
    from multistable_experiments.rl.speed import rows

    torch.set_num_threads(threads)
    measured = list(rows(device))
    Console().print(table(measured, f"Updates of a learner on {device}"))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(
        folder / f"speed-{device}.json",
        {"machine": about | {"threads": threads}, "rows": [row.as_dict() for row in measured]},
    )
