"""Build the site, build/site/index.html: put its pages together in build/pages, then run Sphinx; warnings are errors.

python tools/site.py           everything; tutorials run if they or the library have changed
python tools/site.py --pages   put the pages together only

The pages are those of docs/site, the documents docs/*.md as they are, CONTRIBUTING.md and CHANGELOG.md, the tutorials
with their output, and a reference of every public name. Links of a document to a file of the repository lead to a page
that shows the file.
"""

import importlib
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

sys.path.insert(0, str(Path(__file__).parent))
import tutorials

import explorer

ROOT = Path(__file__).parents[1]
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
MODULES = {
    "multistable": "Layers and models, imported from the package itself",
    "multistable.layers": "What layers are made of, and the baselines",
    "multistable.models": "Models and their configurations",
    "multistable.ops": "Scans",
    "multistable.surrogate": "Step functions with a surrogate derivative",
    "multistable.dynamics": "Fields and their equilibria",
    "multistable.dynamics.hysteresis": "The exact bistable unit",
    "multistable.machines": "Finite state machines and proofs",
    "multistable.streamed": "Gradients of long sequences",
    "multistable.distributed": "One sequence over many devices",
    "multistable.export": "Export",
    "multistable.rl.torchrl": "Adapter for TorchRL",
    "multistable.rl.sb3": "Adapter for sb3-contrib",
}
"""The public modules in the order of the reference. A name is described in the first of them that has it."""
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")


def assemble() -> None:
    """Fill build/pages anew, but keep files that have not changed, so that Sphinx reads only what has."""
    written: set[Path] = set()

    def put(name: str, text: str) -> None:
        path = PAGES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
        written.add(path)

    def copy(source: Path, name: str) -> None:
        path = PAGES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != source.read_bytes():
            shutil.copyfile(source, path)
        written.add(path)

    linked: set[str] = set()
    for source in sorted((ROOT / "docs" / "site").rglob("*")):
        if source.is_file() and "__pycache__" not in source.parts:
            name = source.relative_to(ROOT / "docs" / "site").as_posix()
            copy(source, name)
    for source in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        put(ROOT_PAGES.get(source.name, source.name), with_links(source, linked))
    for source in [*(ROOT / "docs" / "figures").glob("*.svg"), *(ROOT / "docs").glob("*.png")]:
        copy(source, source.relative_to(ROOT / "docs").as_posix())
    for source in sorted((ROOT / "build" / "tutorials").glob("*")):
        if source.suffix in (".md", ".ipynb", ".svg"):
            copy(source, f"tutorials/{source.name}")
    for name, text in reference().items():
        put(name, text)
    put("command.md", command_page())
    for name in sorted(linked):
        put(page_of(name), file_page(name))
    put("extra/explore.html", explorer.make())
    put("figures/share-of-copy.svg", share_of_copy())
    for path in set(PAGES.rglob("*")) - written:
        if path.is_file():
            path.unlink()


def share_of_copy() -> str:
    """The picture of the kernels' speed, from the benchmark that is stored."""
    import matplotlib

    from multistable_experiments.bench.figure import draw_share_of_copy

    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "share-of-copy"}):
        figure = draw_share_of_copy(ROOT / "experiments" / "benchmarks" / "results" / "nvidia-h200.json")
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


# Links


def with_links(source: Path, linked: set[str]) -> str:
    """The document with links that lead somewhere on the site; files of the repository are added to ``linked``."""

    def follow(match: re.Match[str]) -> str:
        target, anchor = (source.parent / match[1]).resolve(), match[2] or ""
        name = target.relative_to(ROOT).as_posix()
        if name in ROOT_PAGES:
            return ROOT_PAGES[name] + anchor
        if name.startswith("docs/"):
            return name.removeprefix("docs/") + anchor
        linked.add(name)
        return page_of(name)

    return LINK.sub(follow, source.read_text(encoding="utf-8"))


def page_of(name: str) -> str:
    return f"files/{name}.md"


