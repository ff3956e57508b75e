"""Layers that tests of every layer use: all registered names, and one of each kind made from a field."""

from multistable.layers import LAYERS

NAMES = (
    *LAYERS,
    "clocked:simplified_brc:3",
    "clocked:brc:2",
    "clocked:nbrc:2",
    "clocked:linear:2",
    "mru:simplified_brc",
    "fsm:3",
)
