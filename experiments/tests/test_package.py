"""tools/package.py: source distributions are complete, and the command runs from the wheels alone."""

import runpy
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "package.py"


@pytest.mark.extra
def test_distributions_are_complete_and_run(tmp_path):
    pytest.importorskip("build", reason="the package build is not installed")
    done = subprocess.run([sys.executable, TOOL, tmp_path], capture_output=True, text=True)
    if "No matching distribution" in done.stderr or "ConnectionError" in done.stderr:
        pytest.skip("hatchling cannot be downloaded")
    assert done.returncode == 0, done.stderr
    assert "multistable 0." in done.stdout
    assert "Backend of the scans" in done.stdout


@pytest.mark.skipif(not (ROOT / ".git").exists() or not shutil.which("git"), reason="not a clone")
def test_a_file_that_is_missing_is_named(tmp_path):
    tool = runpy.run_path(str(TOOL))
    tracked = tool["run"]("git", "ls-files", *tool["CONTENTS"]["."]).splitlines()
    assert {"LICENSE", "tests/test_examples.py", "examples/clients/agent.py"} <= set(tracked)
    sdist = tmp_path / "multistable-0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name in tracked[1:]:
            archive.add(ROOT / name, f"multistable-0/{name}")
    assert tool["missing"](".", sdist) == [tracked[0]]
