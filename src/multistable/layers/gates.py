"""Statistics of the gates of a trained layer: how often units write, how long they hold, which are dead."""

from dataclasses import dataclass

import torch
from torch import Tensor

from multistable.layers.bmru import BMRU
from multistable.layers.checks import check_input
from multistable.layers.sequences import Steps

__all__ = ["GateStatistics", "gate_statistics"]


@dataclass(frozen=True)
class GateStatistics:
    """Statistics of the units of one layer and direction over all valid timesteps of a batch, each ``[N]``."""

    layer: int
    reverse: bool
    write_rate: Tensor
    """Share of timesteps at which the unit writes."""
    hold_time: Tensor
    """Mean number of timesteps a state lasts: timesteps / writes, infinite without a write."""
    never: Tensor
    """Units that never write: they ignore the input."""
    always: Tensor
    """Units that write at every timestep: they remember nothing."""

    @property
    def dead(self) -> Tensor:
        """Units without memory: never or always writing."""
        return self.never | self.always

    def __str__(self) -> str:
        name = f"layer {self.layer}{' reverse' if self.reverse else ''}"
        never, always = int(self.never.sum()), int(self.always.sum())
        return f"{name}: writes at {float(self.write_rate.mean()):.1%} of steps, {never} units never, {always} always"


@torch.no_grad()
def gate_statistics(
    rnn: BMRU,
    input: Tensor,
    hx: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    lengths: Tensor | None = None,
) -> list[GateStatistics]:
    """Gate statistics of each layer and direction of ``rnn`` (dropout off), forward before reverse.

    ``input`` is batched, ``[T, B, D]`` or ``[B, T, D]`` as ``rnn`` expects it; ``hx``, ``reset`` and ``lengths`` as in
    a call. No gate reads its own state, but the gates of the second layer read the states of the first.

    >>> rnn = BMRU(3, 8)
    >>> [layer] = gate_statistics(rnn, torch.randn(100, 4, 3))
    >>> layer.write_rate.shape
    torch.Size([8])
    """
    _check_arguments(rnn, input)
    check_input(rnn, "input", input)
    steps = Steps.of(input, rnn.batch_first, reset, lengths)
    h0 = rnn.initial_states(input, steps.B, hx)
    valid = torch.ones_like(input[..., :1], dtype=torch.bool) if steps.valid is None else steps.valid
    count = int(valid.sum())
    if count == 0:
        raise ValueError("input has no valid timestep")
    x, statistics = input, list[GateStatistics]()
    for layer in range(rnn.num_layers):
        outputs: list[Tensor] = []
        for reverse in rnn.directions:
            cand, beta = rnn.project(x, layer, reverse).chunk(2, dim=-1)
            writes = (valid & ~(cand.abs() < beta.abs())).sum(dim=(0, 1))  # NaN writes
            outputs.append(rnn.scan_layer(x, layer, reverse, h0[len(statistics)], steps)[0])
            statistics.append(
                GateStatistics(layer, reverse, writes / count, count / writes, writes == 0, writes == count)
            )
        x = torch.cat(outputs, dim=-1)
    return statistics


def _check_arguments(rnn: object, input: object) -> None:
    if not isinstance(rnn, BMRU):
        raise TypeError(f"rnn must be a BMRU, such as hybrid.bmru[0] or stack.blocks[0].cell, got {type(rnn).__name__}")
    if not isinstance(input, Tensor) or input.ndim != 3:
        got = list(input.shape) if isinstance(input, Tensor) else type(input).__name__
        raise ValueError(f"input must be a batch, [T, B, D] or [B, T, D], got {got}")
