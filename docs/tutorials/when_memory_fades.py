# %% [markdown]
# # When does memory fade?
#
# A recurrent unit maps its state to the next one. If this map pulls all states together, the past is lost sooner or
# later. If it has two stable states, it can keep a bit forever. This tutorial looks at both kinds.

# %%
import matplotlib.pyplot as plt
import torch

from multistable import BMRU, LRU, dynamics

torch.manual_seed(0)
plt.rcParams.update({"figure.figsize": (6.5, 3), "axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## A linear unit
#
# The linear recurrent unit (LRU) is `h_t = λ h_{t-1} + (input)` with a complex λ per unit, and |λ| < 1. Without input,
# its state shrinks by the factor |λ| at every step. The unit with the largest |λ| decides how long the layer remembers:

# %%
lru = LRU(1, 64, batch_first=True, r_max=0.99)
lam = lru.eigenvalues().detach()  # 32 real parts, then 32 imaginary parts
radius = torch.complex(*lam.chunk(2)).abs()
print(f"largest |lambda| of 32 units: {radius.max():.4f}")
print(f"after 1,000 steps, {float(radius.max()) ** 1000:.1e} of a state is left")

# %% [markdown]
# ## A bistable unit
#
# Now take a unit that iterates `h -> tanh(x + (beta + 1) h)` until it settles. It stops at a solution of
# `h = tanh(x + (beta + 1) h)`. For beta <= 0 there is one. For beta > 0 and small x there are two stable ones, and the
# previous state decides which one the unit takes. Plot the solutions against the input x:

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
# Blue: stable, red: unstable. Left, the input alone determines the state. Right, there are two stable branches; each
# ends at a *fold*, and between the folds the past decides. The [explorer](../explorer.md) lets you drag the input
# through this picture.
#
# ## Gradients
#
# If memory fades, so does its gradient. Compute the gradient of the last state with respect to the first input, for
# several lengths. The BMRU replaces the two branches by the constants `+alpha` and `-alpha`, and a threshold decides
# when it writes (see [From nn.GRU](from_gru.md)). Here, only the first input is large enough to write; all later steps
# keep the state.


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
# From length 10 on, the BMRU's gradients are equal to the last bit: it holds the state and its gradient.
# Next: [why this can be computed in parallel](../theory.md).
