# %% [markdown]
# # Train on your own data
#
# Many data sets are sequences of different lengths with a label each. This tutorial goes from a list of arrays to a
# saved model. Replace `records` with your own list; the rest stays the same.

# %%
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from multistable import ModelConfig, SequenceModel, build_model

torch.manual_seed(0)
torch.set_num_threads(1)  # the tensors are small: more threads would only wait for each other
random = np.random.default_rng(0)

# %% [markdown]
# ## The data
#
# The example is a made-up machine with two sensors. A fault causes one spike in the first sensor, up or down, at a
# random time; the rest is noise and slow drift. The label is the direction of the spike.


# %%
def record() -> tuple[np.ndarray, int]:
    T = int(random.integers(40, 120))
    x = np.stack([0.3 * random.standard_normal(T), np.cumsum(0.05 * random.standard_normal(T))], axis=1)
    at, label = int(random.integers(5, T // 2)), int(random.integers(2))
    x[at, 0] += 3.0 if label else -3.0
    return x.astype(np.float32), label


records = [record() for _ in range(1_200)]
train_records, test_records = records[:1_000], records[1_000:]
print(len(records), "records, the first of shape", records[0][0].shape)

# %% [markdown]
# ## Batches
#
# Pad on the right and pass the lengths. Padding never changes the state.


# %%
def collate(chosen: list[tuple[np.ndarray, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = pad_sequence([torch.from_numpy(each) for each, _ in chosen], batch_first=True)
    lengths = torch.tensor([len(each) for each, _ in chosen])
    return x, lengths, torch.tensor([label for _, label in chosen])


loader = torch.utils.data.DataLoader(train_records, batch_size=64, shuffle=True, collate_fn=collate)

# %% [markdown]
# ## A model
#
# `SequenceModel` is the paper's network: an encoder, blocks around recurrent layers, and two fully connected layers.
# `hybrid` has bistable and linear units side by side, the safe choice if you do not know which kind of memory you need.
# `beta_bias` raises the thresholds of the bistable units, so that they start by holding their state. With 0, the
# paper's initialisation, this model does not learn the task.

# %%
config = ModelConfig(cells=("hybrid",), d_input=2, d_output=2, d_model=32, d_state=32, beta_bias=2.0)
model = build_model(config)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")


@torch.no_grad()
def accuracy(model: SequenceModel) -> float:
    model.eval()
    x, lengths, labels = collate(test_records)
    logits, _ = model(x, lengths=lengths)
    return float((logits.argmax(-1) == labels).float().mean())


# %% [markdown]
# ## Training
#
# Train as usual: AdamW, cross entropy, a few epochs.

# %%
optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
for epoch in range(6):
    model.train()
    for x, lengths, labels in loader:
        logits, _ = model(x, lengths=lengths)
        loss = F.cross_entropy(logits, labels)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}, test accuracy {accuracy(model):.1%}")

assert accuracy(model) > 0.9

# %% [markdown]
# ## Save and load
#
# A model is saved as two files, `config.json` and `model.safetensors`, without pickle. `model.push_to_hub("you/name")`
# uploads the same two.

# %%
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    again = SequenceModel.from_pretrained(folder)
x, lengths, _ = collate(test_records[:5])
print(torch.equal(model(x, lengths=lengths)[0], again(x, lengths=lengths)[0]))

# %% [markdown]
# If your model does not learn, read [Troubleshooting](troubleshooting.md). For runs that resume bit for bit, many seeds
# and several GPUs, see [Training](../training.md).