def file_page(name: str) -> str:
    """A page that shows a file of the repository, or lists a folder."""
    path = ROOT / name
    if path.is_dir():
        entries = sorted(each.name + "/" * each.is_dir() for each in path.iterdir() if each.name != "__pycache__")
        body = "\n".join(f"- `{each}`" for each in entries)
    else:
        kind = {".py": "python", ".json": "json"}.get(path.suffix, "text")
        body = f"`````{kind}\n{path.read_text(encoding='utf-8').rstrip()}\n`````"
    return f"---\norphan: true\n---\n\n# {name}\n\n{body}\n"


# Reference


def reference() -> dict[str, str]:
    """A page per public module, and their list."""
    pages, described = {}, set[int]()
    for module, title in MODULES.items():
        pages[f"reference/{module}.md"] = module_page(module, title, described)
    return pages


def module_page(name: str, title: str, described: set[int]) -> str:
    module = importlib.import_module(name)
    lines = [f"# {name}", "", f"{title}.", ""]
    if name != "multistable" and module.__doc__ and not name.startswith("multistable.rl."):
        lines += ["```{eval-rst}", f".. automodule:: {name}", "   :no-members:", "   :no-index:", "```", ""]
    for public in module.__all__:
        value = getattr(module, public)
        if type(value).__name__ == "module":
            lines.append(f"- {{doc}}`{value.__name__}`\n")
        elif id(value) in described and callable(value):
            lines.append(f"- `{public}`: {{py:obj}}`{full_name(value)}`\n")
        else:
            described.add(id(value))
            lines += [f"## {public}", "", "```{eval-rst}", *directive(name, public, value), "```", ""]
    return "\n".join(lines)


def full_name(value: Any) -> str:
    """Where the reference describes it: in the first module that has it."""
    for name in MODULES:
        module = importlib.import_module(name)
        for public in module.__all__:
            if getattr(module, public) is value:
                return f"{name}.{public}"
    raise ValueError(f"{value!r} is in no public module")


def directive(module: str, name: str, value: Any) -> list[str]:
    full = f"{module}.{name}"
    if isinstance(value, type):
        return [f".. autoclass:: {full}", "   :members:", "   :show-inheritance:"]
    if callable(value):
        return [f".. autofunction:: {full}"]
    return [
        f".. py:data:: {name}",
        f"   :module: {module}",
        "",
        *("   " + line for line in data_docstring(module, name).splitlines()),
    ]


def data_docstring(module: str, name: str) -> str:
    """What stands below the assignment, in this module or in one of its package that it imports the value from."""
    folder = Path(importlib.import_module(module).__file__ or "").parent
    for path in sorted(folder.glob("*.py")):
        found = re.search(
            rf'^{name}\b[^\n]*=.*?^"""(.*?)"""', path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
        if found:
            return " ".join(found[1].split())
    raise ValueError(f"{module}.{name} has no docstring")


def command_page() -> str:
    """All subcommands of `multistable`, from their own help."""
    from multistable_experiments.cli import app

    parts = [
        "# The command",
        "",
        "`multistable`, of the distribution multistable-experiments, has these subcommands.",
        "",
    ]
    for name, command in sorted(subcommands(get_command(app), "multistable")):
        parts += [f"## {name}", "", " ".join((command.help or "").split("\f")[0].split("\n\n")[0].split()), ""]
        rows = [(option_names(p), " ".join((getattr(p, "help", "") or "").split())) for p in command.params]
        rows = [(names, words) for names, words in rows if names != "`--help`"]
        if rows:
            parts += ["| argument | meaning |", "|---|---|", *(f"| {n} | {w.replace('|', '/')} |" for n, w in rows), ""]
    return "\n".join(parts)


def subcommands(command: Any, name: str) -> list[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        return [(name, command)]
    return [each for word, inner in command.commands.items() for each in subcommands(inner, f"{name} {word}")]


def option_names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{(parameter.name or '').upper()}`"
    return ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))


def main() -> None:
    tutorials.write_all(ROOT / "build" / "tutorials")
    assemble()
    if "--pages" in sys.argv:
        return
    words = ["-m", "sphinx", "--fail-on-warning", "--keep-going", "--nitpicky", "-q", "-j", "2", "-b", "html"]
    done = subprocess.run([sys.executable, *words, "-d", str(ROOT / "build" / "doctrees"), str(PAGES), str(SITE)])
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    print(f"The site: {(SITE / 'index.html').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
