"""Finite state machines as units: the BMRU as a special case, surrogates, options. The rest is in test_contract.py."""

import pytest
import torch

from multistable import BMRU, FSM
from multistable.ops import map_adjoint
from multistable.surrogate import derivative


def as_bmru(D, N, bmru):
    """An FSM with states +alpha (0) and -alpha (1) whose scores for up, down and keep are cand, -cand and beta."""
    rnn = FSM(D, N, n_states=2, transitions="set", batch_first=True)
    with torch.no_grad():
        for name in ("weight_ih_l0", "bias_ih_l0"):
            cand, beta = getattr(bmru, name).chunk(2)
            getattr(rnn, name).copy_(torch.stack([cand, -cand, beta], dim=1).flatten(0, 1))
        rnn.value_l0.copy_(torch.stack([bmru.alpha_l0, -bmru.alpha_l0], dim=1)[..., None])
    return rnn


def test_two_states_that_are_kept_or_set_are_a_bmru():
    """The input holds candidates and positive thresholds themselves, so that both layers compare the same numbers."""
    N = 5
    bmru = BMRU(2 * N, N, batch_first=True, start="branch", thresholds="paper")
    with torch.no_grad():
        bmru.weight_ih_l0.copy_(torch.eye(2 * N))
        bmru.bias_ih_l0.zero_()
        bmru.alpha_l0.uniform_(0.5, 2)
    rnn = as_bmru(2 * N, N, bmru)
    x = torch.randn(4, 200, 2 * N)
    x[..., N:].abs_()
    x[:, ::7, N:] = x[:, ::7, :N].abs()  # ties write
    x[:, ::21] = 0  # S(0) = +1
    reset = torch.rand(4, 200) < 0.05
    expected = bmru(x, reset=reset)[0]
    assert torch.equal(rnn(x, reset=reset)[0], expected)
    assert len(expected.unique()) == 2 * N


def test_gradient_of_a_kept_state_does_not_fade():
    """As for the BMRU: what the first step chose gets the same gradient after 10 and after 1000 steps."""
    rnn = FSM(1, 1, n_states=2, transitions="set", surrogate="margin", batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        rnn.weight_ih_l0.copy_(torch.tensor([[1.0], [-1.0], [0.0]]))
        rnn.bias_ih_l0.copy_(torch.tensor([0.0, 0.0, 0.5]))
    grads = []
    for T in (10, 1000):
        x = torch.zeros(1, T, 1, dtype=torch.float64)
        x[0, 0] = -1.0
        x.requires_grad_()
        rnn(x)[0][0, -1].sum().backward()
        grads.append(x.grad[0, 0].item())
    # State 1 has the value -1; the choice of it beats those of state 0 and of keeping state 0 by 2 and 0.5.
    d_up, d_keep = (derivative(torch.tensor(m, dtype=torch.float64)).item() for m in (2.0, 0.5))
    assert grads[0] == grads[1] == pytest.approx(2 * 2 * d_up + 2 * d_keep)


@pytest.mark.parametrize("transitions", ["any", "set", "count"])
def test_the_choice_gets_what_each_state_would_have_earned(transitions):
    """By hand, on the definition: the adjoint of the maps, then the margins of the realised column."""
    K, N, T = 3, 2, 7
    rnn = FSM(4, N, n_states=K, transitions=transitions, surrogate="margin", batch_first=True).double()
    x, weights = torch.randn(1, T, 4, dtype=torch.float64), torch.randn(1, T, N, dtype=torch.float64)
    output, _ = rnn(x)
    (output * weights).sum().backward()
    with torch.no_grad():
        scores = rnn.scores(x, 0)
        maps = rnn.maps(scores)
        lam, _ = map_adjoint(maps, weights[..., None] * rnn.value_l0.squeeze(-1), backend="reference")
        bias = torch.zeros_like(scores[0, 0])
        state = [0] * N
        for t in range(T):
            for n in range(N):
                before, after = state[n], int(maps[0, t, n, state[n]])
                column = scores[0, t, n, before] if transitions == "any" else scores[0, t, n]
                gain = lam[0, t, n] if transitions == "any" else lam[0, t, n, rnn.table()[:, before]]
                first = int(column.argmax())
                for j in range(len(column)):
                    part = (gain[j] - gain[first]) * derivative(column[first] - column[j])
                    place = bias[n, before] if transitions == "any" else bias[n]
                    place[j] += part
                    place[first] -= part
                state[n] = after
    torch.testing.assert_close(rnn.bias_ih_l0.grad, bias.flatten(), rtol=1e-12, atol=1e-12)
    assert bias.abs().max() > 0


def test_counting_ends_at_the_first_and_the_last_state():
    """Scores: up, down, keep. Inputs: +1 counts up, -1 down, 0 keeps."""
    rnn = FSM(1, 1, n_states=4, transitions="count", batch_first=True)
    with torch.no_grad():
        rnn.weight_ih_l0.copy_(torch.tensor([[1.0], [-1.0], [0.0]]))
        rnn.bias_ih_l0.copy_(torch.tensor([0.0, 0.0, 0.5]))
        rnn.value_l0.copy_(torch.arange(4.0)[None, :, None])
    moves = torch.randint(-1, 2, (50,)).tolist()
    count, counts = 0, []
    for move in moves:
        count = min(max(count + move, 0), 3)
        counts.append(count)
    output, _ = rnn(torch.tensor(moves).view(1, -1, 1).float())
    assert output.flatten().tolist() == counts
    assert set(counts) == {0, 1, 2, 3}


def test_noise_only_in_training():
    rnn = FSM(3, 8, n_states=4, surrogate="gumbel", batch_first=True)
    x = torch.randn(2, 30, 3)
    assert not torch.equal(rnn(x)[0], rnn(x)[0])
    rnn.eval()
    assert torch.equal(rnn(x)[0], rnn(x)[0])


def test_gumbel_noise_draws_with_the_probabilities_of_a_softmax():
    rnn = FSM(1, 1, n_states=3, surrogate="gumbel", batch_first=True)
    with torch.no_grad():
        rnn.weight_ih_l0.zero_()
        rnn.bias_ih_l0.copy_(torch.tensor([0.0, 1.0, 2.0]).repeat(3))
        states = rnn(torch.zeros(1, 30_000, 1))[0].flatten()  # the values are 1, 0, -1
    shares = torch.stack([(states == value).double().mean() for value in (1, 0, -1)])
    torch.testing.assert_close(shares, torch.softmax(torch.tensor([0.0, 1, 2]).double(), 0), rtol=0, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gumbel_noise_is_finite_in_half_precision(dtype, monkeypatch):
    """The smallest float16 is 6e-8."""
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda noise: noise.fill_(1e-8))
    rnn = FSM(3, 8, n_states=4, surrogate="gumbel", batch_first=True, dtype=dtype)
    rnn(torch.randn(2, 9, 3, dtype=dtype))[0].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in rnn.parameters())


