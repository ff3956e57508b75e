"""Data folders with a few images, in the original formats."""

import gzip
import hashlib
from pathlib import Path

import torch

from multistable_experiments.tasks.mnist import FILES
from multistable_experiments.tasks.pathfinder import generated, release, task
from multistable_experiments.tasks.pathfinder.generator import draw
from multistable_experiments.tasks.pathfinder.settings import settings


def idx_bytes(tensor: torch.Tensor) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in tensor.shape)
    return bytes([0, 0, 8, tensor.ndim]) + sizes + bytes(tensor.flatten().tolist())


def write_mnist(folder: Path) -> dict[str, str]:
    """Write 40 training and 10 test images of random pixels to ``folder/mnist``; return their checksums."""
    random = torch.Generator().manual_seed(0)
    checksums = {}
    (folder / "mnist").mkdir(parents=True)
    for name in FILES:
        shape = ((40 if name.startswith("train") else 10), *((28, 28) if "images" in name else ()))
        content = idx_bytes(torch.randint(0, 256 if "images" in name else 10, shape, generator=random).byte())
        checksums[name] = hashlib.sha256(content).hexdigest()
        (folder / "mnist" / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
    return checksums


def write_pathfinder(level: str, count: int) -> None:
    """Write generated images to the data folder."""
    list(generated.generate(generated.generated_file(level), level, count=count))


def write_release(level: str, count: int, batch_size: int = 1000) -> Path:
    """Write the images of seed 0 to the data folder in the release's format; return the level's folder."""
    from PIL import Image

    s = settings(level)
    root = release.release_folder() / s.folder
    (root / "metadata").mkdir(parents=True)
    for batch, start in enumerate(range(0, count, batch_size)):
        (root / "imgs" / str(batch)).mkdir(parents=True)
        lines = []
        images, labels = draw(s, 0, batch, min(batch_size, count - start))
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            Image.fromarray(image).save(root / "imgs" / str(batch) / f"sample_{i}.png")
            lines.append(f"imgs/{batch} sample_{i}.png {i} {label} 1.0 {s.contour_length} 2 2 0.5 1 1\n")
        (root / "metadata" / f"{batch}.npy").write_text("".join(lines))
    return root


def forget_pathfinder() -> None:
    """Clear the cache of images, since each test has its own folder."""
    task._load.cache_clear()
    task._statistics.cache_clear()
