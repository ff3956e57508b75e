"""Cells: the recurrence with its input projection."""

from multistable.cells.bmru import BMRU, BMRUCell
from multistable.cells.brc import BRC, NBRC
from multistable.cells.clocked import ClockedRNN
from multistable.cells.gated import GRU, LSTM
from multistable.cells.hybrid import Hybrid
from multistable.cells.hysteresis import HysteresisMRU
from multistable.cells.lru import LRU
from multistable.cells.mingru import MinGRU
from multistable.cells.mru import MRU
from multistable.cells.named import CELLS, find_cell
from multistable.cells.recurrent import Recurrent

__all__ = [
    "BMRU",
    "BMRUCell",
    "BRC",
    "CELLS",
    "ClockedRNN",
    "GRU",
    "Hybrid",
    "HysteresisMRU",
    "LRU",
    "LSTM",
    "MRU",
    "MinGRU",
    "NBRC",
    "Recurrent",
    "find_cell",
]
