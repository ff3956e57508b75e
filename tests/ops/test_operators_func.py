"""``torch.func`` on scans and layers: ``grad``, ``vmap`` and ``jacrev`` match autograd and loops."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacrev, jvp, vmap

from backends import BACKENDS, FAST
from gradients import gradients, weights_like
from multistable import BMRU, LRU, MRU, BMRUCell, HysteresisMRU, MinGRU, surrogate
from multistable.dynamics import brc, simplified_brc
from multistable.ops import bmru_scan, bmru_step, latch_scan, linear_scan
from multistable.ops.layer_scans import bmru_layer
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


@pytest.mark.parametrize("backend", FAST)
def test_forward_mode_raises_and_names_the_reference(backend):
    cand, beta, alpha = torch.randn(1, 4, 3), torch.randn(1, 4, 3), torch.ones(3)
    way_out = r"no forward-mode AD \(jvp\): use backend='reference' or reverse mode"
    with pytest.raises(NotImplementedError, match=way_out):
        jvp(lambda x: bmru_scan(x, beta, alpha, backend=backend), (cand,), (cand,))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=way_out):
        bmru_scan(forward_ad.make_dual(cand, cand), beta, alpha, backend=backend)


@pytest.mark.parametrize("scan", ["bmru", "latch", "boolean latch", "linear"])
def test_forward_mode_of_the_reference_is_that_of_the_surrogates(scan):
    """The directional derivative is the product with the Jacobian of reverse mode."""
    torch.manual_seed(0)
    x, y, h0 = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 5, 3), (2, 5, 3), (2, 3)))
    write = torch.rand(2, 5, 3) < 0.5
    functions = {
        "bmru": lambda x, y, h0: bmru_scan(x, y, y[0, 0], h0, backend="reference"),
        "latch": lambda x, y, h0: latch_scan(surrogate.heaviside(x), y, h0, backend="reference"),
        "boolean latch": lambda x, y, h0: latch_scan(write, x + y, h0, backend="reference"),
        "linear": lambda x, y, h0: linear_scan(x, y, h0, backend="reference"),
    }
    inputs, tangents = (x, y, h0), tuple(map(torch.randn_like, (x, y, h0)))
    _, forwards = jvp(functions[scan], inputs, tangents)
    jacobians = jacrev(functions[scan], argnums=(0, 1, 2))(*inputs)
    parts = [(jacobian * v).flatten(3).sum(-1) for jacobian, v in zip(jacobians, tangents, strict=True)]
    assert_close(forwards, sum(parts))


def test_forward_mode_of_a_rounded_state():
    """In half precision the initial state is rounded; its tangent passes."""
    h0, tangent = torch.randn(2, 3), torch.randn(2, 3)
    write, value = torch.zeros(2, 4, 3, dtype=torch.bool), torch.zeros(2, 4, 3, dtype=torch.bfloat16)
    _, forwards = jvp(lambda h: latch_scan(write, value, h, backend="reference"), (h0,), (tangent,))
    assert torch.equal(forwards, tangent[:, None].expand(2, 4, 3).bfloat16())


def test_forward_mode_and_second_derivative_of_hysteresis_name_the_way_out():
    rnn, x = HysteresisMRU(3, 4), torch.randn(5, 2, 3, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"no forward-mode AD .*: use reverse mode"):
        jvp(lambda x: rnn(x)[0], (x,), (x,))
    (gradient,) = torch.autograd.grad(rnn(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative: use finite differences"):
        gradient.sum().backward()


@pytest.mark.parametrize("kind", [LRU, MinGRU])
def test_gradgradcheck_of_the_reference(kind):
    """A BMRU cannot pass it: it compares surrogate derivatives with finite differences of steps."""
    torch.manual_seed(0)
    rnn, x = kind(3, 4, backend="reference", dtype=torch.float64), torch.randn(4, 2, 3, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(lambda x: rnn(x)[0], x.requires_grad_())


def test_step_under_no_grad_inside_a_transform():
    cand, beta, h = torch.randn(5, 3), torch.randn(5, 3), torch.randn(5, 3)
    with torch.no_grad():
        actual = vmap(lambda c, b, h: bmru_step(c, b, torch.ones(3), h))(cand, beta, h)
    assert_same_bits(actual, bmru_step(cand, beta, torch.ones(3), h))
