# %% [markdown]
# # Troubleshooting: it does not learn
#
# A unit of a BMRU writes where its candidate is at least as large as its threshold. Two things go wrong: units that
# write at every step remember nothing, and units that never write ignore the input. `gate_statistics` shows both.

# %%
import torch
import torch.nn.functional as F
from torch import nn

from multistable import BMRU, Stack, gate_statistics

torch.manual_seed(0)
torch.set_num_threads(1)  # tensors are small here: more threads would wait for each other

# %% [markdown]
# ## A task
#
# The sign of the first input must be given after 200 steps; a flag marks the first step, the rest is noise.


# %%
def batch(B: int = 64, T: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    clue = torch.randint(2, (B,))
    x = torch.stack([torch.randn(B, T), torch.zeros(B, T)], dim=-1)
    x[:, 0, 0], x[:, 0, 1] = 2.0 * clue - 1, 1.0
    return x, clue


class Model(nn.Module):
    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn, self.out = rnn, nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.rnn(x)[0][:, -1])


def train(model: nn.Module, steps: int = 150) -> float:
    """The accuracy of the last ten batches."""
    optimiser, right = torch.optim.Adam(model.parameters(), lr=5e-3), []
    for _ in range(steps):
        x, clue = batch()
        logits = model(x)
        optimiser.zero_grad()
        F.cross_entropy(logits, clue).backward()
        optimiser.step()
        right.append(float((logits.argmax(-1) == clue).float().mean()))
    return sum(right[-10:]) / 10


# %% [markdown]
# ## Thresholds that are too low
#
# `thresholds="paper"` with no offset: at the start a unit writes at every other step, and what it knew of the first
# one is gone after a few.

# %%
low = BMRU(2, 32, batch_first=True, thresholds="paper")
[layer] = gate_statistics(low, batch()[0])
print(layer)
print(f"a state lasts {layer.hold_time.median():.1f} steps; 200 are needed")

# %% [markdown]
# ## Thresholds that are too high
#
# Nothing is written, so nothing is known. The surrogate gradient is small that far from the threshold:

# %%
high = BMRU(2, 32, batch_first=True, thresholds="paper", beta_bias=20.0)
[layer] = gate_statistics(high, batch()[0])
print(layer, "- dead:", int(layer.dead.sum()), "of 32")

# %% [markdown]
# ## Between them
#
# The default, `thresholds="spread"`, has both kinds: first units that write often, last ones that hold. Or choose
# `beta_bias` a little above the usual size of candidates.

# %%
spread = BMRU(2, 32, batch_first=True)
held = BMRU(2, 32, batch_first=True, thresholds="paper", beta_bias=2.0)
for name, rnn in {"spread": spread, "beta_bias=2": held}.items():
    print(f"{name}: {gate_statistics(rnn, batch()[0])[0]}")

scores = {}
for name, rnn in {"too low": low, "too high": high, "spread": spread, "beta_bias=2": held}.items():
    scores[name] = train(Model(rnn))
    print(f"{name:>12}: accuracy {scores[name]:.0%} after 150 steps")
assert scores["beta_bias=2"] > 0.9
assert max(scores["too low"], scores["too high"]) < 0.7

# %% [markdown]
# ## In this order
#
# 1. *Does a `Stack("hybrid", ...)` learn it?* If so, the task needs more than a sign. Keep the hybrid.
# 2. *Look at write rates* before training. All near 1, or all 0: change `beta_bias`, or scale the input to variance
#    1.
# 3. *Look again after training.* Units that always write are wasted; units that never write ignore the input.
# 4. *Does the input say when to write?* Without a flag, a position or a change of size, no gate can know.
# 5. *Is the learning rate too high?* A threshold can fall below the noise in one update, and then nothing is held.
#    Keep the best weights on validation data.
# 6. *Is the loss NaN?* A NaN counts as a write and stays visible; it is not hidden by a gate.

# %%
score = train(Model(Stack("hybrid", 2, 32, batch_first=True)))
print(f"Stack('hybrid'): accuracy {score:.0%}")

# %% [markdown]
# More numbers on the default: [Defaults](../defaults.md).
