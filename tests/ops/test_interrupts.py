"""Interrupts at random moments of a layer's call: none is lost, and nothing that was not computed is returned."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "interrupts.py"


@pytest.mark.skipif(not TOOL.exists(), reason="the tools are not part of a source distribution")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.extra
def test_every_interrupt_is_raised(threads):
    command = [sys.executable, str(TOOL), "--seconds", "3", "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)  # some processes did not end
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" 0 lost, 0 wrong results\n")
