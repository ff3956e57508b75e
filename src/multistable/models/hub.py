"""Models on the Hugging Face Hub, through the mixin of ``huggingface_hub`` (extra ``hub``)."""

from pathlib import Path
from typing import Any

from huggingface_hub import ModelHubMixin, hf_hub_download

from multistable.models import files
from multistable.models.sequence import SequenceModel

__all__ = ["OnHub"]


class OnHub(ModelHubMixin, library_name="multistable", license="mit", tags=["multistable", "rnn"]):
    """What the mixin moves to and from the Hub: the two files of :mod:`multistable.models.files`, and a model card.

    ``PyTorchModelHubMixin`` would do for the weights, but falls back to pickle where no safetensors file is found.
    """

    def __init__(self, model: SequenceModel) -> None:
        self.model = model

    def _save_pretrained(self, save_directory: Path) -> None:
        files.save(self.model, save_directory)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> "OnHub":
        """``options`` are those of ``hf_hub_download``: revision, token, cache_dir, local_files_only and so on."""
        paths = [Path(hf_hub_download(model_id, name, **options)) for name in (files.CONFIG, files.WEIGHTS)]
        return cls(files.load(paths[0].parent))
