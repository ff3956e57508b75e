"""``import multistable`` loads nothing heavy, and every public name exists and is documented."""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import multistable
from multistable import distributed, dynamics, export, layers, models, ops, streamed, surrogate

HEAVY = (
    "gymnasium",
    "huggingface_hub",
    "matplotlib",
    "multistable.distributed",
    "multistable.streamed",
    "multistable_experiments",
    "numba",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pandas",
    "safetensors",
    "sb3_contrib",
    "scipy",
    "stable_baselines3",
    "tensordict",
    "torchrl",
    "triton",
)
PUBLIC = [multistable, distributed, dynamics, export, layers, models, ops, streamed, surrogate]


def loaded_by(code: str) -> list[str]:
    """The heavy packages loaded in a fresh interpreter after running ``code``."""
    report = f"import sys; print([name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(multistable.__file__).parents[1])},
    )
    return ast.literal_eval(result.stdout)


def test_import_multistable_loads_nothing_heavy():
    """Building a layer and a model loads nothing heavy either."""
    build = "multistable.BMRU(3, 5); multistable.build_model(multistable.ModelConfig(('bmru', 'lru'), 1, 1))"
    assert loaded_by(f"import multistable, multistable.export; {build}") == []


def test_import_does_not_depend_on_the_default_device():
    """Tensors created at import would stay on that device."""
    call = "multistable.BMRUCell(3, 5, device='cpu')(torch.zeros(2, 3))"
    code = f"import torch\nwith torch.device('meta'): import multistable\nwith torch.no_grad(): {call}"
    assert loaded_by(code) == []


@pytest.mark.parametrize(
    ("code", "package"), [("from multistable.ops import cpu", "numba"), ("import safetensors", "safetensors")]
)
def test_the_check_can_fail(code, package):
    pytest.importorskip(package)
    assert package in loaded_by(code)


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_public_names_exist_once_and_are_documented(module):
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        value = getattr(module, name)
        if callable(value) or inspect.ismodule(value):
            assert value.__doc__, name
            # Python gives a dataclass or named tuple without a docstring its signature as docstring.
            assert not value.__doc__.startswith(f"{name}("), name


def test_model_configurations_are_public():
    for name in ("LRUConfig", "ModelConfig", "ModelState", "PositionConfig", "SequenceModel", "build_model"):
        assert name in multistable.__all__
        assert getattr(multistable, name) is getattr(models, name)
