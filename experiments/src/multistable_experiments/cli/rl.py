"""The command ``multistable rl``."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from multistable_experiments.cli.options import default_folder, refuse
from multistable_experiments.errors import exit_on_error

if TYPE_CHECKING:
    from multistable_experiments.rl.driver import Driver

__all__ = ["reproduce_rl", "rl"]

SEEDS, STEPS = 3, 2_000_000


def rl(
    what: Annotated[Literal["t-maze", "popgym", "speed", "all"], typer.Argument(help="Which experiment.")],
    cells: Annotated[
        list[str] | None,
        typer.Argument(
            help="Which memories.",
            show_default="bmru hybrid lru mingru gru lstm none; in T-mazes also gru-held lstm-held lru-held. By name "
            "only: mixed, a block of minGRU and one of BMRU",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0 on.")] = SEEDS,
    steps: Annotated[int, typer.Option(min=4, help="Steps of all environments in a run of popgym.")] = STEPS,
    tasks: Annotated[str, typer.Option(help="Tasks of popgym, with commas.", show_default="all 14")] = "",
    rate: Annotated[float | None, typer.Option(help="Learning rate of all cells.", show_default="searched")] = None,
    critic: Annotated[
        Literal["shared", "apart"],
        typer.Option(help="Whether the critic trains the memory, too, in T-mazes (shared)."),
    ] = "shared",
    processes: Annotated[int, typer.Option(min=1, help="Runs at a time, with one thread each.")] = 1,
    budget: Annotated[str, typer.Option(help="Stop after this time, such as 9m.", show_default="never")] = "",
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to measure speed.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch for speed, on a CPU.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder of results.", show_default="results/rl")] = None,
    checkpoints: Annotated[Path, typer.Option(help="Folder of checkpoints of unfinished runs.")] = Path("runs/rl"),
) -> None:
    """Train agents with each memory and test how long it lasts (t-maze) or what it scores (popgym); time them (speed).

    The learning rate of each memory is searched first, or given with --rate:
    the tables show such runs beside the others. One JSON file per run.
    Interrupt it at any time, or give it a budget: the same command resumes,
    within a run too, and computes the same numbers.

    Exit code: 0 when all results exist, 3 when the budget is spent. Needs the extra "rl" of the experiments.
    """
    with exit_on_error(resume_from=checkpoints):
        from multistable_experiments.rl.agent import CELLS, HELD
        from multistable_experiments.training.processes import check_device

        known = (*CELLS, "mixed") if what == "popgym" else (*CELLS, *HELD, "mixed")
        chosen = tuple(dict.fromkeys(cells or [cell for cell in known if cell != "mixed"]))
        if unknown := [cell for cell in chosen if cell not in known]:
            raise ValueError(f"cells must be out of {', '.join(known)}, got {unknown[0]!r}")
        if rate is not None and not 0 < rate < float("inf"):
            raise ValueError(f"rate must be a positive number, got {rate}")
        if critic == "apart" and what in ("popgym", "speed"):
            raise ValueError(f"a critic apart is for t-maze, not for {what}")
        if what not in ("popgym", "all"):
            refuse(f"for {what}", steps=steps != STEPS, tasks=tasks)
        if what not in ("speed", "all"):
            refuse(f"for {what}", device=device != "cpu", threads=threads != 1)
        if what == "speed":
            refuse("for speed", seeds=seeds != SEEDS, rate=rate, processes=processes != 1, budget=budget)
        check_device(device)  # now, not after hours of training
        names = tuple(dict.fromkeys(tasks.split(","))) if tasks else ()
        if what in ("popgym", "all"):
            from multistable_experiments.rl.popgym import check_tasks

            check_tasks(names)
        driver = driver_for(out or default_folder("results") / "rl", checkpoints, budget, processes)
        missing = 0
        if what in ("t-maze", "all"):
            missing += compute_mazes(driver, chosen, seeds, rate, critic)
        if what in ("popgym", "all"):
            missing += compute_popgym(driver, [cell for cell in chosen if cell not in HELD], names, seeds, steps, rate)
        if what in ("speed", "all"):
            show_speed(driver, device, threads, again=what == "speed")
    if missing:
        typer.echo(f"{missing} runs are missing: the same command computes them")
        raise typer.Exit(3)


def reproduce_rl(seeds: int | None, budget: str, results: Path | None, out: Path, device: str) -> None:
    """Compute everything that is missing, for ``multistable reproduce rl``; takes the arguments of that command."""
    import torch

    where = "cuda" if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()) else "cpu"
    folder = (results or default_folder("results")) / "rl"
    rl("all", seeds=seeds or SEEDS, budget=budget, device=where, out=folder, checkpoints=out / "rl")


def driver_for(results: Path, checkpoints: Path, budget: str, processes: int) -> "Driver":
    import time

    from multistable_experiments.files import check_writable
    from multistable_experiments.machine import describe
    from multistable_experiments.paper.reproduce import parse_duration
    from multistable_experiments.rl.driver import Driver

    for option, folder in (("--out", results), ("--checkpoints", checkpoints)):
        check_writable(option, folder / "first.json")  # before the first run, not after it
    deadline = time.time() + parse_duration(budget) if budget else None
    return Driver(results, checkpoints, describe() | {"threads": 1}, processes, deadline)


def compute_mazes(
    driver: "Driver", cells: Sequence[str], seeds: int, rate: float | None, critic: Literal["shared", "apart"]
) -> int:
    from multistable_experiments.rl.horizons import ApartRun, TMazeRun, measure, plan, search

    kind = {"shared": TMazeRun, "apart": ApartRun}[critic]
    searched = 0 if rate else sum(len(search(cell, kind)) for cell in cells)
    total = searched + 2 * len(cells) * seeds
    return total - show(driver.compute(lambda: plan(cells, seeds, driver.results, rate, kind), measure))


def compute_popgym(
    driver: "Driver", cells: Sequence[str], tasks: Sequence[str], seeds: int, steps: int, rate: float | None
) -> int:
    from multistable_experiments.rl.popgym import TASKS, measure, plan, search

    tasks = tasks or TASKS
    searched = 0 if rate else sum(len(search(cell, steps)) for cell in cells)
    total = searched + len(cells) * len(tasks) * seeds
    return total - show(driver.compute(lambda: plan(cells, tasks, seeds, steps, driver.results, rate), measure))


def show(results: Iterator[tuple[Any, dict[str, Any]]]) -> int:
    """Print a line per result; return how many there are."""
    from multistable_experiments.rl.results import walks_of

    count = 0
    for run, result in results:
        count += 1
        if "walks" in result:
            words = ", ".join(f"{100 * each.success:.0f} % at {each.length:,}" for each in walks_of(result))
            typer.echo(f"{run.name}: {words}; {result['seconds']['all']:.0f} s")
        else:
            typer.echo(f"{run.name}: score {result['score']:.3f}; {result['seconds']:.0f} s")
    return count


def show_speed(driver: "Driver", device: Literal["cpu", "cuda"], threads: int, again: bool) -> None:
    """Measure; not if there is a file, unless ``again``."""
    import torch
    from rich.console import Console

    from multistable_experiments.bench.report import table
    from multistable_experiments.files import write_json
    from multistable_experiments.rl.speed import rows

    path = driver.results / f"speed-{device}{f'-{threads}-threads' if threads > 1 else ''}.json"
    if path.exists() and not again:
        return
    torch.set_num_threads(threads)
    measured = list(rows(device))
    Console().print(table(measured, f"Updates of a learner on {device}"))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"machine": driver.about | {"threads": threads}, "rows": [row.as_dict() for row in measured]})
