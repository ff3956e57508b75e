"""Models as files, ``config.json`` and ``model.safetensors`` in a folder, and on the Hugging Face Hub.

No pickle. Each file is written completely or not at all. The weights carry the configuration and a checksum, so loading
raises if the two files do not belong together or were damaged. Files of strangers cost no more memory than they have
bytes, and a download stops at :data:`LARGEST` (docs/trust.md).
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from multistable.models.atomic import write_atomically
from multistable.models.build import build_model
from multistable.models.config import ModelConfig
from multistable.models.sequence import SequenceModel
from multistable.models.tensors import import_extra, load_tensors, save_tensors

__all__ = ["download", "from_tensors", "load", "save", "upload"]

CONFIG, WEIGHTS = "config.json", "model.safetensors"
LARGEST = {CONFIG: 1 << 20, WEIGHTS: 1 << 32}
"""The most bytes to download of each file, and of a configuration to read. The paper's largest model has 100 MB."""
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""Exceptions raised by malformed JSON, or by JSON that holds something unexpected."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
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
        if (size := config_path.stat().st_size) > LARGEST[CONFIG]:  # a file with holes may be larger than the disk
            raise ValueError(f"it has {size:,} bytes")
        config = ModelConfig.from_dict(json.loads(config_path.read_text(encoding="utf-8")))
    except UNREADABLE as error:
        raise ValueError(f"{config_path} is not the configuration of a model: {error}") from error
    tensors, info = load_tensors(weights_path)
    if _stored_config(info, config) != config:
        raise ValueError(f"{weights_path} was saved with another configuration than the {CONFIG} beside it")
    return from_tensors(config, tensors, f"{weights_path} does not fit {config_path}").to(device).eval()


def from_tensors(config: ModelConfig, tensors: dict[str, Tensor], mismatch: str) -> SequenceModel:
    """Build the model of ``config`` around these tensors: no other memory, no random numbers.

    Raise ``ValueError``, one sentence that begins with ``mismatch``, if they do not fit.
    """
    blocks = {name.split(".")[1] for name in tensors if name.startswith("blocks.")}
    if len(blocks) != len(config.cells):  # before building: a block takes 3 ms and 10 tensors
        raise ValueError(f"{mismatch}: it has {len(blocks)} blocks, expected {len(config.cells)}")
    try:
        with torch.device("meta"):
            model = build_model(config)
    except (RuntimeError, *UNREADABLE) as error:  # RuntimeError: sizes beyond 64 bits
        first = str(error).partition("\n")[0]  # torch adds many lines
        raise ValueError(f"{mismatch}: no model has this configuration: {first}") from error
    expected = model.state_dict()
    if different := sorted(expected.keys() ^ tensors.keys()):
        raise ValueError(f"{mismatch}: it differs in {', '.join(different[:3])}{', ...' if different[3:] else ''}")
    floats = {x.dtype for name, x in tensors.items() if expected[name].is_floating_point()}
    for name, x in tensors.items():
        wanted = expected[name]
        if x.shape != wanted.shape:
            raise ValueError(f"{mismatch}: {name} must have shape {list(wanted.shape)}, got {list(x.shape)}")
        if x.dtype not in (FLOATS if wanted.is_floating_point() else (wanted.dtype,)) or len(floats) > 1:
            raise ValueError(f"{mismatch}: its numbers must be floats of one dtype, got {name} in {x.dtype}")
    model.load_state_dict(tensors, assign=True)
    return model


def _stored_config(info: dict[str, Any], default: ModelConfig) -> ModelConfig | None:
    """The configuration beside the weights, where fields of later versions have their defaults; None if damaged."""
    if "config" not in info:
        return default
    try:
        return ModelConfig.from_dict(info["config"])
    except UNREADABLE:
        return None


def download(repo_id: str, **options: Any) -> Path:
    """Download both files from the Hub and return their folder; ``options`` are those of ``hf_hub_download``.

    Raises ``OSError`` if a file is larger than :data:`LARGEST`, whatever size the server names.
    """
    hub = import_extra("huggingface_hub", "hub")
    paths: list[Path] = []
    for name, most in LARGEST.items():
        try:
            paths.append(Path(hub.hf_hub_download(repo_id, name, **{"tqdm_class": _limited(most)} | options)))
        except (OSError, ValueError):
            raise
        except Exception as error:  # those of the HTTP library that this version of huggingface_hub uses
            raise OSError(f"{name} of {repo_id} could not be downloaded: {error}") from error
    return paths[0].parent


def _limited(most: int) -> Any:
    """The class of a progress bar that raises after ``most`` bytes: the only call that sees them arrive."""

    class Bar(import_extra("huggingface_hub.utils", "hub").tqdm):
        received = 0

        def update(self, n: float | None = 1) -> Any:
            self.received += n or 0
            if self.received > most:
                raise OSError(f"the file is larger than {most:,} bytes, the most that is downloaded")
            bar: Any = super()
            return bar.update(n)

    return Bar


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