@pytest.mark.parametrize("K", [1, 16])
def test_numbers_of_states(K):
    rnn = FSM(3, 6, n_states=K, value_size=2, batch_first=True)
    output, h_n = rnn(torch.randn(2, 5, 3))
    assert output.shape == (2, 5, 6)
    assert h_n.shape == (1, 2, 6 + 3 * K)
    output.sum().backward()


def test_no_steps_and_no_sequences():
    rnn = FSM(3, 6, batch_first=True)
    for shape in ((2, 0, 3), (0, 4, 3)):
        output, h_n = rnn(torch.randn(shape))
        assert output.shape == (*shape[:2], 6)
        assert h_n.shape == (1, shape[0], 30)


@pytest.mark.parametrize("transitions", ["any", "set", "count"])
def test_nan_scores_are_seen(transitions):
    torch.manual_seed(0)
    rnn = FSM(3, 6, transitions=transitions, batch_first=True)
    x = torch.randn(1, 5, 3)
    x[0, 2] = torch.nan
    output, _ = rnn(x)
    assert output[0, 2].isnan().all()
    assert output[0, [0, 1, 3, 4]].isfinite().all()
    state, outputs = None, []
    for x_t in x.unbind(1):
        y, state = rnn.step(x_t, state)
        outputs.append(y)
    assert torch.equal(torch.stack(outputs, dim=1).nan_to_num(9), output.nan_to_num(9))
    _, state = rnn(x[:, :3])
    assert torch.equal(rnn(x[:, 3:], state)[0], output[:, 3:])


@pytest.mark.parametrize("transitions", ["set", "count"])
def test_the_default_device_does_not_matter(transitions):
    rnn, x = FSM(3, 6, transitions=transitions), torch.randn(5, 2, 3)
    expected = rnn(x)[0]
    with torch.device("meta"):
        assert torch.equal(rnn(x)[0], expected)
        FSM(3, 6, transitions=transitions, device="cpu")


def test_a_nan_score_leads_to_state_zero():
    scores = torch.zeros(2, 1, 4, 4)  # [T, N, K, K]
    scores[..., 3] = 1.0
    scores[0, 0, 1, 2] = torch.nan
    assert FSM(3, 1).maps(scores)[:, 0].tolist() == [[3, 0, 3, 3], [3, 3, 3, 3]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_states": 0}, "n_states must be a positive integer, got 0"),
        ({"n_states": 17}, "n_states must be at most 16, got 17"),
        ({"value_size": 4}, "hidden_size must be a multiple of value_size = 4, got 6"),
        ({"transitions": "all"}, "transitions must be one of any, set, count, got 'all'"),
        ({"surrogate": "none"}, "surrogate must be one of softmax, margin, gumbel, got 'none'"),
        ({"alpha_surr": -1.0}, "alpha_surr must not be negative"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        FSM(3, 6, **options)


@pytest.mark.parametrize("backend", ["reference", "portable", "cpu"])
def test_backends_agree(backend):
    torch.manual_seed(0)
    rnn, other = (FSM(3, 6, n_states=3, batch_first=True, dtype=torch.float64, backend=b) for b in ("auto", backend))
    other.load_state_dict(rnn.state_dict())
    x = torch.randn(2, 40, 3, dtype=torch.float64)
    results = []
    for layer in (rnn, other):
        output, h_n = layer(x, reset=torch.arange(40).expand(2, -1) % 9 == 5)
        (output.cos().sum() + h_n.cos().sum()).backward()
        results.append((output, h_n, layer.weight_ih_l0.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    torch.testing.assert_close(results[0][2], results[1][2], rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # by torch's own compiler
def test_compiled_without_a_graph_break():
    torch.compiler.reset()
    rnn, x = FSM(3, 6, n_states=3, batch_first=True), torch.randn(2, 9, 3)
    compiled = torch.compile(rnn, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x)[0], rnn(x)[0])
