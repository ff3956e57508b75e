# %% [markdown]
# # A field of your own
#
# The memory units of this library follow one recipe: choose a map `h -> f(h, x)` of state and input, called a *field*,
# find its equilibria (`h = f(h, x)`), and let the previous state choose among the stable ones. The BMRU has two stable
# states. This tutorial builds a unit with three and trains it to hold one of three symbols.

# %%
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable import MRU
from multistable.dynamics import Field, bifurcation_diagram, equilibria

torch.manual_seed(0)
torch.set_num_threads(1)  # the tensors are small: more threads would only wait for each other

# %% [markdown]
# ## The field
#
# Take a map that increases in h and has three flat steps. It is an ordinary torch function; autograd computes its
# slope.


# %%
def staircase(h: Tensor, x: Tensor) -> Tensor:
    return 0.5 * (torch.tanh(8 * (h + x - 0.5)) + torch.tanh(8 * (h + x + 0.5)))


field = Field(staircase, bounds=(-1.01, 1.01))
found = equilibria(field, torch.tensor([0.0]))
print("equilibria at x = 0:", [round(float(h), 3) for h in found.h[0]])
print("stable:", found.stable[0].tolist())

# %% [markdown]
# At x = 0, three of the five equilibria are stable. Plotted against x, they form three stable branches (blue) that
# overlap around x = 0. Where branches overlap, the unit remembers.

# %%
x = torch.linspace(-1.2, 1.2, 481, dtype=torch.float64)
diagram = bifurcation_diagram(field, x)
fig, axis = plt.subplots(figsize=(6.5, 3))
for stable, style in ((True, "C0."), (False, "C3.")):
    axis.plot(x, torch.where(diagram.stable == stable, diagram.h, torch.nan), style, markersize=1.5)
axis.set(xlabel="input x", ylabel="state h")
axis.spines[["top", "right"]].set_visible(False)
fig.tight_layout()

# %% [markdown]
# ## The layer
#
# `MRU(field, ...)` has the interface of `nn.GRU`. It computes all timesteps in parallel: it solves for the branches of
# all steps at once, and then a parallel scan determines which branch each unit is on.


# %%
class Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = MRU(field, 4, 3, bias=False, batch_first=True, max_branches=3, n_grid=32)
        self.out = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0])


def sequences(symbols: Tensor, T: int) -> Tensor:
    """``[B, T, 4]``: the symbol, one-hot, at the first step; then noise."""
    x = torch.zeros(len(symbols), T, 4)
    x[:, 0, :3] = F.one_hot(symbols, 3).float()
    x[:, 1:, 3] = 2 * torch.rand(len(symbols), T - 1) - 1
    return x


model = Memory()
optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
for _ in range(75):
    symbols = torch.randint(3, (24,))
    loss = F.cross_entropy(model(sequences(symbols, 10))[:, -1], symbols)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
print(f"loss {loss.item():.4f} with 10 steps")

# %% [markdown]
# ## Test on sequences a thousand times as long

# %%
with torch.no_grad():
    symbols = torch.arange(3)
    wrong = int((model(sequences(symbols, 10_000)).argmax(-1) != symbols[:, None]).sum())
print(f"wrong answers in 3 sequences of 10,000 steps: {wrong}")
assert wrong == 0

# %% [markdown]
# [Theory](../theory.md) explains why this works, and which state machines a field can produce.
