"""Layers: a recurrence with its input projection, called like ``torch.nn.GRU``."""

from multistable.layers.adapters import LikeLSTM
from multistable.layers.base import Recurrent
from multistable.layers.bmru import BMRU, BMRUCell
from multistable.layers.brc import BRC, NBRC
from multistable.layers.clocked import ClockedRNN
from multistable.layers.counter import Counter
from multistable.layers.fsm import FSM
from multistable.layers.hybrid import Hybrid
from multistable.layers.hysteresis import HysteresisMRU
from multistable.layers.lru import LRU
from multistable.layers.mingru import MinGRU
from multistable.layers.mru import MRU
from multistable.layers.registry import LAYERS, find_layer
from multistable.layers.torch_rnn import GRU, LSTM

__all__ = [
    "BMRU",
    "BMRUCell",
    "BRC",
    "LAYERS",
    "ClockedRNN",
    "Counter",
    "FSM",
    "GRU",
    "Hybrid",
    "HysteresisMRU",
    "LRU",
    "LSTM",
    "LikeLSTM",
    "MRU",
    "MinGRU",
    "NBRC",
    "Recurrent",
    "find_layer",
]
