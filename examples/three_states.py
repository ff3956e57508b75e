"""A custom field: units with three stable states learn to hold one of three symbols forever.

A sequence shows a symbol (one-hot) at its first step, then noise, which the units must learn to ignore. They are
trained on sequences of 10 steps and tested at every step of sequences of 100,000. They have no bias, because a bias
beyond the folds (here 0.25) keeps a unit on one branch: two of four seeds learn with a bias, all four without.

    python examples/three_states.py     (half a minute on one core)
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable import MRU
from multistable.dynamics import Field


def staircase(h: Tensor, x: Tensor) -> Tensor:
    """An increasing map with three steps: for x = 0 its stable states are -1, 0 and 1."""
    return 0.5 * (torch.tanh(8 * (h + x - 0.5)) + torch.tanh(8 * (h + x + 0.5)))


class Memory(nn.Module):
    def __init__(self, units: int = 3) -> None:
        super().__init__()
        field = Field(staircase, bounds=(-1.01, 1.01))
        self.rnn = MRU(field, 4, units, bias=False, batch_first=True, max_branches=3, n_grid=32)
        self.out = nn.Linear(units, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0])


def sequences(symbols: Tensor, steps: int) -> Tensor:
    """``[B, T, 4]``: the symbol, one-hot, at the first step; uniform noise in (-1, 1) at all others."""
    x = torch.zeros(len(symbols), steps, 4)
    x[:, 0, :3] = F.one_hot(symbols, 3).float()
    x[:, 1:, 3] = 2 * torch.rand(len(symbols), steps - 1) - 1
    return x


def train(steps: int = 150, seed: int = 0) -> Memory:
    torch.manual_seed(seed)
    model = Memory()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    for step in range(steps):
        symbols = torch.randint(3, (24,))
        loss = F.cross_entropy(model(sequences(symbols, 10))[:, -1], symbols)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    return model


@torch.no_grad()
def count_errors(model: Memory, steps: int) -> int:
    """Count the wrong answers over all timesteps of one sequence per symbol."""
    symbols = torch.arange(3)
    return int((model(sequences(symbols, steps)).argmax(-1) != symbols[:, None]).sum())


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors are small: more threads would only wait for each other
    trained = train()
    print(f"wrong answers in 3 sequences of 100,000 steps: {count_errors(trained, 100_000)}")
