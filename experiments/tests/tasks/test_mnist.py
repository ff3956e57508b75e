"""MNIST: plain and gzipped files, errors for damage, checked downloads, and the paper's inputs."""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import http.server
import re
import threading

import pytest
import torch

from multistable_experiments.tasks import MNIST, mnist
from multistable_experiments.tasks.folder import data_folder
from small_data import write_mnist

NAME = "t10k-images-idx3-ubyte"


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """A data folder with 40 training and 10 test images and matching checksums."""
    monkeypatch.setattr(mnist, "FILES", write_mnist(tmp_path))
    monkeypatch.setattr(mnist, "MIRRORS", ())
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path))
    mnist._load.cache_clear()
    return tmp_path


def test_plain_files_are_read_like_gzipped_ones(small_mnist):
    packed = mnist.load("test")
    for path in (small_mnist / "mnist").iterdir():
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    mnist._load.cache_clear()
    plain = mnist.load("test")
    assert all(torch.equal(a, b) for a, b in zip(plain, packed, strict=True))
    assert [x.shape for x in plain] == [(10, 784), (10,)]


DAMAGE = {
    "cut off": lambda content: content[:-4],
    "a flipped bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "empty": lambda content: b"",
    "another file": lambda content: b"<html>not found</html>",
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_damaged_file_raises(small_mnist, kind, packed):
    path = small_mnist / "mnist" / f"{NAME}.gz"
    content = DAMAGE[kind](gzip.decompress(path.read_bytes()))
    path.unlink()
    path = path if packed else path.with_suffix("")
    path.write_bytes(gzip.compress(content) if packed else content)
    message = f"{re.escape(str(path))} is damaged: its sha256 is .*, expected .*; remove it to download it again"
    with pytest.raises(mnist.DataError, match=message):
        mnist.load("test")


@pytest.mark.parametrize("cut", [3, 20, -4])
def test_truncated_gzip_raises(small_mnist, cut):
    path = small_mnist / "mnist" / f"{NAME}.gz"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(mnist.DataError, match=rf"{NAME}\.gz is damaged: not a whole gzip file"):
        mnist.load("test")


@pytest.fixture
def server(tmp_path):
    """Serve a local folder; yield the folder and its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words):
            pass

    folder = tmp_path / "served"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def test_download_uses_the_first_good_mirror(small_mnist, server, monkeypatch):
    folder, address = server
    path = small_mnist / "mnist" / f"{NAME}.gz"
    packed, expected = path.read_bytes(), mnist.load("test")[0]
    path.unlink()
    for name, content in (("cut", packed[:-3]), ("good", packed)):
        (folder / name).mkdir()
        (folder / name / path.name).write_bytes(content)
    monkeypatch.setattr(mnist, "MIRRORS", tuple(f"{address}/{name}/" for name in ("gone", "cut", "good")))
    mnist._load.cache_clear()
    assert torch.equal(mnist.load("test")[0], expected)
    assert path.read_bytes() == packed


def test_failed_download_leaves_nothing_behind(small_mnist, server, monkeypatch):
    folder, address = server
    path = small_mnist / "mnist" / f"{NAME}.gz"
    (folder / path.name).write_bytes(path.read_bytes()[:-3])
    path.unlink()
    before = sorted(path.parent.iterdir())
    monkeypatch.setattr(mnist, "MIRRORS", (f"{address}/", f"{address}/gone/"))
    with pytest.raises(mnist.DataError, match=r"could not be downloaded(.|\n)*MULTISTABLE_DATA(.|\n)*gzip(.|\n)*404"):
        mnist.load("test")
    assert sorted(path.parent.iterdir()) == before


def test_an_endless_download_is_refused(small_mnist, monkeypatch):
    """256 MiB stand for no end: whoever reads them all fills the memory, and the machine would stop other programs."""
    sent = []

    class Endless(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):  # the client hangs up
                for _ in range(1 << 12):
                    self.wfile.write(bytes(1 << 16))
                    sent.append(1 << 16)

        def log_message(self, *words):
            pass

    monkeypatch.setattr(mnist, "LARGEST", 1 << 20)
    (small_mnist / "mnist" / f"{NAME}.gz").unlink()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        monkeypatch.setattr(mnist, "MIRRORS", (f"http://127.0.0.1:{httpd.server_port}/",))
        with pytest.raises(mnist.DataError, match="could not be downloaded"):
            mnist.load("test")
        httpd.shutdown()
        thread.join()
    assert sum(sent) < 1 << 26, "more than 1 MiB and what the system buffers"


def test_a_bomb_is_not_unpacked_further_than_the_largest_file(monkeypatch):
    sizes, sha256 = [], hashlib.sha256
    monkeypatch.setattr(mnist, "LARGEST", 1 << 20)
    monkeypatch.setattr(hashlib, "sha256", lambda content: (sizes.append(len(content)), sha256(content))[1])
    with pytest.raises(mnist.DataError, match="its sha256 is"):
        mnist._unpack(NAME, gzip.compress(bytes(1 << 24)))
    assert sizes == [1 << 20]


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


@pytest.mark.parametrize("tail", ["random", "images"])
def test_tail_follows_the_image_and_does_not_depend_on_its_length(small_mnist, tail):
    short, long = (MNIST(black_pixels=n, tail=tail).samples("test", seed=0).stored for n in (16, 900))
    assert long.shape == (10, 1684)
    assert torch.equal(short, long[:, :800])
    assert torch.equal(long[:, :784], MNIST().samples("test", seed=0).stored)
    if tail == "images":
        assert torch.equal(long[:, 784:1568], long[:, :784].roll(-1, dims=0))
        assert torch.equal(long[:, 1568:], long[:, :116].roll(-2, dims=0))
    else:
        assert len(long[:, 784:].unique(dim=0)) == 10
        assert 100 < long[:, 784:].float().mean() < 155
        assert not torch.equal(short, MNIST(black_pixels=16, tail=tail).samples("test", seed=1).stored)


def test_training_pairs_images_with_tails_of_others(small_mnist):
    task = MNIST(black_pixels=16, tail="random")
    stored = task.samples("train", seed=0).stored
    augmented = task.augment(stored)
    assert torch.equal(augmented[:, :784], stored[:, :784])
    assert torch.equal(augmented[:, 784:], stored[:, 784:].roll(1, dims=0))
    black = MNIST(black_pixels=16).samples("train", seed=0).stored
    assert torch.equal(MNIST(black_pixels=16).augment(black), black)


def test_pixels_of_a_long_tail_come_in_pieces(small_mnist):
    images = MNIST().samples("test", seed=0).stored
    for kind in ("black", "random", "images"):
        tail = mnist.TailPixels(kind, images, torch.Generator().manual_seed(0))
        whole = tail(0, 3000)
        assert torch.equal(torch.cat([tail(0, 7), tail(7, 2999), tail(2999, 3000)], dim=1), whole)
        assert torch.equal(tail(5, 50, slice(0, 4)), whole[:4, 5:50])
        assert (whole == 0).all() == (kind == "black")


def test_unknown_tail_is_named():
    with pytest.raises(ValueError, match="tail must be one of black, random, images, got 'white'"):
        MNIST(black_pixels=16, tail="white")


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
    """It is part of the task: with another one, results would not be comparable."""
    order = mnist.permutation()
    assert sorted(order.tolist()) == list(range(784))
    assert hashlib.sha256(str(order.tolist()).encode()).hexdigest()[:16] == "b6023378b7126662"


def test_real_files():
    folder = data_folder() / "mnist"
    if not all((folder / name).is_file() or (folder / f"{name}.gz").is_file() for name in mnist.FILES):
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
