"""Recurrent layers whose memory does not fade: the bistable memory recurrent unit and its relatives."""

from multistable import dynamics, ops, surrogate
from multistable.cells import BMRU, MRU, BMRUCell, ClockedRNN, HysteresisMRU
from multistable.introspect import GateStatistics, gate_statistics

__all__ = [
    "BMRU",
    "BMRUCell",
    "ClockedRNN",
    "GateStatistics",
    "HysteresisMRU",
    "MRU",
    "dynamics",
    "gate_statistics",
    "ops",
    "surrogate",
]
__version__ = "0.1.0"
