"""Cells: the recurrence with its input projection."""

from multistable.cells.bmru import BMRU, BMRUCell
from multistable.cells.clocked import ClockedRNN
from multistable.cells.hysteresis import HysteresisMRU
from multistable.cells.mru import MRU

__all__ = ["BMRU", "BMRUCell", "ClockedRNN", "HysteresisMRU", "MRU"]
