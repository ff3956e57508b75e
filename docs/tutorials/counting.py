# %% [markdown]
# # A machine that provably counts
#
# Does a model really count, or is it only right up to the lengths that were tested? A layer of finite state machines
# has finitely many states, so this can be decided. This tutorial trains a counter modulo 3 and proves that it is right
# for every input of any length.

# %%
import torch
import torch.nn.functional as F

from multistable.machines import Machine, Transducer, certify

torch.manual_seed(0)
torch.set_num_threads(1)  # the tensors are small: more threads would only wait for each other

# %% [markdown]
# ## The target
#
# `table[q][a]` is the next state when symbol a is read in state q: symbol 0 adds nothing, 1 adds one, 2 adds two. The
# output is the state.

# %%
target = Machine(table=((0, 1, 2), (1, 2, 0), (2, 0, 1)), output=(0, 1, 2))
print(target.run(torch.tensor([[1, 1, 1, 2, 0, 2]])))

# %% [markdown]
# ## The model
#
# The model has four units and a linear read-out. Each unit is a machine with three states; the input chooses its
# transition at every step. The untrained model is wrong, and `certify` finds a shortest input that shows it:

# %%
model = Transducer(n_symbols=3, n_outputs=3, units=4, n_states=3)
verdict = certify(model, target)
print(verdict.right, verdict.word, verdict.reason)

# %% [markdown]
# ## Training
#
# Train on sequences of up to 64 symbols, until the proof succeeds. As long as it fails, `certify` takes milliseconds,
# so call it often.

# %%
optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
for update in range(1, 1_501):
    symbols = torch.randint(3, (64, int(torch.randint(1, 65, ()))))
    logits, _ = model(symbols)
    loss = F.cross_entropy(logits.flatten(0, 1), target.run(symbols).flatten())
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    if update % 50 == 0 and certify(model, target).right:
        break
verdict = certify(model, target)
print(f"after {update} updates: {verdict.reason}")
assert verdict.right

# %% [markdown]
# ## What was proven
#
# For each unit, `certify` has visited every pair of a state of the unit and a state of the target that some input can
# reach, and the output is right for every combination of these states. Scores are rounded, so an answer counts only if
# its margin is larger than any possible rounding error:

# %%
print(f"{verdict.pairs} pairs of states, smallest margin {verdict.margin:.0f} times the rounding")
symbols = torch.randint(3, (1, 100_000))
print("wrong answers in 100,000 steps:", int((model(symbols)[0].argmax(-1) != target.run(symbols)).sum()))

# %% [markdown]
# A unit of a gated linear recurrence with gates in [0, 1] cannot count like this: see [theory](../theory.md).
