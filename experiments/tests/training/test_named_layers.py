"""Layers named by a field train, save and load like any other: a property of the whole training."""

import json
from pathlib import Path

import pytest
import torch

from multistable import SequenceModel
from multistable_experiments.training.loop import train_run
from multistable_experiments.training.run import Run
from training_runs import QUIET, hold_bit_run

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize(
    ("cell", "changes"),
    [("clocked:simplified_brc:2", {"length": 20}), ("mru:simplified_brc", {"length": 10, "d_state": 4, "epochs": 5})],
    ids=["clocked", "mru"],
)
def test_training_learns_to_hold_a_bit(tmp_path, cell, changes):
    """The error falls from 1 to below 0.01, and the trained model gives the same outputs step by step."""
    pytest.importorskip("safetensors")
    run = hold_bit_run((cell,), **changes)
    result = train_run(run, tmp_path, QUIET)
    assert result["metrics"]["best"]["test_mse"] < 0.01
    [folder] = [path.parent for path in tmp_path.rglob("config.json")][:1]
    model, state = SequenceModel.from_pretrained(folder).double(), None
    x = torch.zeros(2, 30, 1, dtype=torch.float64)
    x[:, 0, 0] = torch.tensor([1.0, -1.0])
    y = torch.zeros(2, 1)
    for t in range(30):
        y, state = model.step(x[:, t], state)
    torch.testing.assert_close(y, model(x)[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/*/*.json")), ids=lambda path: path.stem)
def test_runs_keep_their_hashes(path):
    """A configuration with more fields must not change the hash of earlier runs."""
    record = json.loads(path.read_text())
    assert Run.from_dict(record["run"]).id == record["id"]
