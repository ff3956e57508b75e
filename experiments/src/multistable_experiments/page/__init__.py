"""Build pages that are one self-contained HTML file: templates here, pictures in ``pictures.py``."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["commit_of", "fill", "machine_rows", "style"]


def fill(package: str, template: str, values: dict[str, Any], filters: Mapping[str, Any] | None = None) -> str:
    """Render a jinja2 template, a file of ``package``, with these values and ``style``, the style sheet.

    Every value is escaped unless it is ``Markup``, as pictures are: result files may come from strangers.
    """
    page = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page.filters |= filters or {}
    return page.get_template(template).render({"style": style()} | values)


def style() -> Markup:
    return Markup((files("multistable_experiments.page") / "style.css").read_text(encoding="utf-8"))


def machine_rows(facts: dict[str, Any]) -> dict[str, str]:
    """Rows of a table from :func:`multistable_experiments.machine.describe`."""
    return {
        "processor": f"{facts['processor']}, {facts['cores']} cores, threads used: {facts['threads']}",
        "system": facts["platform"],
        "versions": f"Python {facts['python']}, torch {facts['torch']}, numba {facts['numba']}, "
        f"multistable {facts['multistable']}",
        "commit": commit_of(facts),
        "date": facts["date"],
    }


def commit_of(machine: dict[str, Any]) -> str:
    return f"{machine['commit'] or 'unknown'}{'+changes' if machine['dirty'] else ''}"
