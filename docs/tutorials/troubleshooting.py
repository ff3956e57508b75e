# %% [markdown]
# # Troubleshooting: it does not learn
#
# A BMRU unit writes when its candidate is at least as large as its threshold, in absolute value. Two things can go
# wrong: units that write at every step remember nothing, and units that never write ignore the input. `gate_statistics`
# shows both.

# %%
import torch
import torch.nn.functional as F
from torch import nn

from multistable import BMRU, Stack, gate_statistics

torch.manual_seed(0)
torch.set_num_threads(1)  # the tensors are small: more threads would only wait for each other

# %% [markdown]
# ## The task
#
# After 200 steps, output the sign of the first input. A flag marks the first step; the rest is noise.


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
    """Train, and return the accuracy on the last ten batches."""
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
# With `thresholds="paper"` and no `beta_bias`, an untrained unit writes at every other step on average, so the first
# input is overwritten after a few steps.

# %%
low = BMRU(2, 32, batch_first=True, thresholds="paper")
[layer] = gate_statistics(low, batch()[0])
print(layer)
print(f"a state lasts {layer.hold_time.median():.1f} steps; 200 are needed")

# %% [markdown]
# ## Thresholds that are too high
#
# Nothing is ever written, so nothing is remembered. And the surrogate gradient of the gate is small so far from the
# threshold:

# %%
high = BMRU(2, 32, batch_first=True, thresholds="paper", beta_bias=20.0)
[layer] = gate_statistics(high, batch()[0])
print(layer, "- dead:", int(layer.dead.sum()), "of 32")

# %% [markdown]
# ## Thresholds that work
#
# The default, `thresholds="spread"`, has both kinds: the first units write often, the last ones mostly hold. Or use
# `thresholds="paper"` and set `beta_bias` slightly above the typical size of the candidates.

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
# ## Checklist
#
# Work through these points in order:
#
# 1. *Does a `Stack("hybrid", ...)` learn the task?* If only the hybrid does, the task needs more than stored signs:
#    keep the hybrid.
# 2. *Look at the write rates before training.* If all are near 1, or all are 0, change `beta_bias`, or scale the input
#    to variance 1.
# 3. *Look at them again after training.* Units that always write store nothing; units that never write ignore the
#    input.
# 4. *Does the input show when to write?* A gate reads only the current input of its layer, so that input must contain a
#    flag, a position or a larger value.
# 5. *Is the learning rate too high?* One update can push a threshold below the noise, and then nothing is held. Keep
#    the weights that are best on validation data.
# 6. *Is the loss NaN?* A NaN is always written to the state, so it stays visible: look for it in the input and weights.

# %%
stack = Stack("hybrid", 2, 32, batch_first=True)
score = train(Model(stack))
print(f"Stack('hybrid'): accuracy {score:.0%}")

# %% [markdown]
# The gates of a `Stack` read what its block hands on, which a hook can catch. The BMRU of a `Hybrid` is `cell.bmru[0]`;
# in a `Stack("bmru", ...)` it is `cell` itself.


# %%
def show(cell: nn.Module, args: tuple) -> None:
    print(gate_statistics(cell.bmru[0], args[0])[0])


hook = stack.blocks[0].cell.register_forward_pre_hook(show)
stack(batch()[0])
hook.remove()

# %% [markdown]
# [Defaults](../defaults.md) has measurements of the default thresholds.
