"""Run the tutorials, docs/tutorials/*.py, and write them with what they print and draw, as Markdown and as notebooks.

python tools/tutorials.py FOLDER    write FOLDER/<name>.md, <name>.ipynb and pictures, those that are out of date

A tutorial is a script in cells: `# %% [markdown]` begins one of text in comments, `# %%` one of code. Each runs in a
process of its own, with one thread: on a busy machine two threads wait for each other. Nothing is computed again while
neither the script nor the library changes.
"""

import base64
import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "docs" / "tutorials"
ORDER = (
    "from_gru", "when_memory_fades", "your_own_data", "agents", "streaming", "own_field", "counting", "export",
    "reproduce_paper", "troubleshooting",
)  # fmt: skip


class Cell(NamedTuple):
    kind: str
    """markdown or code."""
    text: str
    printed: str = ""
    drawn: tuple[str, ...] = ()
    """SVG texts."""


def cells(script: str) -> list[Cell]:
    """
    >>> [cell.kind for cell in cells("# %% [markdown]\\n# # Title\\n\\n# %%\\nprint(1)\\n")]
    ['markdown', 'code']
    """
    found = []
    for part in re.split(r"^# %%", script, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            found.append(Cell("markdown", re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip()))
        else:
            found.append(Cell("code", body.strip("\n")))
    return found


def execute(path: Path) -> list[Cell]:
    """The cells with what they print and draw."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": path.stem, "savefig.transparent": True})
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    done = []
    for cell in cells(path.read_text(encoding="utf-8")):
        if cell.kind == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(cell.text, path.name, "exec"), names)
            drawn = []
            for number in plt.get_fignums():
                file = io.StringIO()
                plt.figure(number).savefig(file, format="svg", metadata={"Date": None})
                drawn.append(file.getvalue())
            plt.close("all")
            cell = cell._replace(printed=printed.getvalue(), drawn=tuple(drawn))
        done.append(cell)
    return done


def to_markdown(name: str, done: list[Cell], folder: Path) -> str:
    """The page; pictures become files beside it."""
    parts, count = [], 0
    for cell in done:
        if cell.kind == "markdown":
            parts.append(cell.text)
            continue
        parts.append(f"```python\n{cell.text}\n```")
        if cell.printed:
            parts.append(f"```{{code-block}} text\n:class: output\n\n{cell.printed.rstrip()}\n```")
        for picture in cell.drawn:
            count += 1
            (folder / f"{name}-{count}.svg").write_text(picture, encoding="utf-8")
            parts.append(f"![What this cell draws]({name}-{count}.svg)")
    title, rest = parts[0].split("\n", 1)
    links = f"{{download}}`notebook <{name}.ipynb>`; the script is `docs/tutorials/{name}.py`, and a test runs it"
    return "\n\n".join([title, rest.strip(), f"*Download: {links}.*", *parts[1:]]) + "\n"


def to_notebook(done: list[Cell]) -> dict[str, Any]:
    """Format 4.5 of Jupyter."""
    listed = []
    for number, cell in enumerate(done):
        entry: dict[str, Any] = {"cell_type": cell.kind, "id": f"cell-{number}", "metadata": {}, "source": cell.text}
        if cell.kind == "code":
            outputs: list[dict[str, Any]] = []
            if cell.printed:
                outputs.append({"output_type": "stream", "name": "stdout", "text": cell.printed})
            data = [{"image/svg+xml": picture} for picture in cell.drawn]
            outputs += [{"output_type": "display_data", "metadata": {}, "data": each} for each in data]
            entry |= {"execution_count": None, "outputs": outputs}
        listed.append(entry)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": listed, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def digest(path: Path) -> str:
    sources = [Path(__file__), path, *sorted((ROOT / "src").rglob("*.py"))]
    return base64.b32encode(hashlib.sha256(b"\0".join(s.read_bytes() for s in sources)).digest()).decode()[:16]


def write(name: str, folder: Path) -> None:
    """Run one tutorial in this process."""
    path = SOURCES / f"{name}.py"
    done = execute(path)
    (folder / f"{name}.ipynb").write_text(json.dumps(to_notebook(done), indent=1), encoding="utf-8")
    (folder / f"{name}.md").write_text(to_markdown(name, done, folder), encoding="utf-8")
    (folder / f"{name}.digest").write_text(digest(path))


def write_all(folder: Path) -> None:
    """Run those that are out of date, each in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ORDER:
        stamp = folder / f"{name}.digest"
        if stamp.exists() and stamp.read_text() == digest(SOURCES / f"{name}.py"):
            continue
        print(f"tutorial {name}", flush=True)
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            [sys.executable, __file__, str(folder), name], env=env, cwd=folder, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise SystemExit(f"tutorial {name} failed:\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "build" / "tutorials"
    if len(sys.argv) > 2:
        write(sys.argv[2], place)
    else:
        write_all(place)
