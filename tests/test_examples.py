"""The programs in examples/ do what their docstrings say."""

import dataclasses
import importlib
import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["characters", "forecast", "keywords"])
def test_clients_train_every_model(name, monkeypatch, capsys):
    """A few steps of small models: every line of the table is there, with about as many parameters."""
    monkeypatch.syspath_prepend(FOLDER / "clients")
    compare = importlib.import_module("compare")
    task = dataclasses.replace(load(f"clients/{name}").TASK, steps=2)
    monkeypatch.setattr(compare, "SEEDS", (0,))
    lines = compare.compare(task, "quality", width=16).splitlines()[2:]
    assert len(lines) == len(compare.KINDS)
    assert "\n".join(lines) in capsys.readouterr().out
    sizes = [int(line.split("|")[2].replace(",", "")) for line in lines]
    assert max(sizes) <= 1.4 * min(sizes)  # widths are multiples of 4


@pytest.mark.extra
def test_three_states_are_held():
    """With half the training and a tenth of the steps of the example, which takes half a minute itself."""
    example = load("three_states")
    assert example.count_errors(example.train(steps=75), 10_000) == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_flip_flops_in_c_match_pytorch():
    """One different gate would change the outputs by at least 0.1."""
    example = load("flip_flops")
    wrong, difference, size, _ = example.compare(example.train(), 100_000)
    assert wrong <= 300, "one in a thousand"
    assert difference < 1e-6
    assert size == 2


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_flip_flops_in_c_start_from_zero_and_write_at_equality():
    """Candidate equal to threshold, the sign of zero, and units never written to."""
    example = load("flip_flops")
    torch.manual_seed(0)
    model = example.FlipFlops()
    with torch.no_grad():
        model.rnn.weight_ih_l0.copy_(torch.eye(3).repeat(6, 1)[:16])
        model.rnn.bias_ih_l0.zero_()
        model.rnn.bias_ih_l0[12:] = 1.0  # units 4 to 7: |x| >= |x + 1|, up to -0.5
        x = torch.tensor([[2.0, 2.0, 2.0], [0.0, -0.0, 0.0], [-0.5, -0.25, -1.0], [-0.25, -0.5, 1.0]])
        y, _, _ = example.run_c(example.to_c(model), x)
        torch.testing.assert_close(y, model(x[None])[0], rtol=0, atol=1e-6)
