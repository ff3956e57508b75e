"""The command ``multistable train``."""

import math
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from multistable.dynamics import FIELDS
from multistable.layers import LAYERS
from multistable_experiments.errors import exit_on_error
from multistable_experiments.paper.settings import Preset, Scale, make_run, preset
from multistable_experiments.tasks import TASKS, Task
from multistable_experiments.training.evaluate import streamed
from multistable_experiments.training.loop import Options, train_run
from multistable_experiments.training.processes import Processes
from multistable_experiments.training.results import evaluate_lengths, folder_of
from multistable_experiments.training.run import Decay, Run

__all__ = ["train"]

TASK_HELP = (
    "What to learn. hold-bit: output the first input, +1 or -1, after many zeros. copy-first: output the first of many "
    "random numbers. mnist: read digits pixel by pixel, in a fixed random order. pathfinder: say whether a dashed line "
    "joins two dots (make the images with 'multistable data pathfinder')."
)
CELL_HELP = (
    f"The recurrent cell: {', '.join(LAYERS)}; clocked:FIELD:N or mru:FIELD with FIELD out of {', '.join(FIELDS)}. "
    "Several names separated by commas are one per block: 'lru,lru,bmru'."
)
SCALE_HELP = (
    "Sizes to start from; other options change single ones. smoke: seconds, learns little. small: minutes on a CPU. "
    "paper: the paper's tables, for a GPU."
)
OUT_HELP = "Folder of results; each run gets a folder of its own in it."
DECAY_HELP = "Weight decay by the paper's words, or sparing norms and eigenvalues."
SOURCE_HELP = "pathfinder: generated, or the release of the Long Range Arena, unpacked in the data folder."
RULE_HELP = "pathfinder: which images train, validate and test: paper, lra or s4."
LONGER_SAMPLES = 64
training_option = partial(typer.Option, rich_help_panel="Training")
model_option = partial(typer.Option, rich_help_panel="Model")
task_option = partial(typer.Option, rich_help_panel="Task")
machine_option = partial(typer.Option, rich_help_panel="Computing")


def train(
    task: Annotated[str, typer.Argument(help=TASK_HELP, metavar="TASK", autocompletion=lambda: list(TASKS))],
    scale: Annotated[Scale, typer.Option(help=SCALE_HELP)] = "small",
    seed: Annotated[int, typer.Option(help="Weights, data, order and dropout follow from it.")] = 0,
    out: Annotated[Path, typer.Option(help=OUT_HELP)] = Path("runs"),
    cell: Annotated[str, model_option(help=CELL_HELP, autocompletion=lambda: list(LAYERS))] = "bmru",
    blocks: Annotated[int | None, model_option(help="Number of recurrent blocks.")] = None,
    d_model: Annotated[int | None, model_option(help="Width of the network between cells.")] = None,
    d_state: Annotated[int | None, model_option(help="Units per cell; a hybrid has half of each kind.")] = None,
    dropout: Annotated[float, model_option(help="Dropout behind each block.")] = 0.0,
    epochs: Annotated[int | None, training_option(help="Passes over the training set; a tenth is warm-up.")] = None,
    batch_size: Annotated[int | None, training_option(help="Sequences per step, of all processes together.")] = None,
    learning_rate: Annotated[float | None, training_option(help="The highest, reached after the warm-up.")] = None,
    decay: Annotated[Literal["paper", "usual"], training_option(help=DECAY_HELP)] = "paper",
    length: Annotated[int | None, task_option(help="hold-bit, copy-first: timesteps of a sequence.")] = None,
    noise: Annotated[float | None, task_option(help="copy-first: standard deviation of later numbers.")] = None,
    black_pixels: Annotated[int | None, task_option(help="mnist: black pixels at the end (paper: 0, 1216).")] = None,
    permuted: Annotated[
        bool | None, task_option("--permuted/--in-order", help="mnist: the order of the pixels.")
    ] = None,
    level: Annotated[str | None, task_option(help="pathfinder: easy, intermediate or hard.")] = None,
    source: Annotated[str | None, task_option(help=SOURCE_HELP)] = None,
    rule: Annotated[str | None, task_option(help=RULE_HELP)] = None,
    images: Annotated[int | None, task_option(help="pathfinder: the first so many, all sets together.")] = None,
    longer: Annotated[str, task_option(help="Also test at these lengths: '1000,10000'.")] = "",
    device: Annotated[str, machine_option(help="auto (a GPU if there is one), cpu, cuda, cuda:1.")] = "auto",
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"], machine_option(help="auto: bfloat16 on a GPU, else float32.")
    ] = "auto",
    compiled: Annotated[
        bool | None,
        machine_option(
            "--compile/--no-compile",
            help="Compile the model with torch.compile.",
            show_default="on a GPU, if the run is long",
        ),
    ] = None,
    graph: Annotated[bool, machine_option(help="On a GPU, replay the step as a CUDA graph.")] = True,
) -> None:
    """Train a model on a task, test it, and print a table.

    Interrupt it whenever you like: the same command goes on where it was,
    and comes to the same numbers. A finished run is not computed again.

    Several GPUs: accelerate launch -m multistable train TASK ...
    """
    sizes = {"blocks": blocks, "d_model": d_model, "d_state": d_state, "epochs": epochs, "batch_size": batch_size}
    settings = {"length": length, "noise": noise, "black_pixels": black_pixels, "permuted": permuted, "level": level}
    settings |= {"source": source, "rule": rule, "images": images}
    with exit_on_error(resume_from=out):
        chosen = adjust(preset(task, scale), sizes, settings, learning_rate)
        cells = cell_names(cell, chosen.blocks, blocks)
        processes = Processes.join(device)
        if precision == "auto":
            precision = "bfloat16" if processes.device.type == "cuda" else "float32"
        run = make_run(chosen, cells, dropout, decay=Decay(reading=decay), seed=seed, precision=precision)
        lengths = other_lengths(longer, run.task)
        result = train_run(run, out, Options(device, graph, compiled))
        if processes.first:
            folder = folder_of(run, out)
            records = evaluate_lengths(folder, lengths, LONGER_SAMPLES, device=processes.device) if lengths else []
            show(run, result, records, folder)


