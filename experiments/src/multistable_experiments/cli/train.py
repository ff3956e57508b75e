"""The command ``multistable train``."""

import math
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from multistable_experiments.cli.options import DEVICE_HELP, Scale
from multistable_experiments.errors import exit_on_error

if TYPE_CHECKING:
    from multistable_experiments.paper.settings import Preset
    from multistable_experiments.training.run import Run

__all__ = ["adjust", "cell_names", "train"]

TASK_HELP = (
    "What to learn. hold-bit: output the first input, +1 or -1, after many zeros. copy-first: output the first of many "
    "random numbers. mnist: classify digits read pixel by pixel, in a fixed random order. pathfinder: tell whether a "
    "dashed line joins two dots (generate the images with 'multistable data pathfinder')."
)
CELL_HELP = (
    "The recurrent layer: bmru, lru, hybrid, hysteresis, brc, nbrc, mingru, counter, gru, lstm; fsm:K with K states; "
    "clocked:FIELD:N or mru:FIELD, where FIELD is simplified_brc, brc, nbrc or linear. Give several names, one per "
    "block, as 'lru,lru,bmru'."
)
SCALE_HELP = (
    "Sizes to start from; other options change single ones. smoke: seconds, learns little. small: minutes on a CPU. "
    "full: the paper's tables, for a GPU."
)
OUT_HELP = "Folder of results; each run gets its own folder in it."
DECAY_HELP = "Weight decay as the paper words it, or sparing norms and eigenvalues."
SOURCE_HELP = "pathfinder: generated, or the release of the Long Range Arena, unpacked in the data folder."
RULE_HELP = "pathfinder: how images are split into training, validation and test: paper, lra or s4."
TRACK_HELP = "Also send the metrics of each epoch to tensorboard, trackio or wandb, which must be installed."
LONGER_SAMPLES = 64
training_option = partial(typer.Option, rich_help_panel="Training")
model_option = partial(typer.Option, rich_help_panel="Model")
task_option = partial(typer.Option, rich_help_panel="Task")
machine_option = partial(typer.Option, rich_help_panel="Computing")


