"""Recurrent layers whose memory does not fade: the bistable memory recurrent unit and its relatives."""

from importlib.metadata import PackageNotFoundError, version

from multistable import dynamics, export, machines, ops, surrogate
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
    LikeLSTM,
    MinGRU,
)
from multistable.layers.gates import GateStatistics, gate_statistics
from multistable.models import (
    LRUConfig,
    ModelConfig,
    ModelState,
    PositionConfig,
    SequenceModel,
    Stack,
    StepGraph,
    build_model,
)

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
    "LikeLSTM",
    "MRU",
    "MinGRU",
    "ModelConfig",
    "ModelState",
    "NBRC",
    "PositionConfig",
    "SequenceModel",
    "Stack",
    "StepGraph",
    "build_model",
    "dynamics",
    "export",
    "gate_statistics",
    "machines",
    "ops",
    "surrogate",
]
export.register()
try:
    __version__ = version("multistable")
except PackageNotFoundError:  # a folder of sources on the path, not installed
    __version__ = "0+unknown"
