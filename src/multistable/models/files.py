"""Models as files, ``config.json`` and ``model.safetensors`` in a folder, and on the Hugging Face Hub.

No pickle. Each file is written completely or not at all. The weights carry the configuration and a checksum, so loading
raises if the two files do not belong together or were damaged.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from multistable.models.atomic import write_atomically
from multistable.models.build import build_model
from multistable.models.config import ModelConfig
from multistable.models.sequence import SequenceModel
from multistable.models.tensors import import_extra, load_tensors, save_tensors

__all__ = ["download", "load", "save", "upload"]

CONFIG, WEIGHTS = "config.json", "model.safetensors"
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Exceptions raised by malformed JSON, or by JSON that holds something unexpected."""
MODEL_CARD = """\
---
library_name: multistable
tags: [multistable, rnn]
---
A model of the Python package multistable: `multistable.SequenceModel.from_pretrained("{repo_id}")`
"""


def save(model: SequenceModel, folder: str | Path) -> None:
    """Write ``config.json`` and ``model.safetensors``, replacing each only when the new one is complete."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config.to_dict()
    save_tensors(folder / WEIGHTS, model.state_dict(), {"config": config})
    write_atomically(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def load(folder: str | Path, device: torch.device | str = "cpu") -> SequenceModel:
    """Load the model that :func:`save` wrote, in the dtype it had and in evaluation mode.

    Raises ``FileNotFoundError`` or ``ValueError``, naming the file, if one is missing, damaged or of another model.
    """
    config_path, weights_path = Path(folder) / CONFIG, Path(folder) / WEIGHTS
    for path in (config_path, weights_path):
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist: a saved model is a folder with {CONFIG} and {WEIGHTS}")
    try:
        config = ModelConfig.from_dict(json.loads(config_path.read_text(encoding="utf-8")))
        with torch.device("meta"):  # neither memory nor random numbers for weights that are replaced at once
            model = build_model(config)
    except UNREADABLE as error:
        raise ValueError(f"{config_path} is not the configuration of a model: {error}") from error
    tensors, info = load_tensors(weights_path)
    if _stored_config(info, config) != config:
        raise ValueError(f"{weights_path} was saved with another configuration than the {CONFIG} beside it")
    try:
        model.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise ValueError(f"{weights_path} does not fit {config_path}: {error}") from error
    return model.to(device).eval()


def _stored_config(info: dict[str, Any], default: ModelConfig) -> ModelConfig | None:
    """The configuration beside the weights, where fields of later versions have their defaults; None if damaged."""
    if "config" not in info:
        return default
    try:
        return ModelConfig.from_dict(info["config"])
    except UNREADABLE:
        return None


def download(repo_id: str, **options: Any) -> Path:
    """Download both files from the Hub and return their folder; ``options`` are those of ``hf_hub_download``."""
    hub = import_extra("huggingface_hub", "hub")
    paths = [Path(hub.hf_hub_download(repo_id, name, **options)) for name in (CONFIG, WEIGHTS)]
    return paths[0].parent


def upload(
    model: SequenceModel, repo_id: str, *, private: bool | None = None, token: str | None = None, **options: Any
) -> str:
    """Upload both files and a model card in one commit, and return its address.

    ``private`` applies to a repository that does not exist yet; ``options`` are those of ``HfApi.upload_folder``.
    """
    api = import_extra("huggingface_hub", "hub").HfApi(token=token, library_name="multistable")
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    with TemporaryDirectory() as folder:
        save(model, folder)
        Path(folder, "README.md").write_text(MODEL_CARD.format(repo_id=repo_id), encoding="utf-8")
        return api.upload_folder(repo_id=repo_id, folder_path=folder, **options)
