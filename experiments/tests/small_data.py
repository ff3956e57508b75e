"""Data folders with a few images, in the formats of the real ones."""

import gzip
import hashlib
from pathlib import Path

import torch

from multistable_experiments.tasks import idx, mnist
from multistable_experiments.tasks.pathfinder import settings, task
from multistable_experiments.tasks.pathfinder.compact import Origin
from multistable_experiments.tasks.pathfinder.produce import CompactStore, produce


def idx_bytes(tensor):
    sizes = b"".join(size.to_bytes(4, "big") for size in tensor.shape)
    return bytes([0, 0, 8, tensor.ndim]) + sizes + bytes(tensor.flatten().tolist())


def described(name, content):
    packed = gzip.compress(content, mtime=0)
    return idx.IDXFile(name, hashlib.sha256(content).hexdigest(), hashlib.sha256(packed).hexdigest()), packed


def write_mnist(folder: Path) -> dict[tuple[str, str], idx.IDXFile]:
    """40 training and 10 test images of random pixels in ``folder/mnist``, and their checksums."""
    random = torch.Generator().manual_seed(0)
    files = {}
    (folder / "mnist").mkdir(parents=True)
    for (part, what), real in mnist.FILES.items():
        shape = ((40 if part == "train" else 10), *((28, 28) if what == "images" else ()))
        content = idx_bytes(torch.randint(0, 256 if what == "images" else 10, shape, generator=random).byte())
        files[part, what], packed = described(real.name, content)
        (folder / "mnist" / f"{real.name}.gz").write_bytes(packed)
    return files


def write_pathfinder(level: str, count: int) -> None:
    """Generated images where ``MULTISTABLE_DATA`` says."""
    list(produce(CompactStore(task.compact_file(level)), Origin(settings(level), seed=0, count=count)))


def forget_pathfinder() -> None:
    """Images are kept in memory; another test has another folder."""
    task._load.cache_clear()
    task._statistics.cache_clear()
