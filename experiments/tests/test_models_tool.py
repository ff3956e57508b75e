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
from multistable_experiments.paper import store
from multistable_experiments.paper.settings import make_run, preset
from multistable_experiments.tasks import CopyFirst
from multistable_experiments.training.loop import train_run
from multistable_experiments.training.results import folder_of, load_trained

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "models.py"
MACHINE = ROOT / "experiments" / "results" / "machines" / "parity-softmax-seed0.json"
COMMITTED = sorted(path.parent for path in (ROOT / "models").glob("*/config.json"))


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


@pytest.fixture
def pair(place, tmp_path) -> list[Path]:
    """A stored result, and the weights of its run in a file without a record of the run."""
    run, model = load_trained(place)
    result = json.loads((place / "result.json").read_text())
    names = ("metrics", "parameters", "seconds", "machine", "options")
    tests = [{"length": 9, "noise": 1.0, "samples": 4, "mse": 0.25}]
    record = store.Record(
        "tiny",
        "smoke",
        run,
        **{name: result[name] for name in names},
        history={},
        timesteps_per_second=1.0,
        tests=tests,
    )
    model.save_pretrained(tmp_path / "weights")
    return [store.write(tmp_path, record), tmp_path / "weights" / "model.safetensors"]


def test_a_result_and_its_weights_are_a_model(place, pair, tmp_path):
    [made] = runpy.run_path(str(TOOL))["prepare"](tmp_path / "models", pair, check=10)
    assert made.name == "copy-first-tuned-tiny-seed0"
    run, trained = load_trained(place)
    x = torch.randn(2, 9, run.task.d_input)
    assert torch.equal(SequenceModel.from_pretrained(made)(x)[0], trained(x)[0])
    card = (made / "README.md").read_text()
    assert "| length | noise | samples | mse |\n| --- | --- | --- | --- |\n| 9 | 1 | 4 | 0.25 |\n" in card
    assert "| the first 10 of the test set, again" in card
    names = {}
    exec(card.split("multistable-experiments`:\n\n```python\n")[1].split("```")[0], names)
    assert torch.equal(names["target"], run.task.samples("test", run.seed).target[:8])


def test_a_card_says_nothing_of_a_test_that_was_not_made(pair, tmp_path):
    [made] = runpy.run_path(str(TOOL))["prepare"](tmp_path / "models", pair)
    assert "again" not in (made / "README.md").read_text()


def test_other_weights_are_refused(pair, tmp_path):
    prepare = runpy.run_path(str(TOOL))["prepare"]
    result, weights = pair
    with pytest.raises(SystemExit, match="must be followed by the file of its weights"):
        prepare(tmp_path / "models", [result])
    model = SequenceModel.from_pretrained(weights.parent)
    with torch.no_grad():
        model.head.fc2.bias += 100.0
    model.save_pretrained(tmp_path / "worse")
    with pytest.raises(SystemExit, match="mse of the first 10 test samples is"):
        prepare(tmp_path / "models", [result, tmp_path / "worse" / "model.safetensors"], check=10)
    build_model(replace(model.config, d_model=4)).save_pretrained(tmp_path / "other")
    with pytest.raises(SystemExit, match=r"is not of the run of .*: d_model differ"):
        prepare(tmp_path / "models", [result, tmp_path / "other" / "model.safetensors"])
    assert not (tmp_path / "models").exists()


def test_the_card_of_a_machine_loads_it(tmp_path, monkeypatch):
    tool = runpy.run_path(str(TOOL))
    [made] = tool["prepare"](tmp_path, [MACHINE])
    card = (made / "README.md").read_text()
    assert "it answers like its target at every length" in card
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name: str(tmp_path / name.split("/multistable-")[1])
    )
    names = {"symbols": torch.randint(2, (3, 500))}
    exec(card.split("```python\n")[1].split("```")[0], names)
    assert torch.equal(names["logits"].argmax(dim=-1), names["symbols"].cumsum(dim=1) % 2)
    assert torch.equal(tool["load"](made)(names["symbols"])[0], names["logits"])


