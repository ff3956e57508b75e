# %% [markdown]
# # Streaming and long sequences
#
# Some inputs never end, such as the signal of a microphone. This tutorial runs a layer step by step, in chunks, and
# over a sequence that does not fit into memory. Steps and chunks give the same bits as one call; the gradients agree up
# to rounding.

# %%
import time

import torch

from multistable import BMRU
from multistable.streamed import streamed

torch.manual_seed(0)
rnn = BMRU(8, 64, num_layers=2, batch_first=True, dtype=torch.float64)
x = torch.randn(1, 2_000, 8, dtype=torch.float64)

# %% [markdown]
# ## One step at a time
#
# `step` takes the state and returns the next one. The module stores none.

# %%
with torch.no_grad():
    whole, last = rnn(x)
    state, steps = torch.zeros(2, 1, 64, dtype=torch.float64), []
    for t in range(200):
        y, state = rnn.step(x[:, t], state)
        steps.append(y)
print(torch.equal(torch.stack(steps, dim=1), whole[:, :200]))

# %% [markdown]
# ## In chunks
#
# Pass the state of one chunk to the next. The states are the same wherever you cut, because a BMRU selects its state
# (old or new) and never computes with it.

# %%
with torch.no_grad():
    state, outputs = None, []
    for chunk in x.split(333, dim=1):
        y, state = rnn(chunk, state)
        outputs.append(y)
print(torch.equal(torch.cat(outputs, dim=1), whole), torch.equal(state, last))

# %% [markdown]
# The candidates and thresholds are ordinary matrix products. In float32, products of another shape may round
# differently and, rarely, change whether a unit writes. In float64, as here, that practically never happens.
#
# ## Gradients of a sequence that does not fit into memory
#
# `streamed` runs all chunks forward once and keeps two bits per unit and chunk. Then it runs the chunks again with
# gradients, from the last to the first. The result is the gradient of the whole sequence, and the working memory does
# not grow with its length. If the loss or the input uses other parameters, such as those of a read-out, pass all of
# them as `parameters`.

# %%
rnn = BMRU(8, 64, batch_first=True)
T, size = 200_000, 10_000


def piece(i: int) -> torch.Tensor:
    """Chunk i of the input, generated on demand; yours could read it from a disk."""
    return torch.randn(1, size, 8, generator=torch.Generator().manual_seed(i))


start = time.perf_counter()
result = streamed(rnn, piece, T // size, lambda output, i: output.square().mean() / (T // size))
print(f"loss {result.loss:.4f} over {T:,} steps in {time.perf_counter() - start:.1f} s")
print({name: tuple(p.grad.shape) for name, p in rnn.named_parameters()})

# %% [markdown]
# Compare the gradient with autograd on a short sequence:

# %%
rnn.zero_grad()
streamed(rnn, piece, 2, lambda output, i: output.square().sum())
ours = rnn.weight_ih_l0.grad.clone()
rnn.zero_grad()
rnn(torch.cat([piece(0), piece(1)], dim=1))[0].square().sum().backward()
error = (ours - rnn.weight_ih_l0.grad).abs().max() / ours.abs().max()
print(f"relative difference {error:.0e}")
assert error < 1e-4

# %% [markdown]
# To use several devices, [cut one sequence along time](../scale.md): a BMRU exchanges two bits per unit.
