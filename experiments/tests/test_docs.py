"""The documents: generated parts are up to date, examples run, named files and commands exist."""

import doctest
import importlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from multistable_experiments.cli import app
from multistable_experiments.tasks import TASKS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [*sorted(ROOT.glob("*.md"), reverse=True), *sorted((ROOT / "docs").glob("*.md"))]  # README first
SITE = sorted((ROOT / "docs" / "site").glob("*.md"))  # their links are those of the built site


def python_examples(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def command_lines(text: str) -> list[str]:
    """The arguments of each ``multistable ...`` in code, on its own line or between backquotes."""
    return re.findall(r"(?:^|`|-m )multistable(?:_experiments)? ([a-z][^`\n#]*)", text, flags=re.MULTILINE)


@pytest.mark.parametrize("tool", ["docs.py", "pictures.py"])
def test_generated_parts_are_up_to_date(tool):
    result = subprocess.run([sys.executable, ROOT / "tools" / tool, "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_tool_detects_outdated_parts():
    docs = runpy.run_path(str(ROOT / "tools" / "docs.py"))
    changed = re.sub(r"\| Permuted MNIST, 3 blocks \|.*", "| Permuted MNIST, 3 blocks | 100 % |", README)
    assert changed != README
    assert docs["regenerate"]("README.md", changed) == README
    with pytest.raises(SystemExit, match="must have one block"):
        docs["regenerate"]("README.md", README.replace("<!-- results -->", ""))


def test_a_figure_is_out_of_date_if_any_file_that_it_shows_has_changed(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    pictures, read = importlib.import_module("pictures"), set()
    read_text = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, *args, **options: (read.add(path), read_text(path, *args, **options))[1]
    )
    for other in pictures.OTHERS:
        read.clear()
        other.draw()
        shown = {path for path in read if pictures.RESULTS in path.parents}
        assert shown
        assert shown <= set(pictures.RESULTS.glob(other.results)), other.name


def test_tour_names_every_source_file_of_the_library():
    tour = (ROOT / "CONTRIBUTING.md").read_text()
    source = ROOT / "src" / "multistable"
    files = [path for path in source.rglob("*.py") if not path.name.startswith("__")]
    assert len(files) > 30
    for path in files:
        assert f"(src/multistable/{path.relative_to(source).as_posix()})" in tour


def test_docstring_examples_of_the_tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    names = [path.stem for path in (ROOT / "tools" / "tables").glob("*.py")]
    results = [doctest.testmod(importlib.import_module(f"tables.{name}")) for name in names]
    assert sum(result.attempted for result in results) > 10
    assert sum(result.failed for result in results) == 0


def test_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_paths_in_readme_exist():
    paths = re.findall(r"[\w.-]+(?:/[\w.-]+)+|\b[A-Z]+\.(?:md|cff)\b", re.sub(r"https?://\S+", "", README))
    assert "docs/results.md" in paths
    for path in paths:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("document", [*DOCUMENTS, *SITE], ids=lambda path: path.name)
def test_commands_and_their_options_exist(document):
    for line in command_lines(document.read_text()):
        words = line.split()
        command = get_command(app)
        while hasattr(command, "commands"):
            assert words[0] in command.commands, f"multistable {line}"
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= options, f"multistable {line}"


def test_readme_shows_five_commands():
    table = [line for line in README.splitlines() if line.startswith("| `multistable")]
    assert len(command_lines("\n".join(table))) == 5


def test_readme_example_runs(tmp_path):
    examples = python_examples(README)
    assert all(len(example.strip().splitlines()) <= 12 for example in examples)
    script = tmp_path / "example.py"
    script.write_text("".join(examples))
    names = runpy.run_path(str(script))
    assert names["output"].shape == (32, 1000, 64)
    assert names["y"].shape == (32, 64)


@pytest.fixture
def own_tasks():
    """Forget the tasks that an example registers."""
    before = dict(TASKS)
    yield
    TASKS.clear()
    TASKS.update(before)


@pytest.mark.filterwarnings("ignore:.*isinstance\\(treespec, LeafSpec\\).*:FutureWarning")  # by torch.export
@pytest.mark.parametrize(
    "document",
    [path for path in [*DOCUMENTS[1:], *SITE] if python_examples(path.read_text())],
    ids=lambda path: path.name,
)
def test_examples_run(document, tmp_path, monkeypatch, own_tasks):
    monkeypatch.chdir(tmp_path)
    for number, example in enumerate(python_examples(document.read_text())):
        if example.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(example, {}, document.name, document.name, 0)
            assert doctest.DocTestRunner().run(test).failed == 0
        else:
            script = tmp_path / f"example{number}.py"
            script.write_text(example)
            runpy.run_path(str(script))


@pytest.mark.extra
def test_first_ten_minutes_end_with_a_trained_layer(tmp_path, monkeypatch, capsys):
    """The recording and the program of the page: run as a reader would, they learn."""
    monkeypatch.chdir(tmp_path)
    for number, example in enumerate(python_examples((ROOT / "docs" / "site" / "first_ten_minutes.md").read_text())):
        (tmp_path / f"{number}.py").write_text(example)
        runpy.run_path(str(tmp_path / f"{number}.py"))
    [share] = re.findall(r"right on the 5,000 steps after: (.*)%", capsys.readouterr().out)
    assert float(share) > 95


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_point_to_existing_files(document):
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if "://" not in link:
            assert (document.parent / link).exists(), f"{document.name} links to {link}"
