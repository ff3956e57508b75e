# %% [markdown]
# # When does memory fade?
#
# A recurrent unit maps its state to the next one. If that map pulls all states together, the past is lost, sooner or
# later. If it has two places to rest, it can keep a bit forever. This tutorial looks at both.

# %%
import matplotlib.pyplot as plt
import torch

from multistable import BMRU, LRU, dynamics

torch.manual_seed(0)
plt.rcParams.update({"figure.figsize": (6.5, 3), "axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## A linear unit
#
# The state of an LRU shrinks by |λ| < 1 at every step without input. The slowest of its units decides how long
# something can be seen at all:

# %%
lru = LRU(1, 64, batch_first=True, r_max=0.99)
lam = lru.eigenvalues().detach()
radius = torch.complex(*lam.chunk(2)).abs()
print(f"largest |lambda| of 32 units: {radius.max():.4f}")
print(f"after 1,000 steps, {float(radius.max()) ** 1000:.1e} of a state is left")

# %% [markdown]
# ## A bistable unit
#
# `h = tanh(x + (beta + 1) h)` has one solution for beta <= 0, and two stable ones for beta > 0 and small x. The state
# before decides which one a unit takes. The ends of the branches are called folds:

# %%
x = torch.linspace(-3, 3, 601, dtype=torch.float64)
fig, axes = plt.subplots(1, 2, sharey=True)
for axis, beta in zip(axes, (-0.5, 1.5), strict=True):
    diagram = dynamics.bifurcation_diagram(dynamics.simplified_brc(), x, torch.tensor(beta, dtype=torch.float64))
    for h, stable, style in ((diagram.h, True, "C0."), (diagram.h, False, "C3.")):
        shown = torch.where(diagram.stable == stable, h, torch.nan)
        axis.plot(x, shown, style, markersize=1.5)
    axis.set(title=f"beta = {beta}", xlabel="input x")
axes[0].set_ylabel("state h")
fig.tight_layout()

# %% [markdown]
# Blue: stable, red: unstable. Left, the input alone decides. Right, between the folds, the past does. The
# [explorer](../explorer.md) lets you drag through this picture.
#
# ## What training sees
#
# A memory that fades has a gradient that fades. Compare the gradient of the last state with respect to the first
# input, over lengths. In the BMRU, only the first step is strong enough to write; every later one keeps.


# %%
def gradient(rnn: torch.nn.Module, T: int) -> float:
    x = torch.zeros(1, T, 1)
    x[0, 0] = 2.0
    x.requires_grad_()
    output, _ = rnn(x)
    output[0, -1].sum().backward()
    return float(x.grad[0, 0].abs())


bmru = BMRU(1, 64, batch_first=True, beta_bias=0.5)
with torch.no_grad():
    bmru.weight_ih_l0[64:] = 0  # thresholds that do not depend on the input
    bmru.bias_ih_l0[:64] = 0  # no candidate without input
lengths = [1, 10, 100, 1_000, 10_000]
rows = {"LRU": [gradient(lru, T) for T in lengths], "BMRU": [gradient(bmru, T) for T in lengths]}
for name, values in rows.items():
    print(f"{name:>5}: " + "  ".join(f"{value:.1e}" for value in values))
assert rows["BMRU"][1] == rows["BMRU"][-1] > 0
assert rows["LRU"][-1] < 1e-20

# %% [markdown]
# From step 10 on, the numbers of the BMRU are equal to the last bit. The state is held, and so is what is learned
# about it. [Why this can be computed in parallel](../theory.md).
