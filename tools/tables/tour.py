"""The tour of the files, in the order in which data pass through them."""

from collections.abc import Callable
from pathlib import Path

from tables.common import ROOT, first_line, markdown_table

LIBRARY = ROOT / "src" / "multistable"
EXPERIMENTS = ROOT / "experiments" / "src" / "multistable_experiments"
ORDER = """
    surrogate ops dynamics layers models export cli tasks training paper bench demo
    reference portable dispatch operators cpu cpu_kernels fused_layer
    fields equilibria bistable
    base sequences bmru lru hybrid mingru hysteresis mru clocked brc
    config build block norm position stack sequence
    run options step loop resume evaluate checkpoint
    settings experiments reproduce store
"""
"""Rooms in the order in which data pass through them, then files worth reading first; the rest is alphabetical."""


def reading_order(path: Path) -> tuple[int, str]:
    names = ORDER.split()
    return (names.index(path.stem) if path.stem in names else len(names), path.name)


def walk(folder: Path, is_opened: Callable[[Path], bool]) -> list[Path]:
    """Source files and packages of a folder in reading order, each package followed by its files if it is opened."""
    found = []
    for path in sorted(folder.iterdir(), key=reading_order):
        if (path / "__init__.py").exists():
            found += [path, *(walk(path, is_opened) if is_opened(path) else [])]
        elif path.suffix == ".py" and not path.name.startswith("__"):
            found.append(path)
    return found


def tour() -> str:
    """The source files, each with the first line of its docstring: all of the library, the main ones of the rest."""
    library = walk(LIBRARY, lambda package: True)
    experiments = walk(EXPERIMENTS, lambda package: package.name in ("tasks", "training", "paper"))
    main = [path for path in experiments if path.parent != EXPERIMENTS or path.is_dir() or path.name == "cli.py"]
    return tour_table(LIBRARY, library) + "\n\n" + tour_table(EXPERIMENTS, main)


def tour_table(top: Path, found: list[Path]) -> str:
    rows = []
    for path in found:
        name = f"`{path.relative_to(top)}{'/' if path.is_dir() else ''}`"
        link = f"[{name}]({path.relative_to(ROOT)})"
        rows.append((f"**{link}**" if path.is_dir() else link, first_line(path)))
    return f"`{top.relative_to(ROOT)}`:\n\n" + markdown_table("file, contents", rows)
