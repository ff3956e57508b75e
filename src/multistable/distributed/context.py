"""The context in which inputs are pieces of one sequence: :func:`sequence_parallel`."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from multistable.distributed.collectives import SequencePieces
from multistable.distributed.exchange import Exchange
from multistable.ops import pieces

__all__ = ["cut", "sequence_parallel", "sum_gradients"]


@contextmanager
def sequence_parallel(group: Any = None) -> Generator[SequencePieces]:
    """Take every input in this context for this rank's piece of one sequence, cut along time in rank order.

    Args:
        group: a process group, a ``DeviceMesh`` of one dimension, such as ``mesh["sequence"]``, or None for all ranks.

    Every rank calls the same layers, :class:`~multistable.Stack` or :class:`~multistable.SequenceModel` with its own
    piece: input ``[B, T_r, D]``, where ``T_r`` may differ and may be 0, ``reset`` of these steps and ``lengths``, how
    many of them are valid. Sequences are right-padded as a whole: after a padded piece there are no valid steps. All
    ranks pass reset, or none does, and likewise lengths and the same initial state. :func:`cut` makes such pieces.
    Outputs are those of this piece; last states and pooled outputs are those of the whole sequence, on every rank.
    Batch norm counts all pieces. Given candidates and thresholds, latches and finite state machines have the same bits
    as in one process.

    Gradients are partial. The loss of the whole is the sum of the losses of the ranks, and a parameter's gradient the
    sum of the ranks' (:func:`sum_gradients`). So divide a loss that all ranks compute alike, from last states or a
    pooled output, by the number of ranks. The gradient of an initial state, which all ranks are given alike, is the
    sum of the ranks', too: that of the rank on which the scan starts, and zeros.

    Every rank must build the same graph and call backward, because the gradients are exchanged as well: the loss of
    a rank that has none is ``0 * output.sum()``. Call backward inside this context if blocks are checkpointed.

    BMRUs, LRUs, MinGRUs, counters, FSMs, hybrids, HysteresisMRUs and MRUs run on all ranks at once. Layers with an
    internal clock (ClockedRNN, BRC, NBRC) run on one rank after the other. torch's GRU and LSTM raise.

    Yields:
        the pieces, which count the bytes exchanged.
    """
    cut = SequencePieces(group)
    with pieces.use(cut):
        yield cut


def cut(x: Tensor, lengths: Tensor | None = None, *, group: Any = None, dim: int = 1) -> tuple[Tensor, Tensor | None]:
    """This rank's piece of ``x`` along ``dim``, and its number of valid steps if ``lengths`` of the whole are given.

    Pieces have equal lengths but for one step.
    """
    exchange = Exchange(group)
    T = x.shape[dim]
    start, end = (T * rank // exchange.size for rank in (exchange.rank, exchange.rank + 1))
    own = None if lengths is None else (lengths - start).clamp(0, end - start)
    return x.narrow(dim, start, end - start), own


def sum_gradients(module: nn.Module, group: Any = None) -> None:
    """Replace the gradient of every parameter by the sum of the ranks' gradients; None counts as zero."""
    exchange, parameters = Exchange(group), list(module.parameters())
    if not parameters:
        return
    own = torch.tensor([parameter.grad is not None for parameter in parameters], device=parameters[0].device)
    (have,) = exchange.gather("which parameters have gradients", own)
    for parameter, some in zip(parameters, have.any(dim=0), strict=True):
        if bool(some):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grad: Any = parameter.grad
            own = grad.to_local() if hasattr(grad, "to_local") else grad  # FSDP's has a part on each rank
            own.copy_(exchange.sum("the gradients of parameters", own))
