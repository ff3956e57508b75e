"""Build pages that are one self-contained HTML file: templates here, pictures in ``pictures.py``."""

from html import escape
from importlib.resources import files
from typing import Any

from jinja2 import StrictUndefined, Template

__all__ = ["commit_of", "fill", "machine_rows", "style"]


def fill(package: str, template: str, values: dict[str, Any]) -> str:
    """Render a jinja2 template, a file of ``package``, with these values and ``style``, the style sheet."""
    text = (files(package) / template).read_text(encoding="utf-8")
    return Template(text, undefined=StrictUndefined).render(values, style=style())


def style() -> str:
    return (files("multistable_experiments.page") / "style.css").read_text(encoding="utf-8")


def machine_rows(facts: dict[str, Any]) -> dict[str, str]:
    """Rows of a table, as HTML, from :func:`multistable_experiments.machine.describe`."""
    rows = {
        "processor": f"{facts['processor']}, {facts['cores']} cores, threads used: {facts['threads']}",
        "system": facts["platform"],
        "versions": f"Python {facts['python']}, torch {facts['torch']}, numba {facts['numba']}, "
        f"multistable {facts['multistable']}",
        "commit": commit_of(facts),
        "date": facts["date"],
    }
    return {name: escape(str(value)) for name, value in rows.items()}


def commit_of(machine: dict[str, Any]) -> str:
    return f"{machine['commit'] or 'unknown'}{'+changes' if machine['dirty'] else ''}"
