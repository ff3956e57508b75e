"""Every layer can be pickled, after use, and unpickled by another process."""

import io
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
from multistable.dynamics import simplified_brc


def model_after_a_step(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """A model that has run forward and backward, and so may hold caches, and an input."""
    torch.manual_seed(0)
    model = build_model(ModelConfig((name,), d_input=2, d_output=1, d_model=8, d_state=8))
    x = torch.randn(3, 6, 2)
    model(x)[0].sum().backward()
    return model.eval(), x


@pytest.mark.parametrize("name", NAMES)
def test_a_pickled_model_is_unchanged(name):
    model, x = model_after_a_step(name)
    expected, _ = model(x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for copied in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(x)[0], expected)


def test_a_new_process_unpickles_a_layer(tmp_path):
    """As spawned processes and DataLoader workers do."""
    torch.manual_seed(0)
    cell, x = ClockedRNN(simplified_brc(0.5), 2, 3, n_clock=4), torch.randn(5, 1, 2)
    (tmp_path / "cell").write_bytes(pickle.dumps((cell, x)))
    code = "import pickle, sys; cell, x = pickle.load(open(sys.argv[1], 'rb')); print(cell(x)[0].flatten().tolist())"
    env = os.environ | {"PYTHONPATH": str(Path(multistable.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "cell"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert torch.tensor(eval(done.stdout)).equal(cell(x)[0].flatten())
