"""The lines of CUDA for single steps, compiled for the CPU as C++, and how they are launched."""

import shutil
import subprocess

import numpy as np
import pytest
import torch

from multistable import BMRU, LRU, Hybrid, MinGRU
from multistable.ops import reference, steps
from tolerances import STEP, assert_same_bits

HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *HALVES)
LAYERS = {
    "BMRU": (lambda: BMRU(3, 16), {"bmru"}),
    "LRU": (lambda: LRU(3, 16), {"lru"}),
    "LRU with a bias": (lambda: LRU(3, 16, bias=True), {"lru"}),
    "MinGRU": (lambda: MinGRU(3, 16), {"mingru"}),
    "Hybrid": (lambda: Hybrid(3, 16), {"lru", "hybrid"}),
    "Hybrid of two widths": (lambda: Hybrid(3, 16, lru_size=4), {"lru", "bmru"}),
    "Hybrid with positions": (lambda: Hybrid(3, 16, position_size=1), {"lru", "hybrid"}),
}
"""Layers and the kernels of their step."""
MAIN = """
#include <cmath>
#include <cstdio>
#include <cstring>
static float nearest(float x, unsigned bits) {  // even, if two are
    unsigned u;
    memcpy(&u, &x, 4);
    u = (u + (1u << (bits - 1)) - 1 + (u >> bits & 1)) >> bits << bits;
    memcpy(&x, &u, 4);
    return x;
}
namespace at {  // as torch defines them on a GPU
struct BFloat16 {
    float x;
    BFloat16(float value) : x(std::isfinite(value) ? nearest(value, 16) : value) {}
    operator float() const { return x; }
};
struct Half {
    float x;
    Half(float value) {
        float size = std::fabs(value);
        x = size < 0x1p-14f ? size + 0.5f - 0.5f : size < 65520 ? nearest(size, 13) : size * INFINITY;
        x = std::copysign(x, value);
    }
    operator float() const { return x; }
};
}
%(code)s
int main() {
    float x[%(inputs)d], y[2];
    while (fread(x, sizeof(float), %(inputs)d, stdin) == %(inputs)d) {
        %(name)s<float>(%(arguments)s, y[0], y[1]);
        fwrite(y, sizeof(float), 2, stdout);
    }
}
"""


@pytest.fixture
def run(tmp_path):
    """A step of each row of the inputs, by the compiled lines, in the place of a kernel."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")

    def compute(name, *inputs):
        dtype = inputs[0].dtype
        rows = np.stack(np.broadcast_arrays(*(x.float().numpy() for x in inputs)), axis=-1)
        arguments = ", ".join(f"x[{i}]" for i in range(len(inputs)))
        code = MAIN % {"code": steps.code(name, dtype), "name": name, "inputs": len(inputs), "arguments": arguments}
        (tmp_path / "step.cpp").write_text(code)
        program = str(tmp_path / "step")
        subprocess.run([compiler, "-O1", "-ffp-contract=off", "-o", program, program + ".cpp"], check=True)
        found = subprocess.run([program], input=rows.tobytes(), capture_output=True, check=True).stdout
        both = torch.from_numpy(np.frombuffer(found, np.float32).reshape(*rows.shape[:-1], 2).copy()).to(dtype)
        return tuple(x.clone() for x in both.unbind(-1))

    return compute


@pytest.fixture
def on_gpu(run, monkeypatch):
    """Layers step as on a GPU, by the compiled lines; the names of those that ran."""
    launched = []

    def kernel(name, dtype):
        return lambda *inputs: launched.append(name) or run(name, *inputs)

    monkeypatch.setattr(steps, "_kernel", kernel)
    for module in ("bmru", "lru", "mingru", "hybrid"):
        monkeypatch.setattr(f"multistable.layers.{module}.is_one_kernel", lambda *tensors: True)
    return launched


def test_a_bmru_has_the_bits_of_the_definition(run):
    inf, nan = torch.inf, torch.nan
    values = torch.tensor([0.0, -0.0, 0.5, -0.5, 2.0, inf, -inf, nan])
    cand, beta, h = (x.flatten() for x in torch.meshgrid(values, values, values, indexing="ij"))
    alpha = torch.tensor([1.5, -2.0])[:, None]
    expected = reference.bmru_step(*torch.broadcast_tensors(cand, beta, alpha, h))
    for found in run("bmru", cand, beta, alpha, h):
        assert_same_bits(found, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("shape", [(5,), ()], ids=["batch", "one"])
@torch.no_grad()
def test_layers_have_the_steps_of_torch(name, dtype, shape, on_gpu, monkeypatch):
    torch.manual_seed(0)
    make, kernels = LAYERS[name]
    layer = make().to(dtype)
    x, state = torch.randn(*shape, 3).to(dtype), torch.randn(16, *shape).to(dtype).movedim(0, -1)[None]
    y, after = layer.step(x, state)
    assert set(on_gpu) == kernels
    assert len(on_gpu) == len(kernels)
    assert y.untyped_storage().data_ptr() != after.untyped_storage().data_ptr()
    assert_same_bits(y, after[0])
    monkeypatch.undo()
    expected, _ = layer.step(x, state)
    torch.testing.assert_close(y, expected, rtol=STEP[dtype], atol=STEP[dtype])
    if (first := layer.parts[0]).name == "bmru":
        assert_same_bits(y[..., : first.size], expected[..., : first.size])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@torch.no_grad()
def test_an_lru_of_16_bits_has_the_eigenvalues_of_the_scan(dtype, run):
    """Bit for bit, but for units whose exponential or cosine is rounded otherwise in float32, too."""
    torch.manual_seed(0)
    layer = LRU(3, 4000).to(dtype)
    zero, one = torch.tensor([0.0, 1.0], dtype=dtype)
    polar = layer.log_nu_l0, layer.log_theta_l0, layer.log_gamma_l0
    found, _ = run("lru", *polar, zero, one, zero, steps._parts(dtype, zero.device))
    assert (found.flatten() != layer.eigenvalues()).float().mean() < 1e-2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["bmru", "lru", "mingru", "hybrid"])
def test_torch_finds_the_entry_of_the_lines(name, dtype):
    function = steps._kernel(name, dtype)
    assert (function.kernel_name, function.num_outputs) == (name, 2)


@torch.no_grad()
def test_only_a_gpu_has_the_kernels():
    assert not steps.is_one_kernel(torch.zeros(3))
    assert not steps.is_one_kernel(torch.zeros(3, device="meta"))
