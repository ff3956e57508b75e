"""What the gates of a trained layer do: how often units write, how long they hold, which are dead."""

from dataclasses import dataclass

import torch
from torch import Tensor

from multistable.layers import BMRU, sequences

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
    """Units that never write: they pass nothing on, whatever the input."""
    always: Tensor
    """Units that write at every timestep: they remember nothing."""

    @property
    def dead(self) -> Tensor:
        """Units without memory: never or always writing."""
        return self.never | self.always

    def __str__(self) -> str:
        where = f"layer {self.layer}{' reverse' if self.reverse else ''}"
        never, always = int(self.never.sum()), int(self.always.sum())
        return f"{where}: writes at {float(self.write_rate.mean()):.1%} of steps, {never} units never, {always} always"


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

    ``input`` is batched, ``[T, B, D]`` or ``[B, T, D]`` as ``rnn`` wants it; ``hx``, ``reset`` and ``lengths`` as in a
    call. No gate looks at its own state, but those of a second layer look at what the first one holds.

    >>> rnn = BMRU(3, 8)
    >>> [layer] = gate_statistics(rnn, torch.randn(100, 4, 3))
    >>> layer.write_rate.shape
    torch.Size([8])
    """
    if not isinstance(rnn, BMRU):
        raise TypeError(f"rnn must be a BMRU, got {type(rnn).__name__}")
    if hx is not None and not isinstance(hx, Tensor):
        raise TypeError(f"hx must be one tensor, got {type(hx).__name__}")
    if not isinstance(input, Tensor) or input.ndim != 3:
        got = list(input.shape) if isinstance(input, Tensor) else type(input).__name__
        raise ValueError(f"input must be a batch, [T, B, D] or [B, T, D], got {got}")
    sequences.check_input(rnn, "input", input)
    steps = sequences.Steps.of(input, rnn.batch_first, reset, lengths)
    starts = iter(sequences.initial_states(rnn, input, steps.B, hx))
    count = input.shape[0] * input.shape[1] if steps.valid is None else int(steps.valid.sum())
    if count == 0:
        raise ValueError("input has no valid timestep")
    x, statistics = input, []
    for layer in range(rnn.num_layers):
        outputs = []
        for suffix in rnn.suffixes:
            cand, beta = rnn.project(x, layer, suffix, steps).chunk(2, dim=-1)
            writes = (~(cand.abs() < beta.abs())).sum(dim=(0, 1))  # NaN writes
            statistics.append(
                GateStatistics(layer, suffix != "", writes / count, count / writes, writes == 0, writes == count)
            )
            outputs.append(rnn.run(x, layer, suffix, next(starts), steps)[0])
        x = torch.cat(outputs, dim=-1)
    return statistics
