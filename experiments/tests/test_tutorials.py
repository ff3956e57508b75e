"""The tutorials of docs/tutorials run and end with what they assert; the site shows them with their output."""

import json
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
TOOL = runpy.run_path(str(ROOT / "tools" / "tutorials.py"))
NEEDS = {"export": ("onnxruntime", "onnxscript")}
SLOW = {"agents", "export", "from_gru", "own_field", "troubleshooting"}  # 3 to 7 s on one idle core
SCRIPTS = [pytest.param(name, marks=[pytest.mark.extra] * (name in SLOW)) for name in TOOL["ORDER"]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # by torch's exporter
@pytest.mark.parametrize("name", SCRIPTS)
def test_tutorial_runs(name, tmp_path, monkeypatch):
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package, reason=f"the tutorial {name} needs {package}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(plt, "rcParams", plt.rcParams.copy())
    plt.switch_backend("agg")
    try:
        runpy.run_path(str(FOLDER / f"{name}.py"))
    finally:
        plt.close("all")


def test_every_tutorial_is_listed():
    assert sorted(TOOL["ORDER"]) == sorted(path.stem for path in FOLDER.glob("*.py"))
    listed = (ROOT / "docs" / "site" / "tutorials.md").read_text()
    assert [line.split("/")[1] for line in listed.splitlines() if line.startswith("tutorials/")] == list(TOOL["ORDER"])


def test_a_script_becomes_a_page_and_a_notebook(tmp_path, monkeypatch):
    script = tmp_path / "short.py"
    script.write_text("# %% [markdown]\n# # A title\n#\n# Words.\n\n# %%\nx = 1\nprint(x + 1)\n\n# %%\nx += 1\n")
    done = TOOL["execute"](script)
    assert [(cell.kind, cell.printed) for cell in done] == [("markdown", ""), ("code", "2\n"), ("code", "")]
    page = TOOL["to_markdown"]("short", done, tmp_path)
    assert page.startswith("# A title\n\nWords.")
    assert page.index("print(x + 1)") < page.index("\n2\n") < page.index("x += 1")
    notebook = json.loads(json.dumps(TOOL["to_notebook"](done)))
    assert [cell["cell_type"] for cell in notebook["cells"]] == ["markdown", "code", "code"]
    assert notebook["cells"][1]["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "2\n"}]
    plt.switch_backend("agg")
