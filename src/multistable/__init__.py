"""Recurrent layers whose memory does not fade: the bistable memory recurrent unit and its relatives."""

from multistable import ops, surrogate
from multistable.cells import BMRU, BMRUCell
from multistable.introspect import GateStatistics, gate_statistics

__all__ = ["BMRU", "BMRUCell", "GateStatistics", "gate_statistics", "ops", "surrogate"]
__version__ = "0.1.0"
