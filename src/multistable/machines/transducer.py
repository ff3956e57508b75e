"""A model that reads symbols and answers at every step: machines and a linear read-out."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable.layers.fsm import FSM, Surrogate, Transitions

__all__ = ["Transducer"]


class Transducer(nn.Module):
    """``symbols [B, T]`` -> logits of the outputs ``[B, T, C]`` and the state: :class:`FSM` on one-hot symbols.

    Nothing stands between machines and read-out, so :func:`~multistable.machines.certify` can prove what it does.

    >>> model = Transducer(n_symbols=3, n_outputs=6, units=4, n_states=6)
    >>> logits, state = model(torch.tensor([[0, 2, 1]]))
    >>> logits.shape
    torch.Size([1, 3, 6])
    """

    def __init__(
        self,
        n_symbols: int,
        n_outputs: int,
        units: int = 4,
        n_states: int = 4,
        num_layers: int = 1,
        *,
        transitions: Transitions = "any",
        surrogate: Surrogate = "softmax",
        alpha_surr: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        size = units * n_states  # value vectors of n_states numbers: a linear read-out can tell all states apart
        self.rnn = FSM(
            n_symbols, size, num_layers, batch_first=True, n_states=n_states, value_size=n_states,
            transitions=transitions, surrogate=surrogate, alpha_surr=alpha_surr, dtype=dtype,
        )  # fmt: skip
        self.read_out = nn.Linear(size, n_outputs, dtype=dtype)

    def forward(self, symbols: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x = F.one_hot(symbols, self.rnn.input_size).to(self.read_out.weight.dtype)
        features, last = self.rnn(x, state)
        return self.read_out(features), last
