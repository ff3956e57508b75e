"""What the tables share: where results are, Markdown, commits."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"


def markdown_table(header: str, rows: list[tuple]) -> str:
    """
    >>> print(markdown_table("file, seeds", [("a", 1)]))
    | file | seeds |
    |---|---|
    | a | 1 |
    """
    columns = header.split("; " if "; " in header else ", ")
    lines = ["| " + " | ".join(map(str, values)) + " |" for values in (columns, *rows)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]])


def tied(text: str) -> str:
    """The same words, which no browser breaks into two lines.

    >>> tied("62.9 ms")
    '62.9\\xa0ms'
    """
    return text.replace(" ", "\u00a0")


def commits_of(machine: dict) -> str:
    """The commit that finished a run, and the commits at which earlier parts of it were computed.

    ``?`` means that nobody knows whether the sources had changes: the machine had no Git.

    >>> commits_of({"commit": "0123456789abcdef", "dirty": True})
    '`0123456789ab` with changes'
    >>> commits_of({"commit": "0123456789abcdef", "dirty": None, "earlier_commits": ["fedcba9876543210"]})
    '`0123456789ab`? (begun at `fedcba987654`)'
    """
    changes = {True: " with changes", False: "", None: "?"}[machine["dirty"]]
    last = f"`{(machine['commit'] or 'unknown')[:12]}`{changes}"
    earlier = ", ".join(f"`{(each or 'unknown')[:12]}`" for each in machine.get("earlier_commits", []))
    return f"{last} (begun at {earlier})" if earlier else last


def first_line(path: Path) -> str:
    """The first line of the docstring of a file or package, in Markdown."""
    source = (path / "__init__.py" if path.is_dir() else path).read_text()
    docstring = ast.get_docstring(ast.parse(source))
    if not docstring:
        raise SystemExit(f"{path.relative_to(ROOT)} has no docstring")
    return re.sub(r"(:\w+:)?`+([^`]+)`+", r"`\2`", docstring.splitlines()[0]).replace("|", "\\|")


def number(x: float) -> str:
    """At least three digits.

    >>> number(0.0948123), number(16339.4)
    ('0.0948', '16,339')
    """
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def numeric_order(path: Path) -> list[str]:
    """Sort key that puts 128 before 1024.

    >>> sorted([Path("hard-1024"), Path("hard-128")], key=numeric_order)[0].name
    'hard-128'
    """
    return [part.zfill(9) for part in re.split(r"(\d+)", str(path))]
