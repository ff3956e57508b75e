"""The files of a release agree with each other: versions, Pythons, dependencies, the workflow and the recipe."""

import re
import runpy
import tomllib
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

import multistable

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOOL = runpy.run_path(str(ROOT / "tools" / "release.py"))


def test_both_distributions_take_their_version_from_the_tag():
    for path in ("pyproject.toml", "experiments/pyproject.toml"):
        project = tomllib.loads((ROOT / path).read_text())
        assert project["project"]["dynamic"] == ["version"]
        assert project["tool"]["hatch"]["version"]["source"] == "vcs"
    assert multistable.__version__ == version("multistable")
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?((rc|\.dev|\.post)\d+)*", multistable.__version__)


def test_workflow_tries_every_supported_python():
    workflow = (ROOT / ".github" / "workflows" / "publish.yml").read_text()
    [listed] = re.findall(r"python: \[(.*)\]", workflow)
    assert listed.replace('"', "").split(", ") == TOOL["supported"]()
    assert PROJECT["project"]["requires-python"] == f">={TOOL['supported']()[0]}"
    assert "secrets.PYPI_TOKEN" in workflow


def test_recipe_requires_what_the_package_requires():
    recipe = (ROOT / "conda" / "recipe.yaml").read_text()
    [torch] = PROJECT["project"]["dependencies"]
    assert f"pytorch {torch.removeprefix('torch')}" in recipe
    assert f"python {PROJECT['project']['requires-python']}" in recipe
    for needed in PROJECT["build-system"]["requires"]:
        assert needed.replace(">=", " >=") in recipe


def test_the_newest_release_is_named_everywhere():
    [newest, *_] = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert f"version: {newest}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'version: "{newest}"' in (ROOT / "conda" / "recipe.yaml").read_text()
    for path in ("pyproject.toml", "experiments/pyproject.toml"):
        options = tomllib.loads((ROOT / path).read_text())["tool"]["hatch"]["version"]["raw-options"]
        assert options["fallback_version"] == f"{newest}.dev0"


def test_modules_that_the_changelog_sends_to_exist():
    """The right column of the table "before, now"."""
    table = (ROOT / "CHANGELOG.md").read_text().split("| before | now |\n|---|---|\n")[1].split("\n\n")[0]
    modules = {name for row in table.splitlines() for name in re.findall(r"multistable[\w.]*\w", row.split(" | ")[1])}
    assert len(modules) > 10
    for name in modules - {"multistable"}:
        module, _, attribute = name.rpartition(".")
        if find_spec(name) is None:
            assert hasattr(import_module(module), attribute), name


def test_only_pythons_that_run_are_tried(monkeypatch, tmp_path):
    broken = tmp_path / "python3.99"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert TOOL["interpreters"](["3.99", "3.98"]) == {}


@pytest.mark.extra
def test_smoke_test_passes_here(tmp_path, monkeypatch):
    smoke = runpy.run_path(str(ROOT / "tools" / "smoke.py"))
    assert smoke["learns"]() > 0.95
