"""The command ``multistable data``."""

import os
from pathlib import Path
from typing import Annotated

import typer

from multistable_experiments.errors import exit_on_error

__all__ = ["pathfinder"]


def pathfinder(
    level: Annotated[str, typer.Option(help="easy, intermediate or hard.")] = "hard",
    count: Annotated[int, typer.Option(help="Number of images.")] = 200_000,
    out: Annotated[
        Path | None, typer.Option(help="A file .npz.", show_default="where training looks, in the data folder")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same images.")] = 0,
    jobs: Annotated[int, typer.Option(help="Number of threads.", show_default="all cores")] = os.cpu_count() or 1,
) -> None:
    """Generate Pathfinder images: 1,800 hard ones per second and core."""
    from rich.progress import Progress

    from multistable_experiments.tasks.pathfinder.generated import generate, generated_file
    from multistable_experiments.tasks.pathfinder.task import Pathfinder

    with exit_on_error():
        file = out or generated_file(level)
        with Progress(*Progress.get_default_columns()) as progress:
            bar = progress.add_task(f"{level} images", total=count)
            for images in generate(file, level, seed, count, jobs):
                progress.advance(bar, images)
        typer.echo(f"{count} {level} images of seed {seed}: {file}")
        if out is None and count >= 10:
            typer.echo(Pathfinder(level, images=count).report())  # pyright: ignore[reportArgumentType]
