"""The commands on the paper: compute its experiments, draw its figures, measure its claims, write the report."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from multistable_experiments.cli.options import DEVICE_HELP, Recipe, Scale, default_folder, refuse
from multistable_experiments.cli.rl import reproduce_rl
from multistable_experiments.errors import exit_on_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from multistable_experiments.engines import Resources
    from multistable_experiments.paper.figures import PaperFigure
    from multistable_experiments.paper.store import Record

__all__ = ["claims", "figure", "report", "reproduce", "sweep"]

FIGURES_HELP = (
    "tails, copy-first, generalisation, permuted-mnist, without-positions, pathfinder; all of them by default. Or rl: "
    "the agents, as `multistable rl all`."
)
OTHER_FIGURES = ("t-maze", "machine", "failing-length", "share-of-copy")
SCALE_HELP = (
    "full: the sizes of the paper's tables. small: its models with fewer epochs and images, half an hour per seed "
    "on a large GPU. smoke: seconds, learns nothing."
)
ResultsOption = Annotated[
    Path | None,
    typer.Option(help="Folder of results.", show_default="experiments/results if that folder exists, else results"),
]
RECIPE_HELP = (
    "paper: the paper's settings and nothing else. best: the best settings that a search on validation data found for "
    "each layer. tuned: what version 0.1 published."
)
RecipeOption = Annotated[Recipe, typer.Option(help=RECIPE_HELP)]
ScaleOption = Annotated[Scale, typer.Option(help="The scale whose results are used.")]
OnOption = Annotated[
    Literal["ray", "slurm"] | None, typer.Option(help="An engine that runs the tasks.", show_default="this process")
]
CpusOption = Annotated[int, typer.Option(min=1, help="Cores of each task.")]
GpusOption = Annotated[float, typer.Option(min=0, help="GPUs of each task; on Ray also a fraction, such as 0.25.")]
AddressOption = Annotated[
    str | None,
    typer.Option(help='Address of a Ray cluster; "auto" finds one on this machine.', show_default="start Ray here"),
]
MirrorOption = Annotated[
    str | None,
    typer.Option(help="An address such as s3://bucket/name, where checkpoints, models and results are kept as well."),
]
SlurmOption = Annotated[
    list[str] | None, typer.Option(help="A parameter of Slurm, such as partition=gpu; several if needed.")
]


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
    scale: Annotated[Scale, typer.Option(help=SCALE_HELP)] = "full",
    recipe: Annotated[Recipe | None, typer.Option(help=RECIPE_HELP, show_default="paper and best")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Number of seeds: 0, 1, ...", show_default="paper 5, best 3; 1 at other scales"),
    ] = None,
    budget: Annotated[str, typer.Option(help="Stop after this time, such as 9m or 1h30m.", show_default="never")] = "",
    out: Annotated[Path, typer.Option(help="Folder of checkpoints and models.")] = Path("runs"),
    results: ResultsOption = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    on: OnOption = None,
    cpus: CpusOption = 1,
    gpus: GpusOption = 0,
    address: AddressOption = None,
    slurm: SlurmOption = None,
    mirror: MirrorOption = None,
) -> None:
    """Compute the paper's experiments: those that are missing, the most valuable first.

    Interrupt it at any time, or give it a budget: the same command resumes,
    within a run too, and computes the same numbers. With --on, each experiment
    is a task of Ray or a job of Slurm; all machines must see --out and --results,
    or reach --mirror.

    Exit code: 0 when all results exist, 3 when the budget is spent,
    1 when data are missing or a run cannot be computed, 2 for a bad value.
    """
    if figures == ["rl"]:
        with exit_on_error():
            engine = {"on": on, "cpus": cpus != 1, "gpus": gpus, "address": address, "slurm": slurm}
            refuse("for rl", scale=scale != "full", recipe=recipe, mirror=mirror, **engine)
        return reproduce_rl(seeds, budget, results, out, device)
    from multistable_experiments.paper.reproduce import parse_duration
    from multistable_experiments.paper.reproduce import reproduce as compute
    from multistable_experiments.training.loop import Options

    with exit_on_error(resume_from=out):
        if "rl" in (figures or []):
            raise ValueError(f"rl must be the only figure, got {' '.join(figures or [])}")
        seconds = parse_duration(budget) if budget else None
        folder = results or default_folder("results")
        recipes = (recipe,) if recipe else ("paper", "best")
        resources = resources_of(on, cpus, gpus, address, slurm)
        summary = compute(
            figures or None,
            scale,
            recipes,
            seeds,
            seconds,
            out,
            folder,
            Options(device, mirror=mirror),
            typer.echo,
            on,
            resources,
        )
    raise typer.Exit(summary.exit_code)


def resources_of(on: str | None, cpus: int, gpus: float, address: str | None, slurm: list[str] | None) -> "Resources":
    from multistable_experiments.engines import Resources

    if on != "ray":
        refuse("without --on ray", address=address)
    if on != "slurm":
        refuse("without --on slurm", slurm=slurm)
    if on is None:
        refuse("without --on", cpus=cpus != 1, gpus=gpus)
    pairs = [text.partition("=") for text in slurm or []]
    if any(not (name and sign and value) for name, sign, value in pairs):
        raise ValueError(f"--slurm must be name=value, got {', '.join(map(repr, slurm or []))}")
    return Resources(cpus, gpus, address, slurm=tuple((name, value) for name, _, value in pairs))


def sweep(
    task: Annotated[Literal["mnist", "copy-first"], typer.Argument(help="The task.")],
    cells: Annotated[list[str], typer.Argument(help="The layers: bmru, lru, hybrid, mingru, gru.")],
    trials: Annotated[int, typer.Option(min=1, help="Trials in all, those of earlier calls included.")] = 16,
    budget: Annotated[str, typer.Option(help="Begin no trial after this time.", show_default="never")] = "",
    out: Annotated[Path, typer.Option(help="Folder for the runs of trials, removed as they end.")] = Path("runs"),
    results: ResultsOption = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    on: OnOption = None,
    cpus: CpusOption = 1,
    gpus: GpusOption = 0,
    address: AddressOption = None,
    slurm: SlurmOption = None,
) -> None:
    """Search settings of layers for a task, on validation data alone, for the recipe "best".

    All trials are stored in results/search. Interrupt it at any time:
    the same command resumes. With --on, the search of each layer is a task of
    Ray or a job of Slurm. Needs Optuna, the extra "search" of the experiments.
    """
    with exit_on_error():
        import math
        import time

        from multistable_experiments.engines import EngineError, run_all
        from multistable_experiments.paper.reproduce import parse_duration
        from multistable_experiments.paper.search import Search, run_search, search
        from multistable_experiments.training.loop import Options

        resources = resources_of(on, cpus, gpus, address, slurm)
        if find_spec("optuna") is None:
            raise ImportError("optuna is missing: pip install './experiments[search]'")
        seconds = parse_duration(budget) if budget else math.inf
        folder, options = (results or default_folder("results")).resolve(), Options(device, show_progress=False)
        if on is None:
            deadline = time.perf_counter() + seconds if budget else None
            for cell in cells:
                choice = search(task, cell, trials, folder, out, options, deadline, typer.echo)
                typer.echo(f"best of {cell} so far: {choice}")
            return
        items = [Search(task, cell, trials, folder, out.resolve(), options, time.time() + seconds) for cell in cells]
        failed = False
        for each, outcome in run_all(on, run_search, items, resources, out.resolve() / on):
            if isinstance(outcome, EngineError):
                typer.echo(f"{each.layer}: {outcome}", err=True)
                failed = True
                continue
            lines, choice = outcome
            typer.echo("\n".join([*lines, f"best of {each.layer} so far: {choice}"]))
    raise typer.Exit(1 if failed else 0)


def figure(
    name: Annotated[str, typer.Argument(help="A figure, or 'all'; an unknown name lists them.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("figures"),
    results: ResultsOption = None,
    scale: ScaleOption = "full",
    recipe: Annotated[
        Recipe | None, typer.Option(help=RECIPE_HELP, show_default="a picture of paper and of best")
    ] = None,
) -> None:
    """Draw a figure as SVG and PNG: one of the paper's, or t-maze, machine, failing-length or share-of-copy.

    Figures of trained models show the results that exist, and name those that are missing.
    """
    with exit_on_error():
        from multistable_experiments.paper.figures import FIGURES

        names = (*FIGURES, *OTHER_FIGURES)
        if name != "all" and name not in names:
            numbers = {each: f" (figure {own.number})" for each, own in FIGURES.items() if own.number}
            known = ", ".join(each + numbers.get(each, "") for each in names)
            raise typer.BadParameter(f"name must be 'all' or one of {known}, got {name!r}")
        records = current_records(results, scale)
        out.mkdir(parents=True, exist_ok=True)
        for each in names if name == "all" else [name]:
            if each in OTHER_FIGURES:
                save_picture(draw_other(each, results or default_folder("results")), out / each)
                continue
            for own in recipes_of(FIGURES[each], recipe):
                picture = FIGURES[each].draw(records, scale, own or "paper")
                save_picture(picture, out / (f"{each}-{own}" if own else each))


def draw_other(name: str, results: Path) -> "Figure":
    """Draw one of ``OTHER_FIGURES`` from the folder of results."""
    if name == "t-maze":
        from multistable_experiments.rl.figures import draw_t_maze

        return draw_t_maze(results / "rl")
    if name == "machine":
        from multistable_experiments.state_machines.figure import draw_machine

        return draw_machine(results / "machines")
    if name == "failing-length":
        from multistable_experiments.state_machines.contest_figure import draw_failing_length

        return draw_failing_length(results / "machines")
    from multistable_experiments.bench.figure import draw_share_of_copy

    return draw_share_of_copy(default_folder("benchmarks") / "results" / "nvidia-h200.json")


def save_picture(picture: "Figure", path: Path) -> None:
    from multistable_experiments.files import whole_file

    for kind in ("svg", "png"):
        with whole_file(path.with_suffix(f".{kind}")) as part:
            picture.savefig(part, dpi=160, format=kind)
    typer.echo(f"{path}.svg, .png")


def recipes_of(figure: "PaperFigure", wanted: Recipe | None) -> list[Recipe | None]:
    """The recipes by which a figure is drawn; one None for a figure that shows no trained models."""
    chosen = (wanted,) if wanted else ("paper", "best")
    return [recipe for recipe in figure.recipes if recipe in chosen] or [None]


def claims(
    results: ResultsOption = None,
    scale: ScaleOption = "full",
    recipe: Annotated[Recipe | None, typer.Option(help=RECIPE_HELP, show_default="paper and best")] = None,
    form: Annotated[Literal["table", "markdown", "json"], typer.Option("--format", help="How to print.")] = "table",
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if a claim is not held; provisional ones pass.")
    ] = False,
) -> None:
    """Measure every claim of the paper, by each recipe, and print them with their verdicts.

    Claims on theory are read from theory.json among the results, those on trained models from the results of runs.
    The last line says how long the missing runs would take.
    """
    from multistable_experiments.paper.claims import measure_all
    from multistable_experiments.paper.claims.table import as_json, markdown, show

    recipes: tuple[Recipe, ...] = (recipe,) if recipe else ("paper", "best")
    with exit_on_error():
        records = current_records(results, scale)
        findings = measure_all(records, results or default_folder("results"), recipes)
    if form == "table":
        show(findings)
        typer.echo(describe_missing(records, scale, recipes))
    else:
        typer.echo(markdown(findings) if form == "markdown" else as_json(findings))
    if strict and any(finding.verdict == "not held" for found in findings.values() for finding in found.values()):
        raise typer.Exit(1)


def describe_missing(records: list["Record"], scale: Scale, recipes: tuple[Recipe, ...]) -> str:
    """How many runs are missing, and how long they would take (``store.estimate_seconds``)."""
    from multistable_experiments.paper import store
    from multistable_experiments.paper.experiments import plan

    planned = plan(None, scale, None, recipes)
    missing = store.missing(records, planned)
    seconds = sum(store.estimate_seconds(each, records) for each in missing)
    speed = "at the speed of stored runs of the same layers, or of an H200 if there are none"
    return f"{len(missing)} of {len(planned)} runs are missing: about {seconds:,.0f} s, {speed}"


def report(
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    results: ResultsOption = None,
    scale: ScaleOption = "full",
) -> None:
    """Write one HTML page with all figures and claims of the paper, the runs behind them, and what is missing."""
    from rich.console import Console

    with exit_on_error(), Console(stderr=True).status("") as status:
        from multistable_experiments.paper.report import write

        records = current_records(results, scale)
        folder = results or default_folder("results")
        path = write(records, folder, out, scale, status.update)
    if not records:
        typer.echo(f"no results of runs at scale {scale} in {folder}; a clone of the repository has some", err=True)
    typer.echo(f"The page: {path.resolve()}")
