# %% [markdown]
# # A machine that provably counts
#
# Does a model count, or does it only look like it up to the lengths that were tested? A layer of finite state
# machines has finitely many states, so the question has an answer. This tutorial trains a counter modulo 3 and proves
# that it is right for every input of every length.

# %%
import torch
import torch.nn.functional as F

from multistable.machines import Machine, Transducer, certify

torch.manual_seed(0)
torch.set_num_threads(1)  # tensors are small here: more threads would wait for each other

# %% [markdown]
# ## The target
#
# `table[q][a]` is the state after symbol a in state q: symbol 0 does nothing, 1 adds one, 2 adds two. The output is
# the state.

# %%
target = Machine(table=((0, 1, 2), (1, 2, 0), (2, 0, 1)), output=(0, 1, 2))
print(target.run(torch.tensor([[1, 1, 1, 2, 0, 2]])))

# %% [markdown]
# ## The model
#
# Four machines of three states whose input chooses their transitions, and a linear read-out. Untrained, it errs, and
# `certify` finds a shortest input that shows it:

# %%
model = Transducer(n_symbols=3, n_outputs=3, units=4, n_states=3)
verdict = certify(model, target)
print(verdict.right, verdict.word, verdict.reason)

# %% [markdown]
# ## Training
#
# On sequences of up to 64 symbols, until the proof succeeds. A refutation takes milliseconds, so it can be tried
# often.

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
# All pairs of a state of the model and a state of the target that some input can reach were walked through, and the
# output is right in each. The scores that decide are rounded; the verdict counts only decisions whose margin is
# larger than any rounding could be:

# %%
print(f"{verdict.pairs} pairs of states, smallest margin {verdict.margin:.0f} times the rounding")
symbols = torch.randint(3, (1, 100_000))
print("wrong answers in 100,000 steps:", int((model(symbols)[0].argmax(-1) != target.run(symbols)).sum()))

# %% [markdown]
# No unit of a gated linear recurrence with gates in [0, 1] can count like this: [theory](../theory.md) says why.
