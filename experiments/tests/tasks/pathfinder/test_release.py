"""The loader of the Long Range Arena's release."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from full_disk import limited_memory
from multistable_experiments.tasks.pathfinder.generator import draw
from multistable_experiments.tasks.pathfinder.release import read, release_folder
from multistable_experiments.tasks.pathfinder.settings import settings
from small_data import write_release


@pytest.fixture
def level(tmp_path, monkeypatch) -> Path:
    """The folder of the easy level, with batches of 20, 20 and 10 images."""
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path))
    return write_release("easy", 50, batch_size=20)


def test_read_returns_images_and_labels_in_order(level):
    parts = [draw(settings("easy"), 0, batch, count) for batch, count in ((0, 20), (1, 20), (2, 10))]
    for found, arrays in zip(read(release_folder(), "easy"), zip(*parts, strict=True), strict=True):
        assert np.array_equal(found, np.concatenate(arrays))
        assert found.dtype == np.uint8


def test_batches_are_ordered_by_number(level):
    """10 comes after 2."""
    expected = read(release_folder(), "easy")[0]
    for batch, number in ((2, 10), (1, 2)):
        (level / "metadata" / f"{batch}.npy").rename(level / "metadata" / f"{number}.npy")
    assert np.array_equal(read(release_folder(), "easy")[0], expected)


def test_the_empty_file_of_the_release_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path))
    root = write_release("easy", 180)
    (root / "imgs" / "0" / "sample_172.png").write_bytes(b"")
    images, labels = read(release_folder(), "easy")
    assert len(images) == len(labels) == 179


def flipped(content: bytes, i: int) -> bytes:
    return content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :]


DAMAGE = {
    "truncated image": ("imgs/1/sample_4.png", lambda path: path.write_bytes(path.read_bytes()[:60])),
    "a flipped bit": ("imgs/1/sample_4.png", lambda path: path.write_bytes(flipped(path.read_bytes(), -20))),
    "empty image": ("imgs/1/sample_4.png", lambda path: path.write_bytes(b"")),
    "missing image": ("imgs/1/sample_4.png", Path.unlink),
    "image of another size": ("imgs/1/sample_4.png", lambda path: Image.new("L", (8, 8)).save(path)),
    "missing column": ("metadata/1.npy", lambda path: path.write_text("imgs/1 sample_0.png 0\n")),
    "bad label": ("metadata/1.npy", lambda path: path.write_text(path.read_text().replace(" 1 1.0", " x 1.0"))),
    "a pipe in place of an image": ("imgs/1/sample_4.png", lambda path: (path.unlink(), os.mkfifo(path))),
    "another format": ("imgs/1/sample_4.png", lambda path: Image.new("L", (32, 32)).save(path, "GIF")),
    "PostScript": ("imgs/1/sample_4.png", lambda path: Image.new("L", (32, 32)).save(path, "EPS")),
    "a path upwards": ("metadata/1.npy", lambda path: path.write_text("imgs/../../imgs/1 sample_0.png 0 1\n")),
    "an absolute path": ("metadata/1.npy", lambda path: path.write_text("/etc passwd 0 1\n")),
    "a label of 2": ("metadata/1.npy", lambda path: path.write_text("imgs/1 sample_0.png 0 2\n")),
    "metadata that are not text": ("metadata/1.npy", lambda path: path.write_bytes(b"\x93NUMPY\xff\xfe")),
}


def test_only_the_parser_of_png_is_started(level, monkeypatch):
    """That of PostScript would start Ghostscript; what comes from anybody must not reach it."""
    Image.init()
    started = []
    for name, (parse, accepts) in list(Image.OPEN.items()):

        def record(*args, name=name, parse=parse):
            started.append(name)
            return parse(*args)

        monkeypatch.setitem(Image.OPEN, name, (record, accepts))
    Image.new("L", (32, 32)).save(level / "imgs/1/sample_4.png", "EPS")
    with pytest.raises(ValueError, match="cannot be read as an image"):
        read(release_folder(), "easy")
    assert set(started) == {"PNG"}


@pytest.mark.usefixtures("ten_seconds")
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_raises(level, kind):
    name, harm = DAMAGE[kind]
    harm(level / name)
    with pytest.raises(ValueError, match=f"^{level / name} "):
        read(release_folder(), "easy")


@pytest.mark.parametrize("side", [5_000, 12_000, 30_000, 2**31 - 1])
def test_a_bomb_is_refused_before_it_is_decoded(level, side):
    """A few kB that unpack to gigabytes; PIL itself warns of some sizes and refuses others."""
    header = struct.pack(">4sIIBBBBB", b"IHDR", side, side, 8, 0, 0, 0, 0)
    pixels = b"IDAT" + zlib.compress(bytes(1 << 20))
    path = level / "imgs/1/sample_4.png"
    parts = [struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in (header, pixels)]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    with limited_memory(1 << 26), pytest.raises(ValueError, match=f"^{path} cannot be read as an image"):
        read(release_folder(), "easy")


def test_only_numbered_files_are_metadata(level):
    expected = read(release_folder(), "easy")[0]
    os.mkfifo(level / "metadata" / "7.npy")
    (level / "metadata" / "notes.npy").write_text("imgs/1")
    assert np.array_equal(read(release_folder(), "easy")[0], expected)


def test_a_missing_level_raises(level):
    with pytest.raises(FileNotFoundError, match=r"curv_contour_length_14/metadata holds no metadata"):
        read(release_folder(), "hard")
    with pytest.raises(ValueError, match="level must be one of easy, intermediate, hard, got 'simple'"):
        read(release_folder(), "simple")
