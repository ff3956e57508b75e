"""Machines are trained on short sequences and certified for all lengths."""

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from multistable.machines import certify
from multistable_experiments.cli import app
from multistable_experiments.files import read_json
from multistable_experiments.state_machines import Training, record, train
from multistable_experiments.tasks.state_tracking import failing_length, machine


def test_parity_is_learnt_and_certified():
    model, verdict, updates = train(Training("parity", length=32, updates=500))
    assert verdict.right is True
    assert updates < 500
    assert failing_length(model, machine("parity"), longest=20_000, sequences=2) is None


def test_a_flipped_transition_is_found():
    """The certificate and the test at long lengths see the same mistake."""
    model, _, _ = train(Training("parity", length=32, updates=500))
    with torch.no_grad():
        model.rnn.value_l0.copy_(model.rnn.value_l0.flip(1))
    assert certify(model, machine("parity")).right is False
    assert failing_length(model, machine("parity"), longest=1_000, sequences=4) is not None


def test_results_are_recorded(tmp_path):
    result = record(Training("flip-flop", length=16, updates=50), tmp_path, longest=500, sequences=2)
    stored = read_json(tmp_path / "flip-flop-softmax-seed0.json")
    assert stored["training"] == result["training"]
    assert set(stored["verdict"]) == {"right", "word", "pairs", "margin", "reason"}


def test_no_result_is_overwritten(tmp_path):
    training = Training("flip-flop", length=16, updates=50)
    first = record(training, tmp_path, longest=500, sequences=2)
    assert record(training, tmp_path, longest=500, sequences=2) == first, "the stored one, with its seconds"
    for other, longest in ((replace(training, updates=100), 500), (training, 501)):
        with pytest.raises(ValueError, match="move it away"):
            record(other, tmp_path, longest=longest, sequences=2)
    assert read_json(tmp_path / f"{training.name}.json")["seconds"] == first["seconds"]


def test_command(tmp_path):
    words = ["machines", "parity", "--seeds", "1", "--length", "16", "--updates", "50", "--longest", "100"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("parity-softmax-seed0: ")
    assert [path.name for path in tmp_path.glob("*.json")] == ["parity-softmax-seed0.json"]
    done = CliRunner().invoke(app, ["machines", "S5"])
    assert done.exit_code == 2
    assert "machine must be one of parity" in done.output
