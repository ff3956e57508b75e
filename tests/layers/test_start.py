"""``start="branch"``: before the first step and after a reset the state is +alpha, however the layer is run."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from backends import BACKENDS
from multistable import BMRU, BMRUCell, Hybrid, ModelConfig, build_model
from multistable.ops import bmru_step

B, T, D, N = 3, 9, 4, 6
kinds = pytest.mark.parametrize("kind", [BMRU, Hybrid], ids=lambda kind: kind.__name__)


def make(kind=BMRU, **options):
    """A float64 layer with levels other than 1 that writes at half of the steps."""
    torch.manual_seed(0)
    rnn = kind(
        D,
        N,
        **{"num_layers": 2, "batch_first": True, "start": "branch", "dtype": torch.float64, "thresholds": "paper"}
        | options,
    )
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return rnn


def random_input(length=T):
    torch.manual_seed(1)
    return torch.randn(B, length, D, dtype=torch.float64)


def branch(rnn, reverse=False):
    """The expected state before the first step of each layer, ``[S]``."""
    suffix = "_reverse" if reverse else ""
    if isinstance(rnn, BMRU):
        return [getattr(rnn, f"alpha_l{layer}{suffix}") for layer in range(rnn.num_layers)]
    alphas = [getattr(bmru, f"alpha_l0{suffix}") for bmru in rnn.bmru]
    return [torch.cat([alpha, alpha.new_zeros(rnn.state_size - len(alpha))]) for alpha in alphas]


def states(rnn, count=B):
    ways = [branch(rnn, reverse) for reverse in rnn.directions]
    return torch.stack([way[layer].expand(count, -1) for layer in range(rnn.num_layers) for way in ways])


@kinds
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one_way", "both_ways"])
def test_without_a_state_the_layer_starts_on_the_branch(kind, bidirectional):
    rnn, x = make(kind, bidirectional=bidirectional), random_input()
    for actual, expected in zip(rnn(x), rnn(x, states(rnn)), strict=True):
        assert torch.equal(actual, expected)
    assert torch.equal(rnn.initial_state((B,), x), states(rnn))
    assert not torch.equal(rnn(x)[0], rnn(x, torch.zeros_like(states(rnn)))[0])


@kinds
def test_steps_equal_forward(kind):
    rnn, x = make(kind), random_input()
    output, h_n = rnn(x)
    state = None
    for t in range(T):
        features, state = rnn.step(x[:, t], state)
        torch.testing.assert_close(features, output[:, t], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, h_n, rtol=1e-12, atol=1e-12)
    alone, state = rnn.step(x[0, 0])
    torch.testing.assert_close(alone, output[0, 0], rtol=1e-12, atol=1e-12)


@kinds
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "time_major"])
def test_reset_equals_separate_sequences(kind, batch_first):
    rnn, x = make(kind, bidirectional=True, batch_first=batch_first), random_input()
    alone = make(kind, bidirectional=True)
    h0 = torch.randn(states(rnn).shape, dtype=torch.float64)
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[0, 4] = reset[1, 0] = True
    turn = (lambda y: y) if batch_first else (lambda y: y.transpose(0, 1))
    output, h_n = rnn(turn(x), h0, reset=turn(reset))
    first, second = h0[:, :1].clone(), h0[:, :1].clone()
    first[1::2], second[0::2] = states(rnn, 1)[1::2], states(rnn, 1)[0::2]
    last = h0[:, 1:2].clone()
    last[0::2] = states(rnn, 1)[0::2]
    expected = torch.cat([alone(x[:1, :4], first)[0], alone(x[:1, 4:], second)[0]], dim=1)
    torch.testing.assert_close(turn(output)[:1], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(h_n[:, :1], alone(x[:1, 4:], second)[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(turn(output)[1:2], alone(x[1:2], last)[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(turn(output)[2:], alone(x[2:], h0[:, 2:])[0], rtol=1e-12, atol=1e-12)


@kinds
def test_padding_and_packing(kind):
    rnn, x = make(kind, bidirectional=True), random_input()
    lengths = torch.tensor([T, 4, 0])
    output, h_n = rnn(x, lengths=lengths)
    for b, length in enumerate([T, 4]):
        alone, last = rnn(x[b : b + 1, :length])
        torch.testing.assert_close(output[b, :length], alone[0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(h_n[:, b], last[:, 0], rtol=1e-12, atol=1e-12)
    assert torch.equal(h_n[:, 2], states(rnn)[:, 2])
    lengths[2] = 2
    packed, h_packed = rnn(pack_padded_sequence(x, lengths, batch_first=True))
    expected, expected_n = rnn(x, lengths=lengths)
    assert torch.equal(pad_packed_sequence(packed, batch_first=True)[0], expected)
    assert torch.equal(h_packed, expected_n)


def loop(rnn, x, reset):
    """One layer and direction, step by step, from the parameters alone."""
    h, hs = rnn.alpha_l0.expand(B, -1), []
    for t in range(x.shape[1]):
        h = torch.where(reset[:, t, None], rnn.alpha_l0, h)
        cand, beta = (x[:, t] @ rnn.weight_ih_l0.T + rnn.bias_ih_l0).chunk(2, dim=-1)
        hs.append(h := bmru_step(cand, beta, rnn.alpha_l0, h, alpha_surr=rnn.alpha_surr))
    return torch.stack(hs, dim=1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("marks", [0.0, 0.3], ids=["no_reset", "reset"])
def test_states_and_gradients_match_a_loop(backend, marks):
    rnn, x = make(num_layers=1, backend=backend, beta_bias=1.0), random_input()
    reset = torch.rand(B, T) < marks
    output, expected = rnn(x, reset=reset if marks else None)[0], loop(rnn, x, reset)
    assert torch.equal(output, expected)
    weights, parameters = torch.randn(B, T, N, dtype=torch.float64), list(rnn.parameters())
    found, wanted = (torch.autograd.grad((h * weights).sum(), parameters) for h in (output, expected))
    for actual, grad in zip(found, wanted, strict=True):
        torch.testing.assert_close(actual, grad, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("reset", [None, torch.arange(40_000).remainder(7).eq(0).expand(B, -1)], ids=["whole", "reset"])
def test_a_large_layer_on_the_cpu(reset):
    """Large enough to project and scan in one function."""
    layers = [make(num_layers=1, backend=backend, beta_bias=1.0) for backend in ("cpu", "portable")]
    x = random_input(40_000)
    outputs = [rnn(x, reset=reset)[0] for rnn in layers]
    assert torch.equal(*outputs)
    grads = [torch.autograd.grad(h.sum(), list(rnn.parameters())) for h, rnn in zip(outputs, layers, strict=True)]
    for actual, expected in zip(*grads, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_a_unit_that_never_writes_gives_alpha_a_gradient():
    rnn = BMRU(1, 1, beta_bias=100.0, start="branch", batch_first=True)
    output, _ = rnn(torch.zeros(2, 5, 1))
    output.sum().backward()
    assert output.eq(rnn.alpha_l0).all()
    assert rnn.alpha_l0.grad.item() == 10


def test_cell():
    cell, x = BMRUCell(D, N, start="branch"), torch.randn(B, D)
    torch.nn.init.uniform_(cell.alpha, 0.5, 2.0)
    assert torch.equal(cell(x), cell(x, cell.alpha.expand(B, -1)))
    assert torch.equal(cell(x[0]), cell(x[0], cell.alpha))
    assert not torch.equal(cell(x), cell(x, torch.zeros(B, N)))


def test_autocast_and_dtypes():
    rnn = make(dtype=torch.float32)
    x, reset = random_input().float(), torch.rand(B, T) < 0.3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, h_n = rnn(x, reset=reset)
        features, state = rnn.step(x[:, 0])
    assert output.dtype == h_n.dtype == features.dtype == state.dtype == torch.bfloat16
    assert torch.isin(output, torch.cat([rnn.alpha_l1, -rnn.alpha_l1]).bfloat16()).all()
    output.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in rnn.parameters())


@pytest.mark.parametrize("kind", [BMRU, BMRUCell, Hybrid])
def test_repr_and_errors(kind):
    assert "start='branch'" in repr(kind(4, 6, start="branch"))
    assert "start" not in repr(kind(4, 6))
    with pytest.raises(ValueError, match="start must be one of zero, branch, got 'up'"):
        kind(4, 6, start="up")


@pytest.mark.parametrize("cell", ["bmru", "hybrid"])
def test_models_pass_start_to_their_layers(cell):
    config = ModelConfig((cell, "lru"), d_input=2, d_output=1, d_model=8, d_state=6, pooling="none", start="branch")
    torch.manual_seed(0)
    model = build_model(config).double().eval()
    x = torch.randn(B, T, 2, dtype=torch.float64)
    y, _ = model(x)
    state = model.initial_state(B, x)
    assert torch.equal(model(x, state)[0], y)
    assert torch.equal(state.cells[0][0, :, :3], torch.ones(B, 3))
    assert not state.cells[1].any()
    for start in (None, state):
        state = start
        for t in range(T):
            step, state = model.step(x[:, t], state)
            torch.testing.assert_close(step, y[:, t], rtol=1e-10, atol=1e-10)
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[:, 5] = True
    torch.testing.assert_close(model(x, reset=reset)[0][:, 5:], model(x[:, 5:])[0], rtol=1e-10, atol=1e-10)


def test_an_unknown_start_raises():
    with pytest.raises(ValueError, match="start must be one of zero, branch, got 'up'"):
        ModelConfig(("bmru",), 1, 1, start="up")
