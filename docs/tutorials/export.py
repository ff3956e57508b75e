# %% [markdown]
# # Export to ONNX and C
#
# Run a trained layer without PyTorch: in ONNX Runtime, and as a C file with two bits of state per unit, small enough
# for a microcontroller.

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
# `torch.onnx.export` works directly. Batch size and length stay dynamic.

# %%
rnn = BMRU(3, 16, batch_first=True).eval()
x = torch.randn(2, 100, 3)
names = {"input_names": ["input"], "output_names": ["output", "h_n"]}
program = torch.onnx.export(rnn, (x,), dynamic_shapes=({0: "B", 1: "T"},), verbose=False, **names)
file = program.model_proto.SerializeToString()  # or program.save("rnn.onnx")
print(f"{len(file):,} bytes")

# %% [markdown]
# Run it with another batch size and length. Where both round the gates alike, as here, the outputs are equal to
# the last bit, because a BMRU selects its state instead of computing it:

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
# `examples/flip_flops.py` trains eight units to imitate three flip-flops and writes them as one C file. This is the
# code of one step:

# %%
clone = Path(multistable.__file__).parents[2]
sys.path.append(str(clone / "examples"))
flip_flops = importlib.import_module("flip_flops")

model = flip_flops.train(steps=500)
source = flip_flops.to_c(model)
print(source[source.index("typedef") : source.index("void run")])

# %% [markdown]
# Compile it, compare it with PyTorch, and measure its size and speed:

# %%
if shutil.which("cc"):
    wrong, difference, size, seconds = flip_flops.compare(model, 100_000)
    print(f"{wrong} wrong answers of 300,000, within {difference:.0e} of PyTorch")
    print(f"{size} bytes of state, {seconds * 1e9:.0f} ns per timestep")
    assert size == 2

# %% [markdown]
# [Export](../export.md) lists all formats and what each layer supports.
