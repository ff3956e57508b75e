"""Cells: the recurrence with its input projection."""

from multistable.cells.bmru import BMRU, BMRUCell

__all__ = ["BMRU", "BMRUCell"]