@pytest.mark.parametrize("kind", ["TMazeRun", "ApartRun"])
def test_an_agent_is_trained_again(kind, tmp_path):
    pytest.importorskip("gymnasium")
    from multistable_experiments.rl import horizons, results

    run = getattr(horizons, kind)("bmru", noise=True, longest=2, width=8, rollouts=2, lengths=(2, 4), episodes=4)
    results.store(run, horizons.measure(run), tmp_path, {})
    tool = runpy.run_path(str(TOOL))
    [made] = tool["prepare"](tmp_path / "models", [tmp_path / f"{run.name}.json"])
    assert made.name == run.name
    card = (made / "README.md").read_text().replace("\n", " ")
    assert "The shares of correct turns in its rollouts are those of the stored result" in card
    tool["load"](made)


def test_a_tutorial_is_run_for_its_model(tmp_path):
    tool = runpy.run_path(str(TOOL))
    (tmp_path / "one_layer.py").write_text(
        "from multistable import ModelConfig, build_model\n"
        "model = build_model(ModelConfig(('lru',), d_input=1, d_output=1, d_model=4, d_state=4))\nprint('it learned')\n"
    )
    [made] = tool["prepare"](tmp_path / "models", [tmp_path / "one_layer.py"])
    assert made.name == "tutorial-one-layer"
    assert "```\nit learned\n```" in (made / "README.md").read_text()
    assert tool["load"](made)(torch.randn(1, 3, 1))[0].shape == (1, 1)
    (tmp_path / "none.py").write_text("import multistable\n")
    with pytest.raises(SystemExit, match="has no model"):
        tool["prepare"](tmp_path / "models", [tmp_path / "none.py"])


@pytest.mark.parametrize("place", COMMITTED, ids=lambda place: place.name)
def test_the_cards_of_the_repository_load_their_models(place, monkeypatch):
    """Small models are kept in the repository; the code of a card loads its model and calls it."""
    pytest.importorskip("gymnasium" if place.name.startswith("tmaze") else "huggingface_hub")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name: str(place))
    assert (place / "model.safetensors").stat().st_size < 100_000
    card = (place / "README.md").read_text()
    assert f"# {place.name}\n" in card
    names = {"symbols": torch.randint(3, (2, 9)), "x": torch.rand(2, 9, 3)}
    exec(card.split("```python\n")[1].split("```")[0].replace(f"OWNER/multistable-{place.name}", str(place)), names)
    again = runpy.run_path(str(TOOL))["load"](place).state_dict()
    assert all(torch.equal(x, again[name]) for name, x in names["model"].state_dict().items())


def test_a_card_names_every_kind_of_layer(place):
    cards, (run, _) = runpy.run_path(str(TOOL.with_name("model_cards.py"))), load_trained(place)
    mixed = replace(run, model=replace(run.model, cells=("lru", "lru", "bmru")))
    card = cards["of_run"]("mixed", mixed, json.loads((place / "result.json").read_text()))
    assert "3 blocks of `lru`, `bmru`, width" in card
    assert "recurrent, lru, bmru]" in card


def test_a_saved_model_gets_a_card_and_anything_else_is_refused(place, tmp_path):
    prepare = runpy.run_path(str(TOOL))["prepare"]
    build_model(ModelConfig(("lru",), d_input=1, d_output=1, d_model=4, d_state=4)).save_pretrained(tmp_path / "mine")
    [made] = prepare(tmp_path / "models", [tmp_path / "mine"])
    assert "OWNER/multistable-mine" in (made / "README.md").read_text()
    with pytest.raises(SystemExit, match="must be a finished run"):
        prepare(tmp_path / "models", [tmp_path])


@pytest.mark.parametrize("kind", ["run", "machine"])
def test_models_are_pushed_to_a_hub(kind, place, tmp_path):
    """On a local server, in a new process: huggingface_hub reads the address of its server when imported."""
    pytest.importorskip("huggingface_hub")
    source = {"run": place, "machine": MACHINE}[kind]
    [made] = runpy.run_path(str(TOOL))["prepare"](tmp_path / "models", [source])
    card = (made / "README.md").read_bytes()
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
    assert (made / "README.md").read_bytes() == card
