"""Models as files: ``config.json`` and ``model.safetensors`` in a folder. No pickle, nothing half-written.

Each file is written beside its place and moved there when complete. The weights carry the configuration and a checksum
of their bytes, so files that do not belong together or were damaged on the way are found out when they are read.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multistable.files import UNREADABLE, read_json, split_safetensors, write_atomically
from multistable.models.build import build_model
from multistable.models.config import ModelConfig
from multistable.models.sequence import SequenceModel

__all__ = ["load", "save"]

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save(model: SequenceModel, folder: str | Path) -> None:
    """Write ``config.json`` and ``model.safetensors``; a model that was there stays whole until it is replaced."""
    safetensors = _safetensors()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    config = model.config.to_dict()
    _, numbers = split_safetensors(safetensors.save(tensors))
    # One entry, because safetensors writes several in random order, and the same model should give the same bytes.
    record = json.dumps({"config": config, "sha256": hashlib.sha256(numbers).hexdigest()})
    write_atomically(folder / WEIGHTS, safetensors.save(tensors, {"multistable": record}))
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
        return ModelConfig.from_dict(read_json(path))
    except UNREADABLE as error:
        raise ValueError(f"{path} is not the configuration of a model: {error}") from error


def _read_weights(path: Path, config: ModelConfig) -> dict[str, Tensor]:
    safetensors, data = _safetensors(), path.read_bytes()
    try:
        tensors = safetensors.load(data)
        metadata, numbers = split_safetensors(data)
        record = json.loads(metadata.get("multistable", "{}"))  # empty in files by other programs
        saved_config = ModelConfig.from_dict(record["config"]) if "config" in record else config
    except Exception as error:  # safetensors raises its own kinds for each way in which a file can be broken
        raise ValueError(f"{path} is cut off or not a safetensors file: {error}") from error
    if "sha256" in record and record["sha256"] != hashlib.sha256(numbers).hexdigest():
        raise ValueError(f"{path} is damaged: its bytes do not match the checksum that was stored with them")
    if saved_config != config:
        raise ValueError(f"{path} was saved with another configuration than the {CONFIG} beside it")
    return tensors


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("saving models needs safetensors: pip install 'multistable[experiments]'") from error
    return safetensors.torch
