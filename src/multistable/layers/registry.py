"""Layers by name: a model is a tuple of such names, one per block.

    bmru, lru, ...      one word for each layer of LAYERS
    clocked:FIELD:N     ClockedRNN with N iterations per timestep: clocked:brc:4
    fsm:K               FSM with K states per unit: fsm:4
    mru:FIELD           MRU with at most two stable branches, mru:FIELD:K with at most K: mru:simplified_brc

FIELD is a key of :data:`multistable.dynamics.FIELDS`; a program can add its own. The name determines the layer
completely, so a model's configuration needs nothing else.
"""

import re
from difflib import get_close_matches
from typing import Any

from multistable.dynamics.fields import FIELDS
from multistable.layers.base import Recurrent
from multistable.layers.bmru import BMRU
from multistable.layers.brc import BRC, NBRC
from multistable.layers.clocked import ClockedRNN
from multistable.layers.counter import Counter
from multistable.layers.fsm import FSM
from multistable.layers.hybrid import Hybrid
from multistable.layers.hysteresis import HysteresisMRU
from multistable.layers.lru import LRU
from multistable.layers.mingru import MinGRU
from multistable.layers.mru import MRU
from multistable.layers.torch_rnn import GRU, LSTM
from multistable.ops.maps import MOST_STATES

__all__ = ["LAYERS", "describe_names", "find_layer"]

LAYERS: dict[str, type[Recurrent]] = {
    "bmru": BMRU,
    "lru": LRU,
    "hybrid": Hybrid,
    "hysteresis": HysteresisMRU,
    "brc": BRC,
    "nbrc": NBRC,
    "mingru": MinGRU,
    "counter": Counter,
    "gru": GRU,
    "lstm": LSTM,
}
"""Every layer that needs only its sizes, by name."""


def find_layer(name: str, argument: str = "cells") -> tuple[type[Recurrent], dict[str, Any]]:
    """The class for a name, and the constructor arguments that the name fixes. Errors call the name ``argument``.

    >>> kind, options = find_layer("clocked:brc:4")
    >>> kind.__name__, options["n_clock"]
    ('ClockedRNN', 4)
    """
    if name in LAYERS:
        return LAYERS[name], {}
    match = re.fullmatch(r"fsm:([1-9]\d*)", str(name))
    if match is not None and int(match[1]) <= MOST_STATES:
        return FSM, {"n_states": int(match[1])}
    match = re.fullmatch(r"(mru|clocked):(\w+)(?::([1-9]\d*))?", str(name))
    if match is not None and match[2] in FIELDS:
        field, number = FIELDS[match[2]](), match[3]
        if match[1] == "mru" and int(number or 2) <= MOST_STATES:
            return MRU, {"field": field, "max_branches": int(number or 2)}
        if match[1] == "clocked" and number is not None:
            return ClockedRNN, {"field": field, "n_clock": int(number)}
    similar = get_close_matches(str(name).lower(), LAYERS, n=1)
    advice = f" (did you mean {similar[0]!r}?)" if similar else ""
    raise ValueError(f"{argument} must be {describe_names()}, got {name!r}{advice}")


def describe_names() -> str:
    """The valid layer names, for error messages."""
    return (
        f"names out of {', '.join(LAYERS)}, fsm:K (K states, at most {MOST_STATES}), clocked:FIELD:N (N iterations "
        f"per timestep), mru:FIELD or mru:FIELD:K (K branches, at most {MOST_STATES}) with FIELD out of "
        f"{', '.join(FIELDS)}"
    )
