"""Cells: the recurrence with its input projection."""

from multistable.cells.bmru import BMRU, BMRUCell
from multistable.cells.hybrid import Hybrid
from multistable.cells.lru import LRU
from multistable.cells.recurrent import Recurrent

__all__ = ["BMRU", "BMRUCell", "CELLS", "Hybrid", "LRU", "Recurrent"]

CELLS: dict[str, type[Recurrent]] = {"bmru": BMRU, "lru": LRU, "hybrid": Hybrid}
"""Every cell by its name: a model is a tuple of such names, one per block."""
