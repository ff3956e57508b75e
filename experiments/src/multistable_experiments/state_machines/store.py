"""Results of machines and of other layers: one JSON file each, with weights, the machine and the commit."""

import base64
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multistable.machines import Transducer
from multistable_experiments.files import checksum, read_json, stored_result, write_json
from multistable_experiments.machine import describe
from multistable_experiments.state_machines.rivals import Contest, contest
from multistable_experiments.state_machines.training import Training, build, train
from multistable_experiments.tasks.state_tracking import failing_length, machine

__all__ = [
    "LONG",
    "Item",
    "compute",
    "decode",
    "load",
    "load_model",
    "record",
    "record_contest",
    "record_long",
    "stored",
]

LONG = {"longest": 1_000_000, "sequences": 1_000}
"""The test of the goal, on stored models; its results are called ``long-<name>.json``."""
Item = Training | Contest


def stored(item: Item, folder: Path) -> dict[str, Any] | None:
    """The result of this name, None if there is none; raises if it is that of other settings."""
    entry, settings = ("contest", asdict(item)) if isinstance(item, Contest) else ("training", item.settings())
    return stored_result(folder / f"{item.name}.json", entry, settings)


def record(
    training: Training,
    folder: Path,
    longest: int = 100_000,
    sequences: int = 8,
    about: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Train, certify, test on long inputs, and write ``<folder>/<name>.json``, unless that is there; ``about`` is this
    machine."""
    path = folder / f"{training.name}.json"
    if (found := stored(training, folder)) is not None:
        size = found["test"]["longest"], found["test"]["sequences"]
        if size != (longest, sequences):
            raise ValueError(f"{path} was tested on {size[1]} sequences of {size[0]:,} steps: move it away")
        return found
    start = time.perf_counter()
    model, verdict, updates = train(training)
    seconds = time.perf_counter() - start
    result = {
        "training": training.settings(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "updates": updates,
        "seconds": round(seconds, 2),
        "verdict": asdict(verdict),
        "test": measure(model, training, longest, sequences),
        "weights": encode(model),
        "machine": about or describe(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, result)
    return result


def record_contest(item: Contest, folder: Path, about: dict[str, Any] | None = None) -> dict[str, Any]:
    """Train a layer, measure its failing length, and write ``<folder>/<name>.json``, unless that is there."""
    if (found := stored(item, folder)) is not None:
        return found
    result = {"contest": asdict(item), **contest(item), "machine": about or describe()}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{item.name}.json", result)
    return result


def record_long(name: str, folder: Path, device: str, about: dict[str, Any] | None = None) -> dict[str, Any]:
    """Test a stored model on 1,000 sequences of 1,000,000 steps and write ``<folder>/long-<name>.json``, unless that is
    there."""
    path, result = folder / f"long-{name}.json", read_json(folder / f"{name}.json")
    settings = {"name": name, "weights": checksum(result["weights"])}
    if (found := stored_result(path, "model", settings)) is not None:
        return found
    start = time.perf_counter()
    test = measure(load_model(result), Training(**result["training"]), **LONG, device=device)
    seconds = round(time.perf_counter() - start, 2)
    long = {"model": settings, "test": test, "seconds": seconds, "machine": (about or describe()) | {"device": device}}
    write_json(path, long)
    return long


def measure(model: nn.Module, training: Training, longest: int, sequences: int, device: str = "cpu") -> dict[str, Any]:
    """The size of a test, and the length at which the model fails it."""
    failed = failing_length(
        model.to(device), machine(training.machine), longest=longest, sequences=sequences, seed=training.seed,
        idle=training.idle, idle_symbols=training.idle_symbols, device=device,
    )  # fmt: skip
    return {"longest": longest, "sequences": sequences, "failing_length": failed}


def compute(item: Item, folder: Path, about: dict[str, Any]) -> None:
    """Compute and store one item."""
    if isinstance(item, Contest):
        record_contest(item, folder, about)
    else:
        record(item, folder, about=about)


def load(folder: Path, pattern: str = "*.json") -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and results, sorted by name."""
    for path in sorted(folder.glob(pattern)):
        yield path.stem, read_json(path)


def load_model(result: dict[str, Any]) -> Transducer:
    """The trained machine of a result."""
    model = build(Training(**result["training"]))
    model.load_state_dict({name: decode(*stored) for name, stored in result["weights"].items()})
    return model.eval()


def encode(model: nn.Module) -> dict[str, list[Any]]:
    """Shape and base64 of the float32 numbers of every parameter."""
    return {
        name: [list(value.shape), base64.b64encode(value.detach().cpu().contiguous().numpy().tobytes()).decode()]
        for name, value in model.state_dict().items()
    }


def decode(shape: list[int], text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype=np.float32).reshape(shape).copy())
