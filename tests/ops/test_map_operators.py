"""Scans over maps: every backend equals the definition, states bit for bit."""

import pytest
import torch

from backends import BACKENDS, FAST
from maps import STATES, map_inputs
from multistable.ops import latch_scan, map_adjoint, map_scan
from tolerances import assert_close

SHAPES = [(1, 1, 1), (2, 2, 3), (3, 13, 5), (2, 50, 7), (0, 3, 2), (2, 0, 3), (2, 3, 0)]


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("K", STATES)
def test_states_equal_the_definition(K, reverse, backend):
    for shape in SHAPES:
        for extra in (True, False):
            inputs = map_inputs(K, shape, start=extra, reset=extra) | {"reverse": reverse}
            expected = map_scan(**inputs, backend="reference")
            assert expected.dtype == torch.uint8
            assert torch.equal(map_scan(**inputs, backend=backend), expected)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
def test_adjoints_equal_the_definition(reverse, dtype, backend):
    for K in STATES:
        for shape in SHAPES:
            for reset in (True, False):
                inputs = map_inputs(K, shape, reset=reset) | {"reverse": reverse}
                inputs["grad"] = torch.randn(inputs["maps"].shape, dtype=dtype)
                del inputs["s0"]
                expected = map_adjoint(**inputs, backend="reference")
                for a, b in zip(map_adjoint(**inputs, backend=backend), expected, strict=True):
                    assert a.dtype == dtype
                    assert_close(a, b)


def test_several_threads(two_threads):
    inputs = map_inputs(4, (3, 600, 40))
    assert torch.equal(map_scan(**inputs, backend="cpu"), map_scan(**inputs, backend="reference"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_adjoint_is_the_loss_of_every_state(backend):
    """``lam_0[k]`` is the sum of the gradients on the path from state k: by running the machine from each state."""
    K, (B, T, N) = 5, (2, 9, 3)
    maps = map_inputs(K, (B, T, N))["maps"]
    grad = torch.randn(B, T, N, K, dtype=torch.float64)
    _, start = map_adjoint(maps, grad, backend=backend)
    for k in range(K):
        states = map_scan(maps, torch.full((B, N), k, dtype=torch.uint8), backend=backend)
        path = grad.gather(-1, states[..., None].long()).squeeze(-1).sum(1)
        assert_close(start[..., k], path)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keep_and_set_are_a_latch(backend):
    write, value = torch.rand(3, 40, 5) < 0.3, torch.randint(2, (3, 40, 5), dtype=torch.uint8)
    keep = torch.tensor([0, 1], dtype=torch.uint8)
    maps = torch.where(write[..., None], value[..., None], keep)
    assert torch.equal(map_scan(maps, backend=backend), latch_scan(write, value.float()).byte())


@pytest.mark.parametrize("backend", BACKENDS)
def test_toggling_counts_parity(backend):
    bits = torch.randint(2, (2, 100, 3), dtype=torch.uint8)
    maps = torch.stack([bits, 1 - bits], dim=-1)  # state 0 goes to bit, state 1 to the other
    assert torch.equal(map_scan(maps, backend=backend), bits.cumsum(1).remainder(2).byte())


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_outside_are_refused(backend):
    inputs = map_inputs(3)
    for name in ("maps", "s0"):
        wrong = inputs | {name: inputs[name].clone()}
        wrong[name].view(-1)[7] = 3
        with pytest.raises(ValueError, match=f"{name} must lie between 0 and K - 1 = 2, got 3"):
            map_scan(**wrong, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("K", [K for K in STATES if K > 1])
def test_every_map_is_checked(K, backend):
    """Also the places that no state reaches, first and last."""
    maps = torch.zeros(2, 13, 8, K, dtype=torch.uint8)
    for place in (K - 1, maps.numel() - 1):
        wrong = maps.clone()
        wrong.view(-1)[place] = K
        with pytest.raises(ValueError, match=f"maps must lie between 0 and K - 1 = {K - 1}, got {K}"):
            map_scan(wrong, backend=backend)


@pytest.mark.parametrize("K", STATES)
def test_maps_at_any_address_and_stride(K):
    inputs = map_inputs(K, (3, 40, 21))
    expected = map_scan(**inputs, backend="reference")
    odd = torch.empty(inputs["maps"].numel() + 1, dtype=torch.uint8)[1:].view_as(inputs["maps"])
    strided = inputs["maps"].transpose(0, 1).contiguous().transpose(0, 1)
    for maps in (odd.copy_(inputs["maps"]), strided):
        assert torch.equal(map_scan(**inputs | {"maps": maps}, backend="cpu"), expected)


def test_bad_arguments():
    maps, s0, reset = map_inputs(3).values()
    with pytest.raises(TypeError, match=r"maps must be uint8, got torch\.int64"):
        map_scan(maps.long())
    with pytest.raises(ValueError, match=r"maps must have shape \[B, T, N, K\] with K from 1 to 16, got"):
        map_scan(torch.zeros(1, 2, 3, 17, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"s0 must be uint8, got torch\.float32"):
        map_scan(maps, s0.float())
    with pytest.raises(ValueError, match=r"s0 must have shape \[2, 8\]"):
        map_scan(maps, s0[:1])
    with pytest.raises(ValueError, match=r"reset must have shape \[2, 13\]"):
        map_scan(maps, reset=reset[:, 1:])
    with pytest.raises(ValueError, match=r"grad must have shape \[2, 13, 8, 3\]"):
        map_adjoint(maps, torch.zeros(1))


def test_compiled_without_a_graph_break():
    torch.compiler.reset()
    inputs = map_inputs(5)
    compiled = torch.compile(map_scan, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(**inputs), map_scan(**inputs))


def test_vmap():
    maps = torch.stack([map_inputs(4)["maps"], map_inputs(3)["maps"][..., [0, 1, 2, 0]]])
    expected = torch.stack([map_scan(x) for x in maps])
    assert torch.equal(torch.vmap(map_scan)(maps), expected)