def other_lengths(text: str, task: Task) -> list[int]:
    """The lengths in ``text``, looked at before the training: it may take a day."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"--longer must be positive whole numbers separated by commas, got {text!r}")
    if words:
        streamed(task)
    return [int(word) for word in words]


def adjust(chosen: Preset, sizes: dict[str, Any], settings: dict[str, Any], learning_rate: float | None) -> Preset:
    """The preset with what the user gave instead; an option of another task is refused."""
    settings = {name: value for name, value in settings.items() if value is not None}
    known = {field.name for field in fields(chosen.task)}
    if wrong := sorted(settings.keys() - known):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in wrong)
        raise ValueError(f"the task {chosen.task.name} has no {options}")
    task = replace(chosen.task, **settings)
    schedule = chosen.schedule
    if learning_rate is not None:
        if not 0 < learning_rate < math.inf:
            raise ValueError(f"--learning-rate must be a positive number, got {learning_rate!r}")
        factor = learning_rate / schedule.peak
        schedule = replace(schedule, start=schedule.start * factor, peak=learning_rate, end=schedule.end * factor)
    sizes = {name: value for name, value in sizes.items() if value is not None}
    return replace(chosen, task=task, schedule=schedule, **sizes)


def cell_names(text: str, default: int, blocks: int | None) -> tuple[str, ...]:
    """One name per block: a single name for all of them, or as many as there are blocks."""
    if blocks is not None and blocks < 1:
        raise ValueError(f"--blocks must be at least 1, got {blocks}")
    names = tuple(name.strip() for name in text.split(","))
    if len(names) == 1:
        return names * (default if blocks is None else blocks)
    if blocks not in (None, len(names)):
        raise ValueError(f"--cell names {len(names)} blocks, but --blocks is {blocks}")
    return names


def show(run: Run, result: dict[str, Any], longer: list[dict[str, Any]], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    metric = run.task.metric
    table = Table(title=f"{run.task.name}: {', '.join(run.model.cells)}, {result['parameters']:,} parameters")
    for column in ("weights", "epoch", f"validation {metric}", f"test {metric}"):
        table.add_column(column, justify="left" if column == "weights" else "right")
    for which, values in result["metrics"].items():
        name = "best on validation" if which == "best" else "last"
        scores = (f"{values[f'valid_{metric}']:.5f}", f"{values[f'test_{metric}']:.5f}")
        table.add_row(name, str(values["epoch"]), *scores)
    for record in longer:
        table.add_row(f"best, {record['length']:,} timesteps", "", "", f"{record[metric]:.5f}")
    console = Console()
    console.print(table)
    where = f"{result['seconds']:.0f} s on {result['machine']['gpu'] or 'the CPU'}; everything is in {folder}"
    console.print(where, soft_wrap=True, markup=False)
