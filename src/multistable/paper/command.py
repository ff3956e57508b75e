"""The command that draws the paper's figures."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["figure"]


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
