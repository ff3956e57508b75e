"""``StepGraph`` replays what ``step`` computes."""

import pytest
import torch

from multistable import BMRU, LRU, Hybrid, ModelConfig, Stack, StepGraph, build_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
MODULES = {
    "BMRU": lambda: BMRU(3, 8, num_layers=2),
    "LRU": lambda: LRU(3, 8),
    "Hybrid": lambda: Hybrid(3, 8),
    "Stack": lambda: Stack("hybrid", 3, 8),
    "SequenceModel": lambda: build_model(
        ModelConfig(d_input=3, d_output=2, cells=("bmru", "lru"), d_model=8, d_state=8)
    ),
}


@pytest.mark.parametrize("name", MODULES)
@torch.no_grad()
def test_steps_are_those_of_the_module(name):
    torch.manual_seed(0)
    module = MODULES[name]().cuda()
    inputs = torch.randn(6, 5, 3, device="cuda")
    step, state = StepGraph(module, inputs[0]), None
    for x in inputs:
        y, state = module.step(x, state)
        assert torch.equal(step(x), y)
    step.reset()
    assert torch.equal(step(inputs[0]), module.step(inputs[0])[0])


def test_weights_may_change_in_place():
    module, x = BMRU(3, 8, device="cuda"), torch.randn(5, 3, device="cuda")
    step = StepGraph(module, x)
    with torch.no_grad():
        module.weight_ih_l0.neg_()
        assert torch.equal(step(x), module.step(x)[0])


@torch.no_grad()
def test_the_module_may_be_forgotten():
    module, x = BMRU(3, 8, device="cuda"), torch.randn(5, 3, device="cuda")
    expected, step = module.step(x)[0], StepGraph(module, x)
    del module
    taken = [torch.full((size,), torch.nan, device="cuda") for size in (48, 16, 8) for _ in range(100)]
    assert torch.equal(step(x), expected), len(taken)


@torch.no_grad()
def test_the_module_may_move():
    module, x = BMRU(3, 8, device="cuda"), torch.randn(5, 3, device="cuda")
    expected, step = module.step(x)[0], StepGraph(module, x)
    module.cpu()
    taken = [torch.full((size,), torch.nan, device="cuda") for size in (48, 16, 8) for _ in range(100)]
    assert torch.equal(step(x), expected), len(taken)


@torch.no_grad()
def test_autocast_casts_the_weights_at_every_step():
    module, x = BMRU(3, 8, device="cuda"), torch.randn(5, 3, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        step = StepGraph(module, x)
    module.weight_ih_l0.neg_()
    with torch.autocast("cuda", torch.bfloat16):
        expected = module.step(x)[0]
    y = step(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
@torch.no_grad()
def test_a_module_on_a_gpu_that_is_not_the_current_one():
    StepGraph(BMRU(3, 8, device="cuda:0"), torch.zeros(5, 3, device="cuda:0"))  # makes torch's stream for captures
    module, x = BMRU(3, 8, device="cuda:1"), torch.randn(5, 3, device="cuda:1")
    step = StepGraph(module, torch.zeros_like(x))
    assert torch.equal(step(x), module.step(x)[0])


def test_what_does_not_fit_is_refused():
    step = StepGraph(BMRU(3, 8, device="cuda"), torch.zeros(5, 3, device="cuda"))
    with pytest.raises(ValueError, match=r"x must be like the first one, torch.float32 of shape \[5, 3\]"):
        step(torch.zeros(1, 3, device="cuda"))
    with pytest.raises(ValueError, match=r"got torch.float64 of shape \[5, 3\]"):
        step(torch.zeros(5, 3, device="cuda", dtype=torch.float64))
    with pytest.raises(ValueError, match=r"state must be like the first one"):
        step.reset(torch.zeros(1, 1, 8, device="cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["auto", "portable"])
@torch.no_grad()
def test_steps_of_a_layer_are_its_scan(backend, dtype):
    torch.manual_seed(0)
    proj = torch.randn(7, 5, 3, device="cuda", dtype=dtype)
    layer = BMRU(3, 8, num_layers=2, backend=backend, device="cuda", dtype=dtype)
    h, last = layer(proj)
    state = None
    for x, expected in zip(proj, h, strict=True):
        y, state = layer.step(x, state)
        assert torch.equal(y, expected)
    assert torch.equal(state, last)
