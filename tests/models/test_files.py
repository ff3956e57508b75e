"""Models as files: what is written can be read, and what cannot be read is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hub_server import hub_server
from layer_names import NAMES
from multistable import ModelConfig, SequenceModel, build_model
from multistable.models import PositionConfig, files

pytest.importorskip("safetensors")
CONFIG = ModelConfig(NAMES, d_input=2, d_output=3, d_model=8, d_state=6, position=PositionConfig(dim=4, T=20))


def make(config: ModelConfig = CONFIG, dtype: torch.dtype = torch.float32) -> SequenceModel:
    torch.manual_seed(0)
    model = build_model(config).to(dtype)
    model(torch.randn(8, 20, 2, dtype=dtype))  # running statistics of its own
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_round_trip(tmp_path, dtype):
    model = make(dtype=torch.float32).to(dtype)
    model.save_pretrained(tmp_path / "model")
    random = torch.get_rng_state()
    loaded = SequenceModel.from_pretrained(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), random)
    assert loaded.config == model.config
    assert not loaded.training
    expected = model.state_dict()
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, expected[name])
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    if dtype != torch.bfloat16:
        x = torch.randn(2, 9, 2, dtype=dtype)
        assert torch.equal(loaded(x)[0], model(x)[0])
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]


def test_a_state_is_saved_and_loaded_by_torch(tmp_path):
    state = make()(torch.randn(2, 9, 2))[1].detach()
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt")  # of classes it reads only those that are known to be safe
    assert type(loaded) is type(state)
    assert all(torch.equal(a, b) for a, b in zip(loaded.cells, state.cells, strict=True))


def test_weights_in_another_layout_are_saved_all_the_same(tmp_path):
    model = make(ModelConfig(("bmru",), d_input=2, d_output=3, d_model=8, d_state=6))
    weight = model.head.fc1.weight
    weight.data = weight.data.t().contiguous().t()
    assert not weight.is_contiguous()
    model.save_pretrained(tmp_path)
    assert torch.equal(SequenceModel.from_pretrained(tmp_path).head.fc1.weight, weight)


def test_loaded_models_train(tmp_path):
    make().save_pretrained(tmp_path)
    loaded = SequenceModel.from_pretrained(tmp_path).train()
    loaded(torch.randn(4, 9, 2))[0].sum().backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_cut_off_weights_are_named(tmp_path, keep):
    make().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"model\.safetensors is truncated or not a safetensors file"):
        SequenceModel.from_pretrained(tmp_path)


def test_damaged_weights_are_named(tmp_path):
    make().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.safetensors is corrupt"):
        SequenceModel.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"), [(b"d_model", b"d_mudel"), (b"multistable", b"multistab1e"), (b"cells", b"ce11s"), (b"F32", b"F31")]
)
def test_damage_of_what_describes_the_weights_is_named(tmp_path, old, new):
    make().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))
    if old == b"multistable":  # as a file by another program: what is there still fits
        SequenceModel.from_pretrained(tmp_path)
        return
    with pytest.raises(ValueError, match=r"model\.safetensors is (truncated or not a safetensors file|corrupt)"):
        SequenceModel.from_pretrained(tmp_path)


def test_files_of_two_models_are_found_out(tmp_path):
    make().save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text()) | {"pooling": "mean"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="was saved with another configuration"):
        SequenceModel.from_pretrained(tmp_path)


def test_weights_of_another_size_are_named(tmp_path):
    """Files by another program carry neither checksum nor configuration."""
    safetensors = pytest.importorskip("safetensors.torch")
    make().save_pretrained(tmp_path)
    other = make(ModelConfig(("bmru",), 2, 3, 8, 6))
    safetensors.save_file(other.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors does not fit .*config\.json"):
        SequenceModel.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"cells": ["bmru"]}',
        '{"cells": 3, "d_input": 1, "d_output": 1}',
        '{"cells": [], "d_input": 1, "d_output": 1}',
    ],
)
def test_bad_config_files_are_named(tmp_path, text):
    make().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json is not the configuration of a model"):
        SequenceModel.from_pretrained(tmp_path)


def test_a_configuration_of_which_no_model_can_be_built_is_named(tmp_path):
    make(ModelConfig(("bmru",), d_input=2, d_output=1, d_model=4, d_state=4)).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace("false", "0"))  # equal to False, and yet none
    with pytest.raises(ValueError, match=r"config\.json is not the configuration of a model: bidirectional must be"):
        SequenceModel.from_pretrained(tmp_path)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist"):
        SequenceModel.from_pretrained(tmp_path)
    for source in (tmp_path / "none", str(tmp_path / "none"), "./none"):
        with pytest.raises(FileNotFoundError, match="none is no folder"):
            SequenceModel.from_pretrained(source)


def test_nothing_half_written(tmp_path, monkeypatch):
    """A write that fails leaves the model before it as it was, and no other file."""
    make().save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        make(dtype=torch.float64).save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_from_the_hub_cache(tmp_path):
    """The folder in which huggingface_hub keeps its downloads, so that no network is needed."""
    pytest.importorskip("huggingface_hub")
    model, commit = make(), "0" * 40
    repository = tmp_path / "models--someone--bits"
    model.save_pretrained(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    loaded = SequenceModel.from_pretrained("someone/bits", cache_dir=tmp_path, local_files_only=True)
    x = torch.randn(2, 9, 2)
    assert torch.equal(loaded(x)[0], model(x)[0])


def test_to_the_hub_and_back(tmp_path):
    """Against a server on this machine, in a process of its own because the address is read at import."""
    pytest.importorskip("huggingface_hub")
    make().save_pretrained(tmp_path / "model")
    code = f"""if True:
        from multistable import SequenceModel
        url = SequenceModel.from_pretrained({str(tmp_path / "model")!r}).push_to_hub("someone/bits", token="hf_test")
        assert url.endswith("/someone/bits/commit/" + "1" * 40), url
        SequenceModel.from_pretrained("someone/bits").save_pretrained({str(tmp_path / "back")!r})
        """
    with hub_server() as (address, files):
        run_python(code, HF_ENDPOINT=address, HF_HOME=str(tmp_path / "home"), NO_PROXY="127.0.0.1")
    assert sorted(files) == ["README.md", "config.json", "model.safetensors"]
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == files[name]


def run_python(code: str, **environment: str) -> str:
    """What ``code`` prints in a fresh process."""
    environment = os.environ | {"PYTHONPATH": str(Path(files.__file__).parents[2])} | environment
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_loads_neither_safetensors_nor_hub():
    code = "import sys, multistable; print(sys.modules.keys() & {'safetensors', 'huggingface_hub', 'numba'})"
    assert run_python(code) == "set()"
