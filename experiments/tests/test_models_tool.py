"""tools/models.py: a folder of trained models with cards, which load, and which a hub takes."""

import json
import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hub_server import hub_server
from multistable import ModelConfig, SequenceModel, build_model
from multistable_experiments.paper.settings import make_run, preset
from multistable_experiments.tasks import CopyFirst
from multistable_experiments.training.loop import train_run
from multistable_experiments.training.results import folder_of, load_trained

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "models.py"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The folder of a finished run."""
    small = replace(preset("copy-first", "smoke"), task=CopyFirst(5, 1.0, 64, 16), d_model=8, d_state=8, epochs=1)
    out = tmp_path_factory.mktemp("runs")
    run = make_run(small, cells=("bmru",))
    train_run(run, str(out))
    return folder_of(run, out)


def test_models_load_and_their_cards_have_the_numbers(place, tmp_path):
    [made] = runpy.run_path(str(TOOL))["prepare"](tmp_path / "models", [place])
    assert sorted(path.name for path in made.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    run, trained = load_trained(place)
    model, x = SequenceModel.from_pretrained(made), torch.randn(2, 9, run.task.d_input)
    assert torch.equal(model(x)[0], trained(x)[0])
    card = (made / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: multistable\n")
    assert f'from_pretrained("OWNER/multistable-{made.name}")' in card
    best = json.loads((place / "result.json").read_text())["metrics"]["best"]
    assert f"| test | {best['test_mse']:.5g} |" in card
    assert json.loads(card.split("```json\n")[1].split("```")[0]) == run.to_dict()


def test_a_card_names_every_kind_of_layer(place):
    tool, (run, _) = runpy.run_path(str(TOOL)), load_trained(place)
    mixed = replace(run, model=replace(run.model, cells=("lru", "lru", "bmru")))
    card = tool["card"]("mixed", mixed, json.loads((place / "result.json").read_text()), "OWNER/multistable-mixed")
    assert "3 blocks of `lru`, `bmru`, width" in card
    assert "recurrent, lru, bmru]" in card


def test_a_saved_model_gets_a_card_and_anything_else_is_refused(place, tmp_path):
    prepare = runpy.run_path(str(TOOL))["prepare"]
    build_model(ModelConfig(("lru",), d_input=1, d_output=1, d_model=4, d_state=4)).save_pretrained(tmp_path / "mine")
    [made] = prepare(tmp_path / "models", [tmp_path / "mine"])
    assert "OWNER/multistable-mine" in (made / "README.md").read_text()
    with pytest.raises(SystemExit, match="must be a finished run"):
        prepare(tmp_path / "models", [tmp_path])


def test_models_are_pushed_to_a_hub(place, tmp_path):
    """On a local server, in a new process: huggingface_hub reads the address of its server when imported."""
    pytest.importorskip("huggingface_hub")
    [made] = runpy.run_path(str(TOOL))["prepare"](tmp_path / "models", [place])
    with hub_server() as (address, uploaded, requests):
        env = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_test"}
        done = subprocess.run(
            [sys.executable, TOOL, tmp_path / "models", "--push", "someone"],
            env=env | {"NO_PROXY": "127.0.0.1"}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "/commit/" in done.stdout
    assert requests["create"]["name"] == f"multistable-{made.name}"
    assert sorted(uploaded) == ["README.md", "config.json", "model.safetensors"]
    assert uploaded["model.safetensors"] == (made / "model.safetensors").read_bytes()
    assert f"someone/multistable-{made.name}".encode() in uploaded["README.md"]
