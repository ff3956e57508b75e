"""Recurrent layers whose memory does not fade: the bistable memory recurrent unit and its relatives."""

from multistable import dynamics, ops, surrogate
from multistable.layers import (
    BMRU,
    BRC,
    FSM,
    LRU,
    MRU,
    NBRC,
    BMRUCell,
    ClockedRNN,
    Counter,
    Hybrid,
    HysteresisMRU,
    MinGRU,
)
from multistable.layers.gates import GateStatistics, gate_statistics
from multistable.models import LRUConfig, ModelConfig, ModelState, PositionConfig, SequenceModel, build_model

__all__ = [
    "BMRU",
    "BMRUCell",
    "BRC",
    "ClockedRNN",
    "Counter",
    "FSM",
    "GateStatistics",
    "Hybrid",
    "HysteresisMRU",
    "LRU",
    "LRUConfig",
    "MRU",
    "MinGRU",
    "ModelConfig",
    "ModelState",
    "NBRC",
    "PositionConfig",
    "SequenceModel",
    "build_model",
    "dynamics",
    "gate_statistics",
    "ops",
    "surrogate",
]
__version__ = "0.1.0"
