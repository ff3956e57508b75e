"""``multistable data pathfinder`` and ``multistable data show pathfinder``."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from multistable_experiments.errors import exit_on_error
from multistable_experiments.tasks.pathfinder.generated import generated_file as compact_file
from multistable_experiments.tasks.pathfinder.settings import settings
from multistable_experiments.tasks.pathfinder.task import PAPER_MEAN, PAPER_STD, Pathfinder, moments

__all__ = ["generate", "show"]

Level = Annotated[str, typer.Option(help="easy, intermediate or hard")]
Size = Annotated[int, typer.Option(help="side of an image: 32, 64 or 128")]
Seed = Annotated[int, typer.Option(help="the same seed gives the same images")]

_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)


def generate(
    level: Level = "hard",
    count: Annotated[int, typer.Option(help="number of images")] = 200_000,
    out: Annotated[
        Path | None,
        typer.Option(
            help="a file .npz, or a folder for PNG images like those of the LRA release; the data folder if not given"
        ),
    ] = None,
    size: Size = 32,
    distractors: Annotated[int | None, typer.Option(help="short snakes asked for; 10 at 32x32")] = None,
    seed: Seed = 0,
    jobs: Annotated[int, typer.Option(help="processes; all cores if not given")] = os.cpu_count() or 1,
) -> None:
    """Draw Pathfinder images. Stop it when you like: the same command goes on where it stopped."""
    out = out or compact_file(level, size)
    with exit_on_error(resume_from=out.parent):
        from multistable_experiments.tasks.pathfinder.compact import Origin
        from multistable_experiments.tasks.pathfinder.produce import produce, store_for  # pillow may be missing

        origin = Origin(settings(level, size=size, distractors=distractors), seed, count)
        with Progress(*_COLUMNS) as progress:
            bar = progress.add_task(f"{level} {size}x{size}", total=count)
            for images in produce(store_for(out), origin, jobs=jobs):
                progress.advance(bar, images)
    typer.echo(f"{origin}: {out}")
    if out == compact_file(level, size) and distractors is None and count >= 10:
        typer.echo(Pathfinder(level, size, images=count).report())  # pyright: ignore[reportArgumentType]


def show(
    level: Level = "hard",
    source: Annotated[
        Path | None,
        typer.Option("--from", help="a compact file or a folder of the LRA release; drawn afresh if not given"),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="number of images")] = 32,
    size: Size = 32,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="the picture, a PNG")] = Path("pathfinder.png"),
) -> None:
    """Draw a sheet of Pathfinder images with their labels, and say how bright they are."""
    import torch

    with exit_on_error():
        from multistable_experiments.tasks.pathfinder.sheet import write_sheet  # pillow may be missing

        images, labels = _images(level, source, count, size, seed)
        write_sheet(out, images[:count], labels[:count])
    mean, std = moments(torch.from_numpy(images))
    typer.echo(
        f"{len(images)} images, {labels.mean():.1%} joined; pixels: mean {mean:.2f}, standard deviation {std:.2f} "
        f"(the paper: {PAPER_MEAN}, {PAPER_STD})"
    )
    typer.echo(f"{min(count, len(images))} of them: {out}")


def _images(level: str, source: Path | None, count: int, size: int, seed: int):
    if source is None:
        from multistable_experiments.tasks.pathfinder.generator import draw, glyphs
        from multistable_experiments.tasks.pathfinder.strokes import render

        s = settings(level, size=size)
        strokes = draw(s, seed, batch=0, count=count)
        return render(glyphs(s), strokes), strokes.label
    if source.is_dir():
        from multistable_experiments.tasks.pathfinder import lra

        return lra.read(source, level)
    from multistable_experiments.tasks.pathfinder import compact

    return compact.read(source)
