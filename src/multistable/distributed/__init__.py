"""Sequence parallelism: one sequence cut along time over the ranks of a process group.

Import it by name; ``import multistable`` does not. See :func:`sequence_parallel`.
"""

from multistable.distributed.collectives import SequencePieces
from multistable.distributed.context import cut, sequence_parallel, sum_gradients
from multistable.distributed.exchange import ExchangeError

__all__ = ["ExchangeError", "SequencePieces", "cut", "sequence_parallel", "sum_gradients"]
