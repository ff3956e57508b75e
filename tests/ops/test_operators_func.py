"""``torch.func`` on scans and layers: ``grad``, ``vmap`` and ``jacrev`` match autograd and loops."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacrev, jvp, vmap

from backends import BACKENDS, FAST
from gradients import gradients, weights_like
from multistable import BMRU, LRU, MRU, BMRUCell, HysteresisMRU, surrogate
from multistable.dynamics import brc, simplified_brc
from multistable.ops import bmru_layer, bmru_scan, bmru_step, latch_scan, linear_scan
from nasty import bmru_inputs, latch_inputs
from tolerances import assert_close, assert_same_bits

every_backend = pytest.mark.parametrize("backend", BACKENDS)
SHAPE = 3, 7, 4


def linear_inputs():
    x = bmru_inputs(torch.float64, shape=SHAPE)
    return {"a": x["cand"], "b": x["beta"], "h0": x["h0"], "reset": x["reset"]}


SCANS = {
    "bmru_scan": (bmru_scan, bmru_inputs(torch.float64, shape=SHAPE)),
    "latch_scan": (latch_scan, latch_inputs(torch.float64, shape=SHAPE, gate="float")),
    "linear_scan": (linear_scan, linear_inputs()),
    "linear_scan-constant": (linear_scan, linear_inputs() | {"a": torch.linspace(-0.9, 0.9, SHAPE[2]).double()}),
}
every_scan = pytest.mark.parametrize("name", SCANS)


def floats(inputs):
    return [key for key, x in inputs.items() if x.is_floating_point()]


@every_backend
@every_scan
def test_grad_of_scan(name, backend):
    scan, inputs = SCANS[name]
    names = floats(inputs)

    def loss(*tensors):
        h = scan(**(inputs | dict(zip(names, tensors, strict=True))), backend=backend)
        return (h * weights_like(h)).sum()

    found = grad(loss, tuple(range(len(names))))(*(inputs[key] for key in names))
    expected = gradients(lambda **x: scan(**x, backend="reference"), inputs, names)
    for key, actual in zip(names, found, strict=True):
        assert_close(actual, expected[key], key)


@every_backend
@every_scan
def test_per_example_gradients_of_scan(name, backend):
    """``vmap(grad)`` over batched and shared tensors."""
    scan, inputs = SCANS[name]
    names = floats(inputs)
    shared = [key for key in names if inputs[key].ndim == 1]  # alpha [N] and a [N] are shared

    def loss(*tensors):
        alone = {key: x if key in shared else x[None] for key, x in zip(names, tensors, strict=True)}
        return scan(**alone, backend=backend).cos().sum()

    axes = tuple(None if key in shared else 0 for key in names)
    found = vmap(grad(loss, tuple(range(len(names)))), axes)(*(inputs[key] for key in names))
    for b in range(SHAPE[0]):
        leaves = [(inputs[key] if key in shared else inputs[key][b]).clone().requires_grad_() for key in names]
        for key, actual, expected in zip(names, found, torch.autograd.grad(loss(*leaves), leaves), strict=True):
            assert_close(actual[b], expected, key)


@every_backend
@every_scan
def test_vmap_of_scan(name, backend):
    """Over the last axis, including reset; the same bits as separate calls."""
    scan, inputs = SCANS[name]
    stacked = {key: torch.stack([x, x.flip(0)], dim=-1) for key, x in inputs.items()}
    actual = vmap(lambda x: scan(**x, backend=backend), in_dims=-1, out_dims=1)(stacked)
    for i, turn in enumerate([lambda x: x, lambda x: x.flip(0)]):
        expected = scan(**{key: turn(x) for key, x in inputs.items()}, backend=backend)
        assert_same_bits(actual[:, i], expected)


@every_backend
def test_jacobian_of_scan(backend):
    x = bmru_inputs(torch.float64, shape=(2, 3, 2))
    jacobian = jacrev(lambda cand: bmru_scan(**(x | {"cand": cand}), backend=backend))(x["cand"])
    expected = torch.autograd.functional.jacobian(
        lambda cand: bmru_scan(**(x | {"cand": cand}), backend="reference"), x["cand"]
    )
    assert_close(jacobian, expected)


@every_backend
@pytest.mark.parametrize("time_major", [False, True])
def test_grad_through_both_outputs_of_the_layer_operator(backend, time_major):
    proj, alpha = torch.randn(3, 5, 8).double(), torch.rand(4).double()
    options = {"alpha_surr": 1.0, "reset": None, "reverse": True, "time_major": time_major, "backend": backend}

    def loss(proj, alpha):
        h, h_last = bmru_layer(proj, alpha, None, **options)
        return h.cos().sum() + h_last.sin().sum()

    leaves = [x.clone().requires_grad_() for x in (proj, alpha)]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    for actual, wanted in zip(grad(loss, (0, 1))(proj, alpha), expected, strict=True):
        assert_close(actual, wanted)


@every_backend
@pytest.mark.parametrize("cell", [BMRU, LRU, HysteresisMRU])
def test_per_example_gradients_of_layer(cell, backend):
    if cell is HysteresisMRU and backend == "reference":
        pytest.skip("its gradient is written by hand")
    rnn = cell(3, 6, num_layers=2, bidirectional=True, batch_first=True, backend=backend, dtype=torch.float64)
    parameters, x = dict(rnn.named_parameters()), torch.randn(4, 6, 3).double()
    h0, reset = torch.randn(4, 4, rnn.state_size).double(), torch.rand(4, 6) < 0.2

    def loss(parameters, x, h0, reset):
        output, h_n = functional_call(rnn, parameters, (x[None], h0[:, None]), {"reset": reset[None]})
        return output.cos().sum() + h_n.sum()

    found = vmap(grad(loss, (0, 2)), (None, 0, 1, 0))({k: p.detach() for k, p in parameters.items()}, x, h0, reset)
    for b in range(len(x)):
        start = h0[:, b].clone().requires_grad_()
        expected = torch.autograd.grad(loss(parameters, x[b], start, reset[b]), [*parameters.values(), start])
        for name, wanted in zip(parameters, expected[:-1], strict=True):
            assert_close(found[0][name][b], wanted, name)
        assert_close(found[1][b], expected[-1], "h0")


@pytest.mark.parametrize("field", [simplified_brc, brc], ids=["known slope", "slope by autograd"])
def test_per_example_gradients_of_memory_units(field):
    rnn = MRU(field(), 3, 4, num_layers=2, bidirectional=True, batch_first=True, dtype=torch.float64)
    parameters, x = dict(rnn.named_parameters()), torch.randn(3, 6, 3).double()
    reset = torch.rand(3, 6) < 0.2

    def loss(parameters, x, reset):
        output, h_n = functional_call(rnn, parameters, (x[None],), {"reset": reset[None]})
        return output.cos().sum() + h_n.sum()

    found = vmap(grad(loss), (None, 0, 0))({k: p.detach() for k, p in parameters.items()}, x, reset)
    for b in range(len(x)):
        expected = torch.autograd.grad(loss(parameters, x[b], reset[b]), list(parameters.values()))
        for name, wanted in zip(parameters, expected, strict=True):
            # w_c does not move equilibria: its gradient is rounding noise, which has no meaningful relative error
            torch.testing.assert_close(found[name][b], wanted, rtol=1e-12, atol=1e-12, msg=name)


def test_ensemble_of_cells():
    """``vmap`` over the weights of three cells at once."""
    cells = [BMRUCell(3, 5, dtype=torch.float64) for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(cells)
    x, h = torch.randn(4, 3).double(), torch.randn(4, 5).double()
    found = vmap(lambda p: functional_call(cells[0], p, (x, h)))(parameters)
    for actual, cell in zip(found, cells, strict=True):
        assert_same_bits(actual, cell(x, h))


@pytest.mark.parametrize("step", [surrogate.heaviside, surrogate.sign])
def test_surrogates(step):
    x = torch.linspace(-1, 1, 9).double()
    height = 2.0 if step is surrogate.sign else 1.0
    assert_close(vmap(grad(step))(x), height * surrogate.derivative(x))


def test_second_derivatives_exist_in_the_reference_only():
    x = bmru_inputs(torch.float64, shape=(2, 3, 2))

    def hessian(backend):
        loss = lambda alpha: bmru_scan(**(x | {"alpha": alpha}), backend=backend).cos().sum()  # noqa: E731
        return jacrev(jacrev(loss))(x["alpha"])

    assert hessian("reference").diagonal().abs().min() > 0
    for backend in FAST:
        with pytest.raises(RuntimeError, match="no second derivative"):
            hessian(backend)


@every_backend
def test_forward_mode_raises(backend):
    cand, beta, alpha = torch.randn(1, 4, 3), torch.randn(1, 4, 3), torch.ones(3)
    way_out = "jvp" if backend == "reference" else r"no forward-mode AD \(jvp\): use reverse mode"
    with pytest.raises(NotImplementedError, match=way_out):
        jvp(lambda x: bmru_scan(x, beta, alpha, backend=backend), (cand,), (cand,))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=way_out):
        bmru_scan(forward_ad.make_dual(cand, cand), beta, alpha, backend=backend)


def test_step_under_no_grad_inside_a_transform():
    cand, beta, h = torch.randn(5, 3), torch.randn(5, 3), torch.randn(5, 3)
    with torch.no_grad():
        actual = vmap(lambda c, b, h: bmru_step(c, b, torch.ones(3), h))(cand, beta, h)
    assert_same_bits(actual, bmru_step(cand, beta, torch.ones(3), h))
