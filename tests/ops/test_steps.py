"""The lines of CUDA for single steps, compiled for the CPU as C++."""

import shutil
import subprocess

import numpy as np
import pytest
import torch

from multistable import LRU, MinGRU
from multistable.ops import reference, steps

MAIN = """
#include <cmath>
#include <cstdio>
%(code)s
int main() {
    float x[%(inputs)d];
    while (fread(x, sizeof(float), %(inputs)d, stdin) == %(inputs)d) {
        float y = %(name)s<float>(%(arguments)s);
        fwrite(&y, sizeof(float), 1, stdout);
    }
}
"""


@pytest.fixture
def run(tmp_path):
    """A step of each row of the inputs, by the compiled lines."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")

    def compute(name, *inputs):
        rows = np.stack(np.broadcast_arrays(*(x.numpy() for x in inputs)), axis=-1)
        arguments = ", ".join(f"x[{i}]" for i in range(len(inputs)))
        code = MAIN % {"code": steps.CODE[name], "name": name, "inputs": len(inputs), "arguments": arguments}
        (tmp_path / "step.cpp").write_text(code)
        program = str(tmp_path / "step")
        subprocess.run([compiler, "-O1", "-ffp-contract=off", "-o", program, program + ".cpp"], check=True)
        found = subprocess.run([program], input=rows.tobytes(), capture_output=True, check=True).stdout
        return torch.from_numpy(np.frombuffer(found, np.float32).reshape(rows.shape[:-1]).copy())

    return compute


def test_a_bmru_has_the_bits_of_the_definition(run):
    inf, nan = torch.inf, torch.nan
    values = torch.tensor([0.0, -0.0, 0.5, -0.5, 2.0, inf, -inf, nan])
    cand, beta, h = (x.flatten() for x in torch.meshgrid(values, values, values, indexing="ij"))
    alpha = torch.tensor([1.5, -2.0])[:, None]
    expected = reference.bmru_step(*torch.broadcast_tensors(cand, beta, alpha, h))
    found = run("bmru", cand, beta, alpha, h)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(7.0).view(torch.int32), expected.nan_to_num(7.0).view(torch.int32))


@torch.no_grad()
def test_an_lru_has_the_step_of_its_layer(run):
    torch.manual_seed(0)
    layer, x, h = LRU(3, 8), torch.randn(5, 3), torch.randn(5, 8)
    b, part = torch.nn.functional.linear(x, layer.weight_ih_l0, layer.bias_ih_l0), torch.tensor([[0.0], [1.0]])
    polar = layer.log_nu_l0, layer.log_theta_l0, layer.log_gamma_l0
    b, state = b.view(5, 2, 4), h.view(5, 2, 4)
    found = run("lru", *polar, b, state[:, :1], state[:, 1:], part).flatten(1)
    torch.testing.assert_close(found, layer.step(x, h[None])[0], rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_a_mingru_has_the_step_of_its_layer(run):
    torch.manual_seed(0)
    layer, x, h = MinGRU(3, 8), torch.randn(5, 3), torch.randn(5, 8)
    gate, cand = torch.nn.functional.linear(x, layer.weight_ih_l0, layer.bias_ih_l0).chunk(2, dim=-1)
    torch.testing.assert_close(run("mingru", gate, cand, h), layer.step(x, h[None])[0], rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_only_a_gpu_has_the_kernels():
    assert not steps.is_one_kernel(torch.zeros(3))
    assert not steps.is_one_kernel(torch.zeros(3, device="meta"))
