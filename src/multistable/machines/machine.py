"""A finite state machine with an output for every state: the target that a model learns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from multistable.ops import map_scan
from multistable.ops.maps import MOST_STATES

__all__ = ["Machine"]


@dataclass(frozen=True)
class Machine:
    """Q states, starting in state 0, A symbols, and an output for every state.

    >>> parity = Machine(((0, 1), (1, 0)), (0, 1))
    >>> parity.run(torch.tensor([[1, 0, 1, 1]]))
    tensor([[1, 1, 0, 1]])
    """

    table: tuple[tuple[int, ...], ...]
    """``table[q][a]``: the state after symbol a in state q."""
    output: tuple[int, ...]
    """The output in each state, numbered from 0."""

    def __post_init__(self) -> None:
        Q, A = len(self.table), len(self.table[0]) if self.table else 0
        if Q == 0 or A == 0 or any(len(row) != A for row in self.table):
            raise ValueError(f"table must have a row of equal length for every state, got {self.table!r}")
        if not all(0 <= q < Q for row in self.table for q in row):
            raise ValueError(f"table must have states from 0 to {Q - 1}, got {self.table!r}")
        if len(self.output) != Q or min(self.output) < 0:
            raise ValueError(f"output must have a number from 0 for each of {Q} states, got {self.output!r}")

    @property
    def n_states(self) -> int:
        return len(self.table)

    @property
    def n_symbols(self) -> int:
        return len(self.table[0])

    @property
    def n_outputs(self) -> int:
        return max(self.output) + 1

    def states(self, symbols: Tensor, start: Tensor | None = None) -> Tensor:
        """The states ``[B, T]``, int64, after each of ``symbols [B, T]``, from ``start [B]`` or state 0."""
        symbols = _as_index("symbols", symbols, ("B", "T"), self.n_symbols)
        table = torch.tensor(self.table, device=symbols.device)
        q = symbols.new_zeros(len(symbols)) if start is None else _as_index("start", start, ("B",), self.n_states)
        if self.n_states <= MOST_STATES:
            maps = table.T.byte()[symbols][:, :, None]  # [B, T, 1, Q]
            return map_scan(maps, q.byte()[:, None]).squeeze(-1).long()
        states = torch.empty_like(symbols)
        for t in range(symbols.shape[1]):
            q = table[q, symbols[:, t]]
            states[:, t] = q
        return states

    def run(self, symbols: Tensor) -> Tensor:
        """The outputs ``[B, T]`` after each of ``symbols [B, T]``."""
        return torch.tensor(self.output, device=symbols.device)[self.states(symbols)]


def _as_index(name: str, x: Tensor, axes: tuple[str, ...], count: int) -> Tensor:
    """``x`` as int64. torch would take bytes and booleans for a mask, and count negative numbers from the end."""
    if x.ndim != len(axes) or x.is_floating_point() or x.is_complex():
        raise ValueError(f"{name} must be integers [{', '.join(axes)}], got {x.dtype} {list(x.shape)}")
    x = x.long()
    if bool(((x < 0) | (x >= count)).any()):
        raise ValueError(f"{name} must lie between 0 and {count - 1}, got {int(x.amin())} to {int(x.amax())}")
    return x
