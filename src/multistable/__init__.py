"""Recurrent layers whose memory does not fade: the bistable memory recurrent unit and its relatives."""

from multistable import ops, surrogate
from multistable.cells import BMRU, LRU, BMRUCell, Hybrid
from multistable.introspect import GateStatistics, gate_statistics
from multistable.models import ModelConfig, SequenceModel, build_model

__all__ = [
    "BMRU",
    "BMRUCell",
    "GateStatistics",
    "Hybrid",
    "LRU",
    "ModelConfig",
    "SequenceModel",
    "build_model",
    "gate_statistics",
    "ops",
    "surrogate",
]
__version__ = "0.1.0"