def train(
    task: Annotated[str, typer.Argument(help=TASK_HELP, metavar="TASK")],
    scale: Annotated[Scale, typer.Option(help=SCALE_HELP)] = "small",
    seed: Annotated[int, typer.Option(help="Seed of weights, data, order and dropout.")] = 0,
    out: Annotated[Path, typer.Option(help=OUT_HELP)] = Path("runs"),
    cell: Annotated[str, model_option(help=CELL_HELP)] = "bmru",
    blocks: Annotated[int | None, model_option(min=1, help="Number of recurrent blocks.")] = None,
    d_model: Annotated[int | None, model_option(help="Width of the network between layers.")] = None,
    d_state: Annotated[int | None, model_option(help="Units per layer; a hybrid has half of each kind.")] = None,
    dropout: Annotated[float, model_option(help="Dropout after each block.")] = 0.0,
    epochs: Annotated[int | None, training_option(help="Passes over the training set; a tenth is warm-up.")] = None,
    batch_size: Annotated[int | None, training_option(help="Sequences per step, of all processes together.")] = None,
    learning_rate: Annotated[float | None, training_option(help="The highest rate, reached after the warm-up.")] = None,
    decay: Annotated[Literal["paper", "usual"], training_option(help=DECAY_HELP)] = "paper",
    length: Annotated[int | None, task_option(help="hold-bit, copy-first: timesteps of a sequence.")] = None,
    noise: Annotated[float | None, task_option(help="copy-first: standard deviation of the later numbers.")] = None,
    black_pixels: Annotated[int | None, task_option(help="mnist: black pixels appended (paper: 0, 1216).")] = None,
    permuted: Annotated[
        bool | None, task_option("--permuted/--in-order", help="mnist: the order of the pixels.")
    ] = None,
    level: Annotated[str | None, task_option(help="pathfinder: easy, intermediate or hard.")] = None,
    source: Annotated[str | None, task_option(help=SOURCE_HELP)] = None,
    rule: Annotated[str | None, task_option(help=RULE_HELP)] = None,
    images: Annotated[int | None, task_option(help="pathfinder: use only this many images.")] = None,
    longer: Annotated[str, task_option(help="Also test at these lengths: '1000,10000'.")] = "",
    device: Annotated[str, machine_option(help=DEVICE_HELP)] = "auto",
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
    track: Annotated[
        Literal["tensorboard", "trackio", "wandb"] | None, machine_option(help=TRACK_HELP, show_default="nowhere")
    ] = None,
) -> None:
    """Train a model on a task, test it, and print a table.

    Interrupt it at any time: the same command resumes and computes
    the same numbers. A finished run is not computed again.

    Several GPUs: accelerate launch -m multistable_experiments train TASK ...
    """
    from multistable_experiments.paper.settings import make_run, preset
    from multistable_experiments.training.evaluate import streamed
    from multistable_experiments.training.loop import Options, train_run
    from multistable_experiments.training.processes import Processes
    from multistable_experiments.training.results import evaluate_lengths, folder_of
    from multistable_experiments.training.run import Decay

    sizes = {"blocks": blocks, "d_model": d_model, "d_state": d_state, "epochs": epochs, "batch_size": batch_size}
    settings = {"length": length, "noise": noise, "black_pixels": black_pixels, "permuted": permuted, "level": level}
    settings |= {"source": source, "rule": rule, "images": images}
    with exit_on_error(resume_from=out):
        lengths = parse_lengths(longer)
        chosen = adjust(preset(task, scale), sizes, settings, learning_rate)
        cells = cell_names(cell, chosen.blocks, blocks)
        processes = Processes.join(device)
        if precision == "auto":
            precision = "bfloat16" if processes.device.type == "cuda" else "float32"
        run = make_run(chosen, cells, dropout, decay=Decay(reading=decay), seed=seed, precision=precision)
        if lengths:
            streamed(run.task)  # raises now, not after a day of training
        result = train_run(run, out, Options(device, graph, compiled, track=track))
        if processes.first:
            folder = folder_of(run, out)
            tests = evaluate_lengths(folder, lengths, LONGER_SAMPLES, device=processes.device) if lengths else []
            show_result(run, result, tests, folder)


def parse_lengths(text: str) -> list[int]:
    """
    >>> parse_lengths("1000, 10000")
    [1000, 10000]
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"--longer must be positive whole numbers separated by commas, got {text!r}")
    return [int(word) for word in words]


def adjust(chosen: "Preset", sizes: dict[str, Any], settings: dict[str, Any], learning_rate: float | None) -> "Preset":
    """Replace the preset's values by those the user gave; raise for an option of another task."""
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
    """Return one name per block. A single name counts for all of them; several decide the number of blocks."""
    names = tuple(name.strip() for name in text.split(","))
    if len(names) == 1:
        return names * (blocks or default)
    if blocks not in (None, len(names)):
        raise ValueError(f"--cell names {len(names)} blocks, but --blocks is {blocks}")
    return names


def show_result(run: "Run", result: dict[str, Any], tests: list[dict[str, Any]], folder: Path) -> None:
    """Print a table of the run's scores, and those of its tests at other lengths."""
    from rich.console import Console
    from rich.table import Table

    metric = run.task.metric
    title = f"{run.task.name}: {', '.join(run.model.cells)}, {result['parameters']:,} parameters"
    table = Table("weights", title=title)
    for column in ("epoch", f"validation {metric}", f"test {metric}"):
        table.add_column(column, justify="right")
    for weights, values in result["metrics"].items():
        name = "best on validation" if weights == "best" else "last"
        scores = (f"{values[f'valid_{metric}']:.5f}", f"{values[f'test_{metric}']:.5f}")
        table.add_row(name, str(values["epoch"]), *scores)
    for test in tests:
        table.add_row(f"best, {test['length']:,} timesteps", "", "", f"{test[metric]:.5f}")
    console = Console()
    console.print(table)
    words = f"{result['seconds']:.0f} s on {result['machine']['gpu'] or 'the CPU'}; everything is in {folder}"
    console.print(words, soft_wrap=True, markup=False)
