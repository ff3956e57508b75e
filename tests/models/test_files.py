"""Saved models load unchanged; files that cannot be loaded raise errors that name them."""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from full_disk import limited_memory
from hub_server import ATTACKS, hub_server
from layer_names import NAMES
from multistable import ModelConfig, PositionConfig, SequenceModel, build_model
from multistable.layers import Recurrent
from multistable.models import files, tensors
from multistable.models.tensors import DamagedFileError, load_tensors, save_tensors

safetensors = pytest.importorskip("safetensors.torch")
CONFIG = ModelConfig(NAMES, d_input=2, d_output=3, d_model=8, d_state=6, position=PositionConfig(dim=4, T=20))
SMALL = ModelConfig(("bmru",), d_input=2, d_output=3, d_model=4, d_state=4)


def make(config: ModelConfig = SMALL, dtype: torch.dtype = torch.float32) -> SequenceModel:
    """A model with random batch norm statistics that has never been called."""
    torch.manual_seed(0)
    model = build_model(config)
    for buffer in model.buffers():
        buffer.uniform_(0.5, 2.0)
    return portable(model.to(dtype).eval())


def portable(model: SequenceModel) -> SequenceModel:
    """Use the backend that needs no compilation, which would take most of these tests' time."""
    for module in model.modules():
        if isinstance(module, Recurrent):
            module.backend = "portable"
    return model


def assert_same_model(loaded: SequenceModel, model: SequenceModel) -> None:
    assert loaded.config == model.config
    expected = model.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_round_trip(tmp_path, dtype):
    model = make(CONFIG, dtype)
    model.save_pretrained(tmp_path / "model")
    random = torch.get_rng_state()
    loaded = SequenceModel.from_pretrained(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), random)
    assert not loaded.training
    assert_same_model(loaded, model)
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    if dtype == torch.float64:
        x = torch.randn(2, 9, 2, dtype=dtype)
        assert torch.equal(portable(loaded)(x)[0], model(x)[0])
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]


def test_a_model_is_loaded_onto_a_device(tmp_path):
    make().save_pretrained(tmp_path)
    loaded = SequenceModel.from_pretrained(tmp_path, device="meta")
    assert {tensor.device.type for tensor in loaded.state_dict().values()} == {"meta"}


def test_non_contiguous_weights_are_saved(tmp_path):
    model = make()
    weight = model.head.fc1.weight
    weight.data = weight.data.t().contiguous().t()
    assert not weight.is_contiguous()
    model.save_pretrained(tmp_path)
    assert torch.equal(SequenceModel.from_pretrained(tmp_path).head.fc1.weight, weight)


def test_loaded_models_train(tmp_path):
    make(CONFIG).save_pretrained(tmp_path)
    loaded = portable(SequenceModel.from_pretrained(tmp_path)).train()
    loaded(torch.randn(4, 9, 2))[0].sum().backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())


def test_a_model_saved_by_version_0_1_0_loads(tmp_path):
    """Its record held the configuration and the SHA-256 of the tensors."""
    model = make()
    header, numbers = split(safetensors.save(model.state_dict()))
    record = {"config": model.config.to_dict(), "sha256": hashlib.sha256(numbers).hexdigest()}
    header = json.dumps({"__metadata__": {"multistable": json.dumps(record)}, **header}).encode()
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header + numbers)
    (tmp_path / "config.json").write_text(json.dumps(model.config.to_dict(), indent=2) + "\n")
    assert_same_model(SequenceModel.from_pretrained(tmp_path), model)
    other = model.config.to_dict() | {"pooling": "mean"}
    (tmp_path / "config.json").write_text(json.dumps(other))
    with pytest.raises(ValueError, match="was saved with another configuration"):
        SequenceModel.from_pretrained(tmp_path)


def test_a_model_saved_before_a_field_existed_loads(tmp_path):
    """The missing field takes its default, in both records of the configuration."""
    model = make()
    config = model.config.to_dict()
    del config["start"]
    tensors.save_tensors(tmp_path / "model.safetensors", model.state_dict(), {"config": config})
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_same_model(SequenceModel.from_pretrained(tmp_path), model)
    tensors.save_tensors(tmp_path / "model.safetensors", model.state_dict(), {"config": {"cells": 1}})
    with pytest.raises(ValueError, match="was saved with another configuration"):
        SequenceModel.from_pretrained(tmp_path)


