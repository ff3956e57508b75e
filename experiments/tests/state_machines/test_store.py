"""Results of machines: stored once, and their models come back."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from multistable.machines import certify
from multistable_experiments.cli import app
from multistable_experiments.files import checksum, read_json
from multistable_experiments.state_machines.rivals import Contest
from multistable_experiments.state_machines.store import (
    load,
    load_model,
    record,
    record_contest,
    record_long,
)
from multistable_experiments.state_machines.training import Training, train


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


def test_the_model_comes_back(tmp_path):
    training = Training("flip-flop", length=16, updates=50)
    result = record(training, tmp_path, longest=500, sequences=2)
    model, symbols = train(training)[0], torch.randint(3, (2, 30))
    assert torch.equal(load_model(read_json(tmp_path / f"{training.name}.json"))(symbols)[0], model(symbols)[0])
    assert result["weights"].keys() == dict(model.named_parameters()).keys()


STORED = Path(__file__).parents[2] / "results" / "machines"


@pytest.mark.extra
def test_stored_models_are_what_their_results_say():
    """Every certified model is certified again from its weights; long tests name the weights that they ran."""
    right = 0
    for name, result in load(STORED):
        if "training" in result and result["verdict"]["right"]:
            model, target = load_model(result), Training(**result["training"]).data.target
            assert certify(model, target, max_pairs=10**5).right is True, name
            assert result["test"]["failing_length"] is None, name
            right += 1
        if name.startswith("long-"):
            weights = read_json(STORED / f"{result['model']['name']}.json")["weights"]
            assert checksum(weights) == result["model"]["weights"], name
    assert right >= 60


def test_a_long_test_belongs_to_its_model(tmp_path):
    """Other weights under the same name: the stored test is not theirs."""
    training = Training("flip-flop", length=16, updates=50)
    record(training, tmp_path, longest=500, sequences=2)
    path = tmp_path / f"{training.name}.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multistable_experiments.state_machines.store.LONG", {"longest": 300, "sequences": 4})
        first = record_long(training.name, tmp_path, "cpu")
        assert record_long(training.name, tmp_path, "cpu") == first
        path.unlink()
        record(replace(training, updates=100, rate=0.02), tmp_path, longest=500, sequences=2)
        with pytest.raises(ValueError, match="weights"):
            record_long(training.name, tmp_path, "cpu")


def test_a_contest_is_stored_once(tmp_path):
    item = Contest("parity", "gru", 1e-2, 0, 200, length=8, updates=5)
    first = record_contest(item, tmp_path)
    assert record_contest(item, tmp_path) == first
    with pytest.raises(ValueError, match="updates"):
        record_contest(replace(item, updates=6), tmp_path)


def test_command(tmp_path):
    words = ["machines", "parity", "--seeds", "1", "--length", "16", "--updates", "50", "--longest", "100"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("parity-softmax-seed0: ")
    assert [path.name for path in tmp_path.glob("*.json")] == ["parity-softmax-seed0.json"]
    done = CliRunner().invoke(app, ["machines", "--study", "last", "--seconds", "0", "--out", str(tmp_path)])
    assert done.output.startswith("0 new results")
    done = CliRunner().invoke(app, ["machines", "S5"])
    assert done.exit_code == 2
    assert "machine must be one of parity" in done.output
