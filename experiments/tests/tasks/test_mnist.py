"""MNIST: IDX files plain and gzipped, damage is named, downloads are checked, pixels become the paper's inputs."""

import dataclasses
import gzip
import hashlib
import re

import pytest
import torch

from multistable_experiments.tasks import MNIST, idx, mnist
from multistable_experiments.tasks.folder import data_folder
from small_data import described, idx_bytes, write_mnist


@pytest.fixture
def images():
    return torch.randint(0, 256, (5, 3, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_read_gives_the_tensor_back(tmp_path, images, packed):
    content = idx_bytes(images)
    file, gz = described("images", content)
    (tmp_path / ("images.gz" if packed else "images")).write_bytes(gz if packed else content)
    assert torch.equal(idx.read(file, tmp_path), images)


def test_missing_file_is_named(tmp_path, images):
    file, _ = described("images", idx_bytes(images))
    with pytest.raises(idx.DataError, match=r"images \(or images\.gz\) is not in"):
        idx.read(file, tmp_path)


DAMAGES = {
    "truncated": (lambda content: content[:-4], "truncated or too long: it announces 5 x 3 x 2 elements, got 26"),
    "flipped": (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "corrupt: the sha256 of its content is"),
    "empty": (lambda content: b"", "no IDX file"),
    "header": (lambda content: content[:9], "truncated"),
    "text": (lambda content: b"<html>not found</html>", "no IDX file"),
    "no elements": (lambda content: content[:4] + bytes(12), "truncated"),
    "floats": (lambda content: content[:2] + b"\x0d" + content[3:], "must hold unsigned bytes"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_damaged_file_is_named(tmp_path, images, damage, packed):
    content = idx_bytes(images)
    file, _ = described("images", content)
    spoil, message = DAMAGES[damage]
    path = tmp_path / ("images.gz" if packed else "images")
    path.write_bytes(gzip.compress(spoil(content)) if packed else spoil(content))
    with pytest.raises(idx.DataError, match=f"{re.escape(str(path))}.*{message}.*; remove it to have it downloaded"):
        idx.read(file, tmp_path)


@pytest.mark.parametrize("cut", [3, 20, -4])
def test_truncated_gzip_is_named(tmp_path, images, cut):
    file, packed = described("images", idx_bytes(images))
    (tmp_path / "images.gz").write_bytes(packed[:cut])
    with pytest.raises(idx.DataError, match=r"images\.gz is truncated or corrupt"):
        idx.read(file, tmp_path)


def test_download_takes_the_first_good_mirror(tmp_path, images):
    """Mirrors are folders here; the URLs are read by the same code."""
    file, packed = described("images", idx_bytes(images))
    mirrors = []
    for name, content in (("gone", None), ("cut", packed[:-3]), ("good", packed)):
        (tmp_path / name).mkdir()
        if content is not None:
            (tmp_path / name / "images.gz").write_bytes(content)
        mirrors.append((tmp_path / name).as_uri() + "/")
    target = tmp_path / "data"
    assert idx.download(file, target, tuple(mirrors)) == target / "images.gz"
    assert torch.equal(idx.read(file, target), images)
    assert [path.name for path in target.iterdir()] == ["images.gz"]


def test_failed_download_leaves_nothing_behind(tmp_path, images):
    file, packed = described("images", idx_bytes(images))
    (tmp_path / "images.gz").write_bytes(packed[:-3])
    target = tmp_path / "data"
    with pytest.raises(idx.DataError, match=r"images\.gz could not be downloaded(.|\n)*sha256(.|\n)*missing"):
        idx.download(file, target, (tmp_path.as_uri() + "/", (tmp_path / "missing").as_uri() + "/"))
    assert list(target.iterdir()) == []


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """A data folder with 40 training and 10 test images, and checksums to match."""
    monkeypatch.setattr(mnist, "FILES", write_mnist(tmp_path))
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("permuted", [False, True])
def test_inputs_are_normalised_pixels_then_black(small_mnist, permuted):
    task = MNIST(black_pixels=16, permuted=permuted)
    samples = task.samples("test", seed=0)
    x = task.inputs(samples.stored)
    assert samples.stored.dtype == torch.uint8
    assert x.shape == (10, 800, 1)
    images, labels = mnist.load("test")
    order = mnist.permutation() if permuted else torch.arange(784)
    assert torch.equal(x[:, :784, 0], images[:, order].float() / 255 - 0.5)
    assert torch.equal(x[:, 784:, 0], torch.full((10, 16), -0.5))
    assert torch.equal(samples.target, labels.long())


def test_split_is_90_10_without_overlap(small_mnist):
    task = MNIST(permuted=False)
    train, valid = (task.samples(split, seed=1) for split in ("train", "valid"))
    assert (len(train), len(valid)) == (36, 4)
    both = torch.cat([train.stored, valid.stored])
    assert len(both.unique(dim=0)) == 40
    assert not torch.equal(train.stored, task.samples("train", seed=2).stored)
    fewer = dataclasses.replace(task, train_samples=20, test_samples=3)
    assert [len(fewer.samples(split, seed=1)) for split in ("train", "valid", "test")] == [18, 2, 3]


def test_the_permutation_never_changes():
    """It is part of the task: another one would make results incomparable."""
    order = mnist.permutation()
    assert sorted(order.tolist()) == list(range(784))
    assert hashlib.sha256(str(order.tolist()).encode()).hexdigest()[:16] == "b6023378b7126662"


def test_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("MULTISTABLE_DATA")
    assert data_folder().name == "multistable"


def test_real_files():
    folder = data_folder() / "mnist"
    if any(idx.find(file, folder) is None for file in mnist.FILES.values()):
        pytest.skip("MULTISTABLE_DATA does not hold the MNIST files")
    images, labels = mnist.load("train")
    assert images.shape == (60_000, 784)
    assert labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert images.float().mean() / 255 == pytest.approx(0.1307, abs=1e-4)
    images, labels = mnist.load("test")
    assert images.shape == (10_000, 784)
    assert labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    sizes = [len(MNIST().samples(split, seed=0)) for split in ("train", "valid", "test")]
    assert sizes == [54_000, 6_000, 10_000]