def split(content: bytes) -> tuple[dict, bytes]:
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), content[start:]


def test_damaged_weights_raise(tmp_path):
    """test_tensors.py covers every kind of damage."""
    make().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.safetensors is corrupt"):
        SequenceModel.from_pretrained(tmp_path)
    path.write_bytes(data[:-1])
    with pytest.raises(ValueError, match=r"model\.safetensors is truncated or not a safetensors file"):
        SequenceModel.from_pretrained(tmp_path)


def test_mixed_files_of_two_models_raise(tmp_path):
    make().save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text()) | {"pooling": "mean"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="was saved with another configuration"):
        SequenceModel.from_pretrained(tmp_path)


def test_weights_of_another_size_raise(tmp_path):
    """Files written by another program have neither a checksum nor a configuration."""
    make().save_pretrained(tmp_path)
    other = make(dataclasses.replace(SMALL, d_model=6))
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
def test_bad_config_files_raise(tmp_path, text):
    make().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json is not the configuration of a model"):
        SequenceModel.from_pretrained(tmp_path)


def test_a_configuration_that_cannot_be_built_raises(tmp_path):
    make().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace("false", "0"))  # equal to False, but not a boolean
    with pytest.raises(ValueError, match=r"config\.json: no model has this configuration: bidirectional must be"):
        SequenceModel.from_pretrained(tmp_path)


def hostile(config: dict, tensors: dict[str, torch.Tensor] | None = None) -> tuple[dict, dict[str, torch.Tensor]]:
    """The small model with another configuration, or other tensors."""
    return SMALL.to_dict() | config, make().state_dict() | (tensors or {})


