"""Every cell and model can be pickled: saved whole, and read by a process that starts from nothing."""

import io
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import multistable
from layer_names import NAMES
from multistable import ClockedRNN, ModelConfig, build_model
from multistable.dynamics import FIELDS, damped, simplified_brc


def trained_a_step(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """A model that has been in use, with what it may keep from it, and an input."""
    torch.manual_seed(0)
    model = build_model(ModelConfig((name,), d_input=2, d_output=1, d_model=8, d_state=8))
    x = torch.randn(3, 6, 2)
    model(x)[0].sum().backward()
    return model.eval(), x


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_saved_whole(name):
    model, x = trained_a_step(name)
    expected, _ = model(x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for copied in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(x)[0], expected)


@pytest.mark.parametrize("field", [*(make() for make in FIELDS.values()), damped(simplified_brc(0.5), 0.2)])
def test_a_field_stays_the_same(field):
    torch.manual_seed(0)
    copied = pickle.loads(pickle.dumps(field))
    h = torch.rand(4, 4)
    args = [torch.randn(4, 4) for _ in range(len(field.drives) + len(field.constants))]
    assert torch.equal(copied(h, *args), field(h, *args))
    assert (copied.drives, copied.constants, copied.bounds) == (field.drives, field.constants, field.bounds)
    if not field.coupled:
        assert torch.equal(copied.slope(h, *args), field.slope(h, *args))
    if field.turns is not None:
        assert torch.equal(copied.turns(*args).nan_to_num(9), field.turns(*args).nan_to_num(9))
    if not field.coupled and field.bounds[0] > -math.inf:
        assert torch.equal(damped(copied, 0.3)(h, *args), damped(field, 0.3)(h, *args))


def test_a_fresh_process_reads_a_cell(tmp_path):
    """As spawned processes and workers of a DataLoader do."""
    torch.manual_seed(0)
    cell, x = ClockedRNN(simplified_brc(0.5), 2, 3, n_clock=4), torch.randn(5, 1, 2)
    (tmp_path / "cell").write_bytes(pickle.dumps((cell, x)))
    code = "import pickle, sys; cell, x = pickle.load(open(sys.argv[1], 'rb')); print(cell(x)[0].flatten().tolist())"
    env = os.environ | {"PYTHONPATH": str(Path(multistable.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "cell"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert torch.tensor(eval(done.stdout)).equal(cell(x)[0].flatten())
