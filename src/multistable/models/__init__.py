"""Models: a list of cell names becomes a network, ``build_model(ModelConfig(cells=("lru", "lru", "bmru"), ...))``."""

from multistable.models.build import build_model
from multistable.models.config import LRUConfig, ModelConfig, PositionConfig
from multistable.models.sequence import ModelState, SequenceModel

__all__ = ["LRUConfig", "ModelConfig", "ModelState", "PositionConfig", "SequenceModel", "build_model"]
