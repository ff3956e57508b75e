"""Damage every kind of file that is read, byte by byte, and count what is refused.

    python tools/damage.py [--every 1]

Each file is cut at every length and gets a flipped bit at every byte (or every n-th of both). Reading it must raise one
of the expected errors, or return what the undamaged file holds: some bytes do not matter, such as a space in JSON.
"""

import argparse
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from multistable import ModelConfig, SequenceModel, build_model
from multistable_experiments.files import read_json, write_json
from multistable_experiments.tasks.pathfinder import generated, release
from multistable_experiments.tasks.pathfinder.settings import settings
from multistable_experiments.training import checkpoint

EXPECTED = (ValueError, OSError, checkpoint.CheckpointError)


def files(folder: Path) -> Iterator[tuple[Path, Callable[[], Any]]]:
    """A file of each kind, and how it is read."""
    torch.manual_seed(0)
    model = build_model(ModelConfig(("bmru",), 1, 1, d_model=2, d_state=2))
    model.save_pretrained(folder / "model")
    state = {name: x.tolist() for name, x in model.state_dict().items()}

    def read_model() -> Any:
        found = SequenceModel.from_pretrained(folder / "model")
        return found.config, {name: x.tolist() for name, x in found.state_dict().items()}

    yield folder / "model" / "config.json", read_model
    yield folder / "model" / "model.safetensors", read_model
    last = folder / "last.safetensors"
    checkpoint.save(last, model.state_dict(), {"run": {"seed": 0}, "epoch": 3})
    yield last, lambda: [{name: x.tolist() for name, x in part.items()} for part in checkpoint.load(last)[:1]]
    result = folder / "result.json"
    write_json(result, {"metrics": state, "history": list(range(50))})
    yield result, lambda: read_json(result)
    images = folder / "easy.npz"
    list(generated.generate(images, "easy", count=3))
    yield images, lambda: [np.asarray(x).tolist() for x in generated.read(images)]
    level = folder / "release" / settings("easy").folder
    (level / "imgs" / "0").mkdir(parents=True)
    (level / "metadata").mkdir()
    picture, metadata = level / "imgs" / "0" / "sample_0.png", level / "metadata" / "0.npy"
    Image.fromarray(generated.read(images).images[0]).save(picture)
    metadata.write_text("imgs/0 sample_0.png 0 1 1.0 6 2 2 0.5 1 1\n")
    for path in (picture, metadata):
        yield path, lambda: [x.tolist() for x in release.read(folder / "release", "easy")]


def damaged(content: bytes, every: int) -> Iterator[bytes]:
    for i in range(0, len(content), every):
        yield content[:i]
        flipped = bytearray(content)
        flipped[i] ^= 1 << random.randrange(8)
        yield bytes(flipped)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=int, default=1)
    every = parser.parse_args().every
    warnings.simplefilter("ignore")
    totals = [0, 0, 0]
    with tempfile.TemporaryDirectory(prefix="damage-") as folder:
        for path, read in files(Path(folder)):
            content, expected = path.read_bytes(), read()
            counts = [0, 0, 0]  # refused, unchanged, wrong
            for bad in damaged(content, every):
                path.write_bytes(bad)
                try:
                    counts[1 if read() == expected else 2] += 1
                except EXPECTED:
                    counts[0] += 1
            path.write_bytes(content)
            totals = [a + b for a, b in zip(totals, counts, strict=True)]
            refused, unchanged, wrong = counts
            print(f"{path.name:18} {refused:6} refused, {unchanged:4} without effect, {wrong:4} wrong", flush=True)
    print(f"{sum(totals)} damaged files: {totals[0]} refused, {totals[1]} without effect, {totals[2]} wrong")


if __name__ == "__main__":
    main()
