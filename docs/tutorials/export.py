# %% [markdown]
# # Export to ONNX and to a chip
#
# A trained layer outlives its training. This tutorial takes one to ONNX Runtime, and to a C file whose state is two
# bits per unit.

# %%
import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import multistable
from multistable import BMRU

torch.manual_seed(0)

# %% [markdown]
# ## ONNX
#
# `torch.onnx.export` works as it is. Batch and length stay open.

# %%
rnn = BMRU(3, 16, batch_first=True).eval()
x = torch.randn(2, 100, 3)
names = {"input_names": ["input"], "output_names": ["output", "h_n"]}
program = torch.onnx.export(rnn, (x,), dynamic_shapes=({0: "B", 1: "T"},), verbose=False, **names)
file = program.model_proto.SerializeToString()  # program.save("rnn.onnx") writes it
print(f"{len(file):,} bytes")

# %% [markdown]
# Another batch, another length, and the same states: a latch selects, so there is nothing to round.

# %%
session = onnxruntime.InferenceSession(file)
longer = torch.randn(5, 1_000, 3)
output, h_n = session.run(None, {"input": longer.numpy()})
with torch.no_grad():
    expected, last = rnn(longer)
print("largest difference:", float(np.abs(output - expected.numpy()).max()))
assert np.array_equal(output, expected.numpy())

# %% [markdown]
# ## C
#
# `examples/flip_flops.py` trains eight units on three flip-flops and writes them as one C file. Here is what one step
# of it does, and what it costs:

# %%
clone = Path(multistable.__file__).parents[2]
sys.path.append(str(clone / "examples"))
flip_flops = importlib.import_module("flip_flops")

model = flip_flops.train(steps=500)
source = flip_flops.to_c(model)
print(source[source.index("typedef") : source.index("void run")])

# %%
if shutil.which("cc"):
    wrong, difference, size, seconds = flip_flops.compare(model, 100_000)
    print(f"{wrong} wrong answers of 300,000, within {difference:.0e} of PyTorch")
    print(f"{size} bytes of state, {seconds * 1e9:.0f} ns per timestep")
    assert size == 2

# %% [markdown]
# All ways to export, and what each layer supports: [Export](../export.md).
