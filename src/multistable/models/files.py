"""Models as files: ``config.json`` and ``model.safetensors`` in a folder. No pickle, nothing half-written.

Each file is written beside its place and moved there when complete. The weights carry the configuration and a checksum
of their bytes, so files that do not belong together or were damaged on the way are found out when they are read.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

from multistable.models.atomic import write_atomically
from multistable.models.build import build_model
from multistable.models.config import ModelConfig
from multistable.models.sequence import SequenceModel
from multistable.models.tensors import load_tensors, save_tensors

__all__ = ["load", "save"]

CONFIG, WEIGHTS = "config.json", "model.safetensors"
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Exceptions raised by malformed JSON, or by JSON that holds something unexpected."""


def save(model: SequenceModel, folder: str | Path) -> None:
    """Write ``config.json`` and ``model.safetensors``; a model that was there stays whole until it is replaced."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config.to_dict()
    save_tensors(folder / WEIGHTS, model.state_dict(), {"config": config})
    write_atomically(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def load(folder: str | Path, device: torch.device | str = "cpu") -> SequenceModel:
    """The model that :func:`save` wrote, in the dtype it had, in evaluation mode.

    A file that is missing, cut off, damaged or of another model is named in a ``ValueError`` or ``FileNotFoundError``.
    """
    config_path, weights_path = Path(folder) / CONFIG, Path(folder) / WEIGHTS
    for path in (config_path, weights_path):
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist: a saved model is a folder with {CONFIG} and {WEIGHTS}")
    config = _read_config(config_path)
    tensors = _read_weights(weights_path, config)
    try:
        with torch.device("meta"):  # neither memory nor random numbers are spent on weights that are replaced at once
            model = build_model(config)
    except UNREADABLE as error:
        raise ValueError(f"{config_path} is not the configuration of a model: {error}") from error
    try:
        model.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise ValueError(f"{weights_path} does not fit {config_path}: {error}") from error
    return model.to(device).eval()


def _read_config(path: Path) -> ModelConfig:
    try:
        return ModelConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except UNREADABLE as error:
        raise ValueError(f"{path} is not the configuration of a model: {error}") from error


def _read_weights(path: Path, config: ModelConfig) -> dict[str, Tensor]:
    tensors, info = load_tensors(path)
    if "config" in info and info["config"] != config.to_dict():
        raise ValueError(f"{path} was saved with another configuration than the {CONFIG} beside it")
    return tensors
