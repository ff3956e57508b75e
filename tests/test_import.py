"""``import multistable`` is light: neither triton nor numba nor matplotlib is loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import multistable

HEAVY = ("triton", "numba", "matplotlib")


def loaded_by(code: str) -> list[str]:
    """Which heavy packages a fresh interpreter has loaded after ``code``."""
    report = f"import sys; print([name for name in {HEAVY} if name in sys.modules])"
    source = str(Path(multistable.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": source},
    )
    return eval(done.stdout)


def test_import_multistable_loads_nothing_heavy():
    assert loaded_by("import multistable; multistable.BMRU(3, 5)") == []


def test_import_does_not_depend_on_the_default_device():
    """Tensors that were made at import would be on it for good."""
    call = "multistable.BMRUCell(3, 5, device='cpu')(torch.zeros(2, 3))"
    code = f"import torch\nwith torch.device('meta'): import multistable\nwith torch.no_grad(): {call}"
    assert loaded_by(code) == []


@pytest.mark.parametrize("code", ["import numba", "from multistable.ops import cpu"])
def test_the_check_can_fail(code):
    assert "numba" in loaded_by(code)
