"""The documents: generated blocks are up to date, examples run, the files that they name exist."""

import doctest
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("tool", ["readme.py", "pictures.py"])
def test_what_is_generated_is_up_to_date(tool):
    result = subprocess.run([sys.executable, ROOT / "tools" / tool, "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_example_runs(tmp_path):
    [example] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(example.strip().splitlines()) <= 12
    script = tmp_path / "example.py"
    script.write_text(example)
    names = runpy.run_path(str(script))
    assert names["output"].shape == (32, 1000, 64)
    assert names["y"].shape == (32, 64)


@pytest.mark.parametrize("document", DOCUMENTS[1:], ids=lambda path: path.name)
def test_examples_of_the_documents_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL)):
        if example.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(example, {}, document.name, document.name, 0)
            assert doctest.DocTestRunner().run(test).failed == 0
        else:
            script = tmp_path / f"example{number}.py"
            script.write_text(example)
            runpy.run_path(str(script))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if "://" not in link:
            assert (document.parent / link).exists(), f"{document.name} links to {link}"
