"""The contract of every layer: gradients are complete, and an output changed in place is right or an error."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from contract import ALL, STACKS, B, T, assert_close, make, random_batch
from multistable import BMRU


@pytest.fixture(params=ALL)
def name(request) -> str:
    return request.param


def test_gradients_match_those_of_steps(name):
    """The scans have hand-written gradients; steps are differentiated by autograd."""
    if name in ("hysteresis", "mru:simplified_brc"):
        pytest.skip("its surrogate follows the stored bit, which a single step cannot hand on")
    cell = make(name)
    x, h0 = random_batch(cell)
    weights = torch.randn(B, T, cell.feature_size, dtype=torch.float64)
    x.requires_grad_()
    h0.requires_grad_()
    sources = [x, h0, *cell.parameters()]
    output, h_n = cell(x, h0)
    whole = torch.autograd.grad((output * weights).sum() + h_n.square().sum(), sources)
    state, loss = h0, torch.zeros((), dtype=torch.float64)
    for t in range(T):
        features, state = cell.step(x[:, t], state)
        loss = loss + (features * weights[:, t]).sum()
    stepped = torch.autograd.grad(loss + state.square().sum(), sources)
    for label, a, b in zip(["x", "h0", *dict(cell.named_parameters())], whole, stepped, strict=True):
        assert a.abs().max() > 0, f"the gradient of {label} is zero"
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=lambda text, label=label: f"{label}: {text}")


def test_gradients_ignore_padding(name):
    cell = make(name, bidirectional=True)
    x, h0 = random_batch(cell)
    lengths = torch.tensor([T, 4, 1])
    x[torch.arange(T) >= lengths[:, None]] = torch.nan
    output, h_n = cell(x, h0, lengths=lengths)
    padded = torch.autograd.grad(output.square().sum() + h_n.square().sum(), list(cell.parameters()))
    loss = torch.zeros((), dtype=torch.float64)
    for b, length in enumerate(lengths.tolist()):
        alone, last = cell(x[b : b + 1, :length], h0[:, b : b + 1])
        loss = loss + alone.square().sum() + last.square().sum()
    for a, b in zip(padded, torch.autograd.grad(loss, list(cell.parameters())), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("given", ["lengths", "mask"])
def test_per_example_gradients_of_padded_sequences(name, given):
    if name.split(":")[-1] in ("gru", "lstm"):
        pytest.skip("torch's kernels have no batching rule")
    cell = make(name, bidirectional=True)
    (x, _), lengths = random_batch(cell), torch.tensor([T, 4, 0])
    marks = lengths if given == "lengths" else torch.arange(T) < lengths[:, None]
    parameters = {key: parameter.detach() for key, parameter in cell.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, marks: torch.Tensor) -> torch.Tensor:
        output, h_n = functional_call(cell, parameters, (x[None],), {given: marks[None]})
        return output.square().sum() + h_n.square().sum()

    found = vmap(grad(loss), (None, 0, 0))(parameters, x, marks)
    for b in range(B):
        for key, wanted in grad(loss)(parameters, x[b], marks[b]).items():
            assert_close(found[key][b], wanted)


READ_BACKWARD = ("bmru", "lru", "mingru", "hysteresis", "clocked:linear:2", "counter")
"""Layers whose backward reads their output, unlike that of ``nn.GRU``."""


def test_an_output_changed_in_place(name):
    """It works, or the error says what to do; the last states may always be changed."""
    cell = make(name)
    x, _ = random_batch(cell)
    output, h_n = cell(x)
    h_n.relu_()
    expected = torch.autograd.grad(torch.relu(output).sum() + h_n.sum(), list(cell.parameters()))
    output, h_n = cell(x)
    loss = nn.ReLU(inplace=True)(output).sum() + h_n.relu_().sum()
    if name in READ_BACKWARD:
        with pytest.raises(RuntimeError, match=r"changed in place before the backward pass.*nn\.ReLU\(inplace=False\)"):
            loss.backward()
        output, _ = cell(x)
        loss = nn.ReLU(inplace=True)(output.clone()).sum() + cell(x)[1].relu_().sum()
    for a, b in zip(torch.autograd.grad(loss, list(cell.parameters())), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_large_output_changed_in_place():
    """Projection and scan in one function."""
    rnn = BMRU(4, 64, batch_first=True)
    output, _ = rnn(torch.randn(8, 2000, 4))
    with pytest.raises(RuntimeError, match="changed in place before the backward pass"):
        output.relu_().sum().backward()


def test_vectorized_jacobian(name):
    cell = make(name)
    if not cell.parallel:
        pytest.skip("torch's own operators, one step at a time")
    x, h0 = random_batch(cell, 3)
    steps = {"lengths": torch.tensor([3, 1, 2])}

    def function(x: torch.Tensor, h0: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return cell(x, h0, **steps)

    expected = torch.autograd.functional.jacobian(function, (x, h0))
    actual = torch.autograd.functional.jacobian(function, (x, h0), vectorize=True)
    for row, wanted in zip(actual, expected, strict=True):
        for each, one in zip(row, wanted, strict=True):
            assert_close(each, one)


@pytest.mark.parametrize("backend", ["auto", "portable"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_gradient_of_the_last_state_is_that_of_the_last_output(name, backend, bidirectional):
    """h_n has a gradient of its own path through the scan."""
    if name in STACKS:
        pytest.skip("the output of a stack is not part of its state")
    cell = make(name, num_layers=1, bidirectional=bidirectional)
    cell.backend = backend
    x, h0 = (each.requires_grad_() for each in random_batch(cell))
    output, h_n = cell(x, h0)
    F = cell.feature_size
    ends = [output[:, -1, :F]] + ([output[:, 0, F:]] if bidirectional else [])
    wanted = torch.autograd.grad(sum((end * end.detach().cos()).sum() for end in ends), (x, h0), retain_graph=True)
    own = h_n[..., :F]
    actual = torch.autograd.grad((own * own.detach().cos()).sum(), (x, h0))
    assert wanted[0].abs().sum() > 0
    for a, b in zip(actual, wanted, strict=True):
        assert_close(a, b)
