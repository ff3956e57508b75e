"""Recurrent layers whose memory does not fade: the bistable memory recurrent unit and its relatives."""

from multistable import ops, surrogate
from multistable.cells import BMRU, BRC, LRU, NBRC, BMRUCell, Hybrid, MinGRU
from multistable.introspect import GateStatistics, gate_statistics
from multistable.models import ModelConfig, SequenceModel, build_model

__all__ = [
    "BMRU",
    "BMRUCell",
    "BRC",
    "GateStatistics",
    "Hybrid",
    "LRU",
    "MinGRU",
    "ModelConfig",
    "NBRC",
    "SequenceModel",
    "build_model",
    "gate_statistics",
    "ops",
    "surrogate",
]
__version__ = "0.1.0"
