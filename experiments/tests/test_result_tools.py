"""The tools that measure for hours keep what they have when the disk is full."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from full_disk import full_disk

ROOT = Path(__file__).parents[2]
OLD = {"characters": {"quality": "cross entropy", "rows": {"nn.GRU": {"scores": [1.5] * 100}}}}


@pytest.mark.parametrize("name", ["clients", "defaults"])
def test_a_full_disk_leaves_the_old_results(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.setattr(sys, "path", sys.path[:])  # the tool adds a folder
    tool = importlib.import_module(name)
    path = tmp_path / "results.json"
    path.write_text(json.dumps(OLD))
    before = path.read_bytes()
    monkeypatch.setattr(tool, "RESULTS", path)
    if name == "clients":
        compare = SimpleNamespace(KINDS=["BMRU"], measure=lambda program, kind: {"scores": [], "rate": 0, "seconds": 0})
        monkeypatch.setitem(sys.modules, "compare", compare)
        monkeypatch.setitem(sys.modules, "characters", SimpleNamespace(PROGRAM=SimpleNamespace(quality="")))
        words = [["characters"]]
    else:
        monkeypatch.setattr(tool, "train", lambda *words: 0.5)
        monkeypatch.setattr(sys, "argv", ["defaults.py"])
        words = []
    with full_disk(20), pytest.raises(OSError, match=r"results\.json"):
        tool.main(*words)
    assert path.read_bytes() == before
