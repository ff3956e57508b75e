"""Tensors and a JSON record load unchanged from a file, and damage raises."""

import hashlib
import json
import math

import pytest
import torch

from multistable.models.tensors import DamagedFileError, import_extra, load_tensors, save_tensors
from tolerances import assert_same_bits

safetensors = pytest.importorskip("safetensors.torch")

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
TENSORS = {
    "weight": torch.tensor([[1.5, -0.0, math.nan], [math.inf, -math.inf, 1e-40]]),
    "count": torch.tensor([3, -4]),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.zeros(0, 3),
}
INFO = {"step": 3, "loss": 0.1, "name": "ä", "nested": {"list": [1, None, True]}}


@pytest.fixture
def path(tmp_path):
    """A file with TENSORS and INFO."""
    save_tensors(tmp_path / "file.safetensors", TENSORS, INFO)
    return tmp_path / "file.safetensors"


def test_round_trip(path):
    tensors, info = load_tensors(path)
    assert info == INFO
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].device.type == "cpu"
        if tensor.is_floating_point():
            assert_same_bits(tensors[name], tensor)
        else:
            assert tensors[name].dtype == tensor.dtype
            assert torch.equal(tensors[name], tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_are_kept(tmp_path, dtype):
    x = torch.arange(6).reshape(2, 3).to(dtype)
    save_tensors(tmp_path / "file", {"x": x}, {})
    loaded = load_tensors(tmp_path / "file")[0]["x"]
    assert loaded.dtype == dtype
    assert torch.equal(loaded, x)


def test_any_layout_is_saved(tmp_path):
    """Transposed, expanded, overlapping, and requiring a gradient."""
    x = torch.randn(3, 4)
    tensors = {
        "transposed": x.t(),
        "expanded": x[:1].expand(3, 4),
        "part": x[:, 1:3],
        "whole": x.clone().requires_grad_(),
    }
    save_tensors(tmp_path / "file", tensors, {})
    for name, loaded in load_tensors(tmp_path / "file")[0].items():
        assert torch.equal(loaded, tensors[name]), name


def test_equal_content_gives_equal_bytes(path, tmp_path):
    again = tmp_path / "again"
    save_tensors(again, dict(reversed(TENSORS.items())), INFO)
    assert again.read_bytes() == path.read_bytes()


def test_info_is_read_as_json_stores_it(tmp_path):
    save_tensors(tmp_path / "file", {}, {"sizes": (1, 2), "checksum": "mine", "sha256": "mine too"})
    assert load_tensors(tmp_path / "file") == ({}, {"sizes": [1, 2], "checksum": "mine", "sha256": "mine too"})


def test_info_that_is_not_json_raises_and_keeps_the_old_file(path):
    before = path.read_bytes()
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_tensors(path, TENSORS, {"step": torch.tensor(3)})
    assert path.read_bytes() == before


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_a_truncated_file_raises(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DamagedFileError, match=r"file\.safetensors is truncated or not a safetensors file"):
        load_tensors(path)


def test_every_flipped_bit_is_detected(path):
    """One in each byte. A file whose record is no longer found counts as another program's."""
    content = path.read_bytes()
    without_record = {content.index(word) + i for word in (b"__metadata__", b"multistable") for i in range(len(word))}
    for i in range(len(content)):
        damaged = bytearray(content)
        damaged[i] ^= 1
        path.write_bytes(damaged)
        if i in without_record:
            continue
        with pytest.raises(
            DamagedFileError, match=r"file\.safetensors is (corrupt|truncated or not a safetensors file)"
        ):
            load_tensors(path)


@pytest.mark.parametrize(("old", "new"), [(b'"count"', b'"ccunt"'), (b"I64", b"F64"), (b"[2,3]", b"[3,2]")])
def test_a_changed_name_dtype_or_shape_is_detected(path, old, new):
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    with pytest.raises(DamagedFileError, match="is corrupt: its content does not match the checksum"):
        load_tensors(path)


def test_a_file_of_another_program_is_not_checked(tmp_path):
    safetensors.save_file({"x": torch.ones(2)}, tmp_path / "file", {"format": "pt"})
    tensors, info = load_tensors(tmp_path / "file")
    assert torch.equal(tensors["x"], torch.ones(2))
    assert info == {}


def old_file(path, flip: int = 0) -> None:
    """A file as version 0.1.0 wrote it, byte by byte: info and the tensors' SHA-256 in one record."""
    numbers = torch.tensor([1.0, -2.0]).numpy().tobytes()
    record = json.dumps({"config": {"d_model": 8}, "sha256": hashlib.sha256(numbers).hexdigest()})
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"__metadata__": {"multistable": record}, "weight": entry}).encode()
    numbers = bytes([numbers[0] ^ flip]) + numbers[1:]
    path.write_bytes(len(header).to_bytes(8, "little") + header + numbers)


def test_a_file_of_version_0_1_0_is_read_and_checked(tmp_path):
    path = tmp_path / "old.safetensors"
    old_file(path)
    tensors, info = load_tensors(path)
    assert tensors["weight"].tolist() == [1.0, -2.0]
    assert info == {"config": {"d_model": 8}}
    old_file(path, flip=1)
    with pytest.raises(DamagedFileError, match=r"old\.safetensors is corrupt"):
        load_tensors(path)


def test_a_missing_file_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        load_tensors(tmp_path / "missing")


def test_a_missing_extra_gives_an_install_hint():
    assert import_extra("json", "files") is json
    message = r"not_installed could not be imported: pip install 'multistable\[files\]'"
    with pytest.raises(ImportError, match=message):
        import_extra("not_installed", "files")