HOSTILE = {
    "a model of 10.9 GB": hostile({"d_model": 30_000, "d_state": 15_000}),
    "d_model of 10^12": hostile({"d_model": 10**12}),
    "d_state of 10^30": hostile({"d_state": 10**30}),
    "20,000 blocks": hostile({"cells": ["bmru"] * 20_000}),
    "a weight in float64": hostile({}, {"encoder.weight": torch.zeros(4, 2, dtype=torch.float64)}),
    "a weight of integers": hostile({}, {"encoder.weight": torch.zeros(4, 2, dtype=torch.int64)}),
    "weights of integers": hostile({}, {name: x.long() for name, x in make().state_dict().items()}),
    "a weight of as many numbers": hostile({}, {"encoder.weight": torch.zeros(2, 4)}),
    "another tensor": hostile({}, {"encoder.other": torch.zeros(1)}),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_models_are_refused_in_one_sentence(tmp_path, kind):
    """Quickly, and in the memory of the file: it may come from anybody."""
    config, tensors = HOSTILE[kind]
    (tmp_path / "config.json").write_text(json.dumps(config))
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    started = time.perf_counter()
    with limited_memory(1 << 30), pytest.raises(ValueError, match=r"model\.safetensors does not fit") as caught:
        SequenceModel.from_pretrained(tmp_path)
    assert time.perf_counter() - started < 5
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("record", [[], "text", 3, {"sha256": 5}, {"checksum": None, "info": []}, {"info": 3}])
def test_records_of_another_type_are_refused(tmp_path, record):
    model = make()
    model.save_pretrained(tmp_path)
    metadata = {"multistable": json.dumps(record)}
    safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors", metadata)
    with pytest.raises(ValueError, match=r"model\.safetensors is (truncated|corrupt)"):
        SequenceModel.from_pretrained(tmp_path)


def test_a_record_that_is_a_list_with_a_right_checksum_is_refused(tmp_path):
    make().save_pretrained(tmp_path)
    save_tensors(tmp_path / "model.safetensors", make().state_dict(), [])
    with pytest.raises(ValueError, match="its record must be an object, got list"):
        SequenceModel.from_pretrained(tmp_path)


def test_files_with_holes_are_refused(tmp_path):
    """They take no disk, whatever their size: 20 GiB of configuration, and weights larger than any memory."""
    make().save_pretrained(tmp_path)
    os.truncate(tmp_path / "model.safetensors", 1 << 42)
    with (
        limited_memory(1 << 30),
        pytest.raises(MemoryError, match="has 4,398,046,511,104 bytes, more than there is memory"),
    ):
        SequenceModel.from_pretrained(tmp_path)
    os.truncate(tmp_path / "config.json", 20 << 30)
    with pytest.raises(ValueError, match="not the configuration of a model: it has 21,474,836,480 bytes"):
        SequenceModel.from_pretrained(tmp_path)


@pytest.mark.usefixtures("ten_seconds")
def test_a_pipe_is_refused(tmp_path):
    make().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        SequenceModel.from_pretrained(tmp_path)
    with pytest.raises(DamagedFileError, match="is not a file"):
        load_tensors(tmp_path / "model.safetensors")


def test_missing_files_raise(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist"):
        SequenceModel.from_pretrained(tmp_path)
    make().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors does not exist"):
        SequenceModel.from_pretrained(tmp_path)
    for source in (tmp_path / "none", str(tmp_path / "none"), "./none"):
        with pytest.raises(FileNotFoundError, match="none is neither a folder nor a name on the Hub"):
            SequenceModel.from_pretrained(source)


def test_a_failed_save_keeps_the_old_model(tmp_path, monkeypatch):
    make().save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        make(dtype=torch.float64).save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_from_the_hub_cache(tmp_path):
    """From the folder where huggingface_hub keeps its downloads, so that no network is needed."""
    pytest.importorskip("huggingface_hub")
    model, commit = make(), "0" * 40
    repository = tmp_path / "models--someone--bits"
    model.save_pretrained(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    loaded = SequenceModel.from_pretrained("someone/bits", cache_dir=tmp_path, local_files_only=True)
    assert_same_model(loaded, model)


def run_with_hub(address: str, folder: Path, code: str) -> subprocess.CompletedProcess:
    """Run in a new process, because huggingface_hub reads the address of its server when imported."""
    environment = {
        "PYTHONPATH": str(Path(files.__file__).parents[2]),
        "HF_HOME": str(folder),
        "NO_PROXY": "127.0.0.1",
        "HF_ENDPOINT": address,
        "HF_HUB_DOWNLOAD_TIMEOUT": "2",
    }
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=120)


@pytest.mark.parametrize("attack", [ATTACKS[0], *(pytest.param(x, marks=pytest.mark.extra) for x in ATTACKS[1:])])
def test_a_hostile_hub_is_refused_within_limits(tmp_path, attack):
    pytest.importorskip("huggingface_hub")
    make().save_pretrained(tmp_path / "model")
    code = """if True:
        import time
        from multistable import SequenceModel
        from multistable.models import files
        files.LARGEST["model.safetensors"] = 1 << 22
        started = time.perf_counter()
        try:
            SequenceModel.from_pretrained("someone/bits")
        except (OSError, ValueError) as error:
            print("refused", time.perf_counter() - started, error)
        """
    with hub_server(attack) as (address, uploaded, _):
        for name in ("config.json", "model.safetensors"):
            uploaded[name] = (tmp_path / "model" / name).read_bytes()
        result = run_with_hub(address, tmp_path / "home", code)
    assert result.stdout.startswith("refused"), result.stderr
    assert float(result.stdout.split()[1]) < 60
    assert attack != "endless" or "larger than 4,194,304 bytes" in result.stdout
    kept = sum(path.stat().st_size for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert kept < 1 << 16, "what was downloaded is removed"


def test_to_the_hub_and_back(tmp_path):
    """On a local server."""
    pytest.importorskip("huggingface_hub")
    make().save_pretrained(tmp_path / "model")
    code = f"""if True:
        from multistable import SequenceModel
        model = SequenceModel.from_pretrained({str(tmp_path / "model")!r})
        url = model.push_to_hub("someone/bits", token="hf_test", private=True, commit_message="Three bits")
        assert url.endswith("/someone/bits/commit/" + "1" * 40), url
        SequenceModel.from_pretrained("someone/bits").save_pretrained({str(tmp_path / "back")!r})
        """
    with hub_server() as (address, uploaded, requests):
        result = run_with_hub(address, tmp_path, code)
    assert result.returncode == 0, result.stderr
    assert sorted(uploaded) == ["README.md", "config.json", "model.safetensors"]
    assert b'SequenceModel.from_pretrained("someone/bits")' in uploaded["README.md"]
    created = requests["create"]
    assert created.get("private") or created.get("visibility") == "private"  # depends on the version of huggingface_hub
    assert requests["commit"]["summary"] == "Three bits"
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == uploaded[name]
