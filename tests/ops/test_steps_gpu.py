"""Single steps on a GPU without gradients: one kernel after the product, with the values of the definition."""

import pytest
import torch
from torch.func import vmap

from multistable import BMRU, LRU, BMRUCell, Hybrid, MinGRU
from multistable.ops import reference, steps
from multistable.ops.steps import bmru_step

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""Products of 3 numbers, rounded to their dtype in another order."""


def mixed(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers among zeros, infinities and NaNs."""
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, -1.0], dtype=dtype, device="cuda")
    x = torch.randn(shape, device="cuda").to(dtype)
    return torch.where(torch.rand(shape, device="cuda") < 0.5, special[torch.randint(7, shape, device="cuda")], x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.no_grad()
def test_a_bmru_has_the_bits_of_the_definition(dtype):
    torch.manual_seed(0)
    proj, h = mixed((1000, 64), dtype), mixed((1000, 32), dtype)
    cand, beta = proj.chunk(2, dim=-1)  # not contiguous
    alpha = torch.randn(32, device="cuda").to(dtype)
    assert steps.is_one_kernel(cand, beta, alpha, h)
    found, expected = bmru_step(cand, beta, alpha, h), reference.bmru_step(cand, beta, alpha, h)
    assert found.dtype == dtype
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [BMRU, LRU, Hybrid, MinGRU])
@pytest.mark.parametrize("shape", [(5,), ()], ids=["batch", "one"])
@torch.no_grad()
def test_steps_are_those_with_gradients(kind, dtype, shape, monkeypatch):
    torch.manual_seed(0)
    layer = kind(3, 8, num_layers=2).to("cuda", dtype)
    x, state = torch.randn(*shape, 3).to("cuda", dtype), torch.randn(2, *shape, layer.state_size).to("cuda", dtype)
    launched = []
    kernel = steps._kernel
    monkeypatch.setattr(steps, "_kernel", lambda name: launched.append(name) or kernel(name))
    y, after = layer.step(x, state)
    kernels = {BMRU: 1, MinGRU: 1, LRU: dtype == torch.float32, Hybrid: 1 + (dtype == torch.float32)}
    assert len(launched) == 2 * kernels[kind]
    with torch.enable_grad():
        expected = layer.step(x, state)
    tolerance = 0 if kind is BMRU else TOLERANCE[dtype]
    for own, other in zip((y, after), expected, strict=True):
        torch.testing.assert_close(own, other.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [LRU, MinGRU])
@torch.no_grad()
def test_many_steps_are_the_scan(kind, dtype):
    """A coefficient that is rounded otherwise shows after a while: by 0.1 to 0.3 for an LRU in bfloat16."""
    torch.manual_seed(0)
    layer = (LRU(3, 64, r_min=0.9, r_max=0.999) if kind is LRU else MinGRU(3, 64)).to("cuda", dtype)
    x, state = torch.randn(500, 5, 3).to("cuda", dtype), None
    for now in x:
        y, state = layer.step(now, state)
    expected = layer(x)[0][-1].float()
    limit = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}[dtype]
    assert (y.float() - expected).norm() < limit * expected.norm()


@torch.no_grad()
def test_a_cell_has_the_step_of_its_layer():
    torch.manual_seed(0)
    cell, x, h = BMRUCell(3, 8, device="cuda"), torch.randn(5, 3, device="cuda"), torch.randn(5, 8, device="cuda")
    found = cell(x, h)
    with torch.enable_grad():
        assert torch.equal(found, cell(x, h))


@torch.no_grad()
def test_where_it_is_not_one_kernel():
    cand, beta, h = torch.randn(3, 5, 8, device="cuda").unbind(0)
    alpha = torch.ones(8, device="cuda")
    expected = reference.bmru_step(cand, beta, alpha, h)
    over = vmap(lambda c, b, s: bmru_step(c, b, alpha, s))(cand, beta, h)
    compiled = torch.compile(bmru_step, fullgraph=True)(cand, beta, alpha, h)
    wide = bmru_step(*(x.double() for x in (cand, beta, alpha, h)))
    for found in (over, compiled, wide.float()):
        assert torch.equal(found, expected)
    assert bmru_step(cand[:0], beta[:0], alpha, h[:0]).shape == (0, 8)
    with torch.autocast("cuda", torch.bfloat16):
        layer, x = LRU(3, 8, device="cuda"), torch.randn(5, 3, device="cuda")
        assert layer.step(x)[0].dtype == torch.bfloat16
