"""The cells that every test of all cells takes: those of one word, and one of each kind that is made from a field."""

from multistable.layers import LAYERS

NAMES = (
    *LAYERS,
    "clocked:simplified_brc:3",
    "clocked:brc:2",
    "clocked:nbrc:2",
    "clocked:linear:2",
    "mru:simplified_brc",
)
