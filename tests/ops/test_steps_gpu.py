"""Single steps on a GPU without gradients: one kernel after the product, with the values of the definition."""

import pytest
import torch
from torch.func import vmap

from multistable import BMRU, LRU, BMRUCell, Hybrid, MinGRU
from multistable.ops import reference, steps
from multistable.ops.steps import bmru_step
from tolerances import MANY_STEPS, STEP, assert_same_bits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LAYERS = {
    "BMRU": (BMRU, {}, 1),
    "LRU": (LRU, {"r_min": 0.9, "r_max": 0.999}, 1),
    "LRU with a bias": (LRU, {"bias": True}, 1),
    "MinGRU": (MinGRU, {}, 1),
    "Hybrid": (Hybrid, {"r_min": 0.9, "r_max": 0.999}, 2),
    "Hybrid of two widths": (Hybrid, {"lru_size": 2}, 2),
    "Hybrid with positions": (Hybrid, {"position_size": 1}, 2),
}
"""Layers with their options and the kernels of their step."""


def make(name, hidden_size, dtype, **options):
    kind, own, _ = LAYERS[name]
    return kind(3, hidden_size, **own, **options).to("cuda", dtype)


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
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("shape", [(5,), ()], ids=["batch", "one"])
@pytest.mark.filterwarnings("ignore:LRU")
@torch.no_grad()
def test_steps_are_those_with_gradients(name, dtype, num_layers, shape, monkeypatch):
    if num_layers == 2 and name.startswith("Hybrid") and dtype != torch.float32:
        pytest.skip("a bistable unit of the second layer may flip: what it reads is rounded otherwise")
    torch.manual_seed(0)
    layer = make(name, 8, dtype, num_layers=num_layers)
    x, state = torch.randn(*shape, 3).to("cuda", dtype), torch.randn(num_layers, *shape, 8).to("cuda", dtype)
    launched = []
    kernel = steps._kernel
    monkeypatch.setattr(steps, "_kernel", lambda *key: launched.append(key) or kernel(*key))
    y, after = layer.step(x, state)
    assert len(launched) == num_layers * LAYERS[name][2]
    with torch.enable_grad():
        expected = layer.step(x, state)
    tolerance = 0 if name == "BMRU" else STEP[dtype]
    for own, other in zip((y, after), expected, strict=True):
        torch.testing.assert_close(own, other.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_features_and_states_have_memory_of_their_own(name):
    layer, x = make(name, 8, torch.float32), torch.randn(5, 3, device="cuda")
    state = torch.randn(8, 5, device="cuda").T[None]  # not contiguous
    kept = state.clone()
    y, after = layer.step(x, state)
    assert len({each.untyped_storage().data_ptr() for each in (y, after, state)}) == 3
    assert torch.equal(y, after[0])
    assert torch.equal(state, kept)
    assert y.is_contiguous()
    assert after.is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_steps_are_the_scan(name, dtype):
    """States of a BMRU bit for bit. A coefficient that is rounded otherwise shows after a while, in the norm of an LRU.

    The products of a step and of a sequence may be rounded differently, which shows if a candidate is as large as its
    threshold; with small integers they are exact.
    """
    torch.manual_seed(0)
    layer = make(name, 64, dtype)
    bistable = layer.parts[0].size if layer.parts[0].name == "bmru" else 0
    x, state = torch.randint(-2, 3, (500, 5, 3)).to("cuda", dtype), None
    for parameter in (layer.bmru[0] if isinstance(layer, Hybrid) else layer).parameters() if bistable else ():
        parameter.copy_(torch.randint(-2, 3, parameter.shape))
    ys = []
    for now in x:
        y, state = layer.step(now, state)
        ys.append(y)
    (expected, last), found = layer(x), torch.stack(ys)
    assert_same_bits(found[..., :bistable], expected[..., :bistable])
    assert_same_bits(state[..., :bistable], last[..., :bistable])
    error = (found[-1, :, bistable:].float() - expected[-1, :, bistable:].float()).norm()
    assert error <= MANY_STEPS[dtype] * expected[-1, :, bistable:].float().norm()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.no_grad()
def test_an_lru_has_the_eigenvalues_of_the_scan(dtype):
    """Bit for bit: with h = 1 and no input a step returns them."""
    torch.manual_seed(0)
    layer = LRU(3, 512).to("cuda", dtype)
    state = torch.cat([torch.ones(256), torch.zeros(256)]).to("cuda", dtype)
    y, _ = layer.step(torch.zeros(3).to("cuda", dtype), state[None])
    assert_same_bits(y, layer.eigenvalues())


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
