"""Cells made from fields: clocks, branches of any number, and the contract that all cells keep. In float64."""

import math
from functools import partial

import pytest
import torch

import tolerances
from multistable import BRC, MRU, NBRC, ClockedRNN, HysteresisMRU
from multistable.dynamics import Field, Linear, brc, damped, equilibria, linear, nbrc, simplified_brc
from multistable.dynamics.branches import associative_scan, branch_scan, compose, prepend
from multistable.dynamics.hysteresis import folds, hysteresis_scan
from multistable.surrogate import derivative

D, N = 3, 4

CELLS = {
    "clocked": lambda **options: ClockedRNN(simplified_brc(0.5), D, N, 2, n_clock=3, **options),
    "clocked_vector": lambda **options: ClockedRNN(brc(), D, N, 2, n_clock=[1, 2, 3, 7], **options),
    "clocked_coupled": lambda **options: ClockedRNN(nbrc(), D, N, 2, n_clock=2, **options),
    "clocked_linear": lambda **options: ClockedRNN(linear(), D, N, 2, n_clock=[1, 2, 3, 7], **options),
    "clocked_limit": lambda **options: ClockedRNN(simplified_brc(0.1), D, N, 2, n_clock=math.inf, **options),
    "mru": lambda **options: MRU(brc(), D, N, 2, **options),
    "hysteresis": lambda **options: HysteresisMRU(D, N, 2, **options),
}


@pytest.fixture(params=CELLS)
def make(request):
    def build(**options):
        torch.manual_seed(0)
        cell = CELLS[request.param](dtype=torch.float64, **{"batch_first": True} | options)
        with torch.no_grad():
            for parameter in cell.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return cell

    return build


def batch(directions: int = 1, T: int = 9):
    torch.manual_seed(1)
    x = 2 * torch.randn(3, T, D, dtype=torch.float64)
    return x, torch.randn(2 * directions, 3, N, dtype=torch.float64)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_steps_and_chunks_equal_the_whole(make):
    cell, (x, h0) = make(), batch()
    output, h_n = cell(x, h0)
    first, h = cell(x[:, :4], h0)
    second, h = cell(x[:, 4:], h)
    assert_close(torch.cat([first, second], dim=1), output)
    assert_close(h, h_n)
    state = h0
    for t in range(x.shape[1]):
        features, state = cell.step(x[:, t], state)
        assert_close(features, output[:, t])
    assert_close(state, h_n)
    assert_close(cell.step(x[0, 0])[0], cell(x[:1, :1])[0][0, 0])


def test_padding_and_resets_equal_separate_sequences(make):
    cell, (x, h0) = make(bidirectional=True), batch(2)
    lengths = torch.tensor([9, 5, 0])
    reset = torch.zeros(3, 9, dtype=torch.bool)
    reset[0, 4] = True
    output, h_n = cell(x, h0, reset=reset, lengths=lengths)
    alone, last = cell(x[1:2, :5], h0[:, 1:2])
    assert_close(output[1:2, :5], alone)
    assert_close(h_n[:, 1:2], last)
    assert_close(h_n[:, 2], h0[:, 2])
    assert (output[1, 5:] == 0).all()
    cut = cell(x[:1], h0[:, :1], reset=reset[:1])[0]
    assert_close(output[:1], cut)
    forward_only = make()
    separate = forward_only(x[:1, 4:])[0]
    assert_close(forward_only(x[:1], reset=reset[:1])[0][:, 4:], separate)


def test_time_major_and_empty(make):
    x, h0 = batch(2)
    output, h_n = make(bidirectional=True)(x, h0)
    turned, h_turned = make(bidirectional=True, batch_first=False)(x.transpose(0, 1), h0)
    assert_close(turned.transpose(0, 1), output)
    assert_close(h_turned, h_n)
    none, same = make(bidirectional=True)(x[:, :0], h0)
    assert none.shape == (3, 0, 2 * N)
    assert_close(same, h0)
    cell = make()
    assert [y.shape for y in cell(x[:0])] == [(0, 9, N), (2, 0, N)]
    assert [y.shape for y in cell.step(x[:0, 0])] == [(0, N), (2, 0, N)]


def test_every_parameter_receives_a_gradient(make):
    cell, (x, _) = make(), batch(T=20)
    output, _ = cell(x)
    output.square().sum().backward()
    for name, parameter in cell.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all(), name
        # An update gate changes no equilibrium, so in the limit u_c and w_c matter to nothing.
        if not isinstance(cell, MRU):
            assert parameter.grad.abs().sum() > 0, name


def test_inference_mode_changes_nothing(make):
    cell, (x, h0) = make(), batch()
    expected = cell(x, h0)
    with torch.inference_mode():
        for actual, other in zip(cell(x.clone(), h0.clone()), expected, strict=True):
            assert torch.equal(actual, other)


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_one_tick_is_the_plain_cell():
    torch.manual_seed(0)
    cell = ClockedRNN(simplified_brc(0.3), D, N, batch_first=True, dtype=torch.float64)
    x, h = batch()[0], torch.zeros(3, N, dtype=torch.float64)
    output, _ = cell(x)
    for t in range(x.shape[1]):
        u, beta = torch.nn.functional.linear(x[:, t], cell.weight_ih_l0, cell.bias_ih_l0).chunk(2, dim=-1)
        h = 0.7 * h + 0.3 * torch.tanh(u + (beta + 1) * h)
        assert_close(output[:, t], h)


@pytest.mark.parametrize(("field", "kind"), [(brc(), BRC), (nbrc(), NBRC)], ids=["brc", "nbrc"])
def test_one_tick_is_the_bistable_recurrent_cell(field, kind):
    torch.manual_seed(0)
    plain = kind(D, N, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(torch.randn_like(parameter))
    clocked = ClockedRNN(field, D, N, batch_first=True, dtype=torch.float64)
    (w_c, w_a), turned = plain.weight_hh_l0.chunk(2), lambda x: torch.cat(x.chunk(3)[::-1])  # U_c, U_a, U_h there
    state = {"weight_ih_l0": turned(plain.weight_ih_l0), "bias_ih_l0": turned(plain.bias_ih_l0)}
    clocked.load_state_dict(state | {"w_a_l0": w_a, "w_c_l0": w_c})
    x, h0 = batch()[0], torch.randn(1, 3, N, dtype=torch.float64)
    assert_close(clocked(x, h0)[0], plain(x, h0)[0])


def test_each_unit_has_its_own_clock():
    x, h0 = batch()[0], torch.randn(1, 3, N, dtype=torch.float64)
    clocks = [1, 2, 5, 9]
    make = lambda n: ClockedRNN(brc(), D, N, batch_first=True, n_clock=n, dtype=torch.float64)  # noqa: E731
    mixed = make(clocks)
    output, _ = mixed(x, h0)
    for unit, n in enumerate(clocks):
        single = make(n)
        single.load_state_dict(mixed.state_dict())
        assert_close(single(x, h0)[0][..., unit], output[..., unit])


@pytest.mark.parametrize("n_clock", [1, 5, [1, 2, 5, 9]])
def test_linear_closed_form_equals_the_loop(n_clock):
    closed = ClockedRNN(linear(), D, N, batch_first=True, n_clock=n_clock, dtype=torch.float64)
    with torch.no_grad():
        closed.a_l0.copy_(torch.tensor([0.9, -0.5, 1.0, 0.0]))
    loop = ClockedRNN(
        Field(linear().function, {"a": 0.9}), D, N, batch_first=True, n_clock=n_clock, dtype=torch.float64
    )
    loop.load_state_dict(closed.state_dict())
    x, h0 = batch()[0], torch.randn(1, 3, N, dtype=torch.float64)
    outputs = [cell(x, h0)[0] for cell in (closed, loop)]
    assert_close(*outputs)
    for output in outputs:
        output.sum().backward()
    finite = closed.a_l0.detach() != 1  # there the closed form takes the limit, without its gradient
    assert_close(closed.a_l0.grad[finite], loop.a_l0.grad[finite])
    assert_close(closed.weight_ih_l0.grad, loop.weight_ih_l0.grad)


def test_linear_limit():
    limit = ClockedRNN(linear(0.8), D, N, batch_first=True, n_clock=math.inf, dtype=torch.float64)
    long = ClockedRNN(linear(0.8), D, N, batch_first=True, n_clock=300, dtype=torch.float64)
    long.load_state_dict(limit.state_dict())
    assert_close(limit(batch()[0])[0], long(batch()[0])[0])
    with torch.no_grad():
        limit.a_l0[1] = 1.5  # no limit: it says so
    assert limit(batch()[0])[0].isnan().any(dim=(0, 1)).tolist() == [False, True, False, False]


def test_a_clocked_cell_trains():
    torch.manual_seed(0)
    cell, out = ClockedRNN(simplified_brc(0.5), 1, 8, batch_first=True, n_clock=4), torch.nn.Linear(8, 1)
    optimiser = torch.optim.Adam([*cell.parameters(), *out.parameters()], lr=0.03)
    x = torch.zeros(2, 15, 1)
    x[0, 0], x[1, 0] = 1.0, -1.0
    losses = []
    for _ in range(60):
        loss = (out(cell(x)[0][:, -1]) - x[:, 0]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


def test_linear_decay_is_not_rounded_to_half_precision():
    """The state of a = 0.999 falls to 0.368 in 1000 steps; in bfloat16 0.999 is 1, and it would not fall."""
    cell = ClockedRNN(linear(0.999), D, N, batch_first=True)
    h0 = torch.ones(1, 1, N)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        cell.bias_ih_l0.zero_()
        h = cell(torch.zeros(1, 1000, D), h0)[0]
    assert h.dtype == torch.bfloat16
    torch.testing.assert_close(h[0, -1].float(), torch.full((N,), 0.999**1000), rtol=0.01, atol=0)


# --- branches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("T", [1, 2, 3, 7, 16, 33])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan_equals_a_loop(T, reverse):
    torch.manual_seed(0)
    maps = torch.randint(4, (2, T, 3, 4))
    (scanned,) = associative_scan(lambda first, then: (compose(first[0], then[0]),), (maps,), reverse=reverse)
    order = range(T - 1, -1, -1) if reverse else range(T)
    total = torch.arange(4).expand(2, 3, 4)
    for t in order:
        total = maps[:, t].gather(-1, total)
        assert torch.equal(scanned[:, t], total)


@pytest.mark.parametrize("T", [1, 2, 7, 33])
def test_credit_scan_equals_a_loop(T):
    """credit_t[k] = vector_t[k] + credit_{t+1}[map_t[k]], from the end."""
    maps, vectors = torch.randint(4, (2, T, 3, 4)), torch.randint(100, (2, T, 3, 4))
    credit = associative_scan(prepend, (maps, vectors), reverse=True)[1]
    later = torch.zeros(2, 3, 4, dtype=torch.long)
    for t in reversed(range(T)):
        later = vectors[:, t] + later.gather(-1, maps[:, t])
        assert torch.equal(credit[:, t], later)


def test_composition_is_associative():
    a, b, c = torch.randint(5, (3, 100, 5))
    assert torch.equal(compose(compose(a, b), c), compose(a, compose(b, c)))


def staircase(h, x):
    """Stable around -1, 0 and 1 for x = 0: an increasing map with three steps."""
    return 0.5 * (torch.tanh(8 * (h + x - 0.5)) + torch.tanh(8 * (h + x + 0.5)))


def test_three_branches_equal_iteration():
    torch.manual_seed(0)
    field = Field(staircase, bounds=(-1.01, 1.01))
    x, h0 = 0.3 * torch.randn(500, 15, 1, dtype=torch.float64), torch.randn(500, 1, dtype=torch.float64)
    h, compared, visited = h0.clone(), 0, set()
    solved = branch_scan(field, (x,), h0, max_branches=3)
    trusted = torch.ones(500, 1, dtype=torch.bool)
    for t in range(15):
        for _ in range(400):
            h = field(h, x[:, t])
        trusted &= (field(h, x[:, t]) - h).abs() < 1e-14
        assert (solved[:, t] - h).abs()[trusted].max() < 1e-9
        compared += int(trusted.sum())
        visited |= set(h[trusted].round().tolist())
    assert compared > 0.95 * 500 * 15
    assert visited == {-1.0, 0.0, 1.0}


def test_surrogate_of_two_branches_is_the_gradient_of_a_latch():
    """Between its folds all the time, a unit keeps its bit: the first comparison gets the credit of all later steps."""
    x, beta = torch.zeros(1, 50, 1, dtype=torch.float64), torch.full((1, 50, 1), 1.5, dtype=torch.float64)
    x.requires_grad_()
    h0 = torch.full((1, 1), 0.2, dtype=torch.float64)
    h = branch_scan(simplified_brc(), (x, beta), h0, alpha_surr=1.0)
    exact = branch_scan(simplified_brc(), (x, beta), h0)
    credit, alone = (torch.autograd.grad(states.sum(), x)[0] for states in (h, exact))
    gap = 2 * h[0, 0, 0].item()
    expected = 50 * gap / (1 + (math.pi * 0.2) ** 2) / 1.5  # the unstable root is -x / beta to first order
    assert (credit - alone)[0, 0, 0].item() == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("side", [1.0, -1.0], ids=["up", "down"])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_surrogate_of_a_branch_that_the_input_abolishes(side, weight):
    """A first input just beyond the fold moves the unit, which then holds: less of it, and the unit would not."""
    beta = torch.full((1, 30, 1), 1.5, dtype=torch.float64)
    h_c, x_c = (float(v[0, 0, 0]) for v in folds(beta))
    x = torch.zeros(1, 30, 1, dtype=torch.float64)
    x[:, 0] = side * (x_c + 0.05)
    x.requires_grad_()
    h0 = torch.full((1, 1), -side, dtype=torch.float64)
    whole, exact = (
        branch_scan(simplified_brc(), (x, beta), h0, alpha_surr=alpha, n_grid=400)[0, :, 0] for alpha in (1.0, None)
    )
    written, held = (side * whole[t].item() for t in (0, -1))
    assert held > 0.9
    credit, alone = (torch.autograd.grad(h[-1] + weight * h[0], x)[0][0, 0, 0].item() for h in (whole, exact))

    slowest = (math.atanh(h_c) + x_c + 0.05) / 2.5  # |h| where df/dh = 1, so where f - h is least; f is h_c there
    surrogate = 1 / (1 + (math.pi * (slowest - h_c)) ** 2)
    expected = (2 * held + weight * (written + slowest)) * surrogate * (1 - h_c**2)
    # The next comparison, of what was written with the unstable root at zero, adds its own share.
    gain = (1 - written**2) / (1 - 2.5 * (1 - written**2))
    expected += 2 * held * gain / (1 + (math.pi * written) ** 2)
    assert credit - alone == pytest.approx(expected, rel=0.01)


def test_credit_follows_the_maps_of_branches():
    """Through h0 alone: each unstable root of the first step gets the loss above it less the loss below it.

    What is lost on a branch is what the later steps read if the unit starts there, through writes of all kinds.
    """
    torch.manual_seed(0)
    field, B, T = Field(staircase, bounds=(-1.01, 1.01)), 200, 12
    x, weights = 0.25 * torch.randn(B, T, 1, dtype=torch.float64), torch.randn(B, T, 1, dtype=torch.float64)
    x[:, 0] = 0  # three branches at first: -1, 0 and 1
    starts = [torch.full((B, 1), value, dtype=torch.float64) for value in (-1.0, 0.0, 1.0)]
    losses = [(weights * branch_scan(field, (x,), h0, max_branches=3)).sum(1) for h0 in starts]
    assert len({tuple(loss.flatten().tolist()) for loss in losses}) == 3
    h0 = torch.empty(B, 1, dtype=torch.float64).uniform_(-1, 1).requires_grad_()
    h = branch_scan(field, (x,), h0, max_branches=3, alpha_surr=1.0)
    (grad,) = torch.autograd.grad(h, h0, weights)
    unstable = equilibria(field, torch.zeros(1, dtype=torch.float64)).h[0, 1::2]
    expected = sum(
        (above - below) * derivative(h0.detach() - u, 1.0)
        for below, above, u in zip(losses, losses[1:], unstable, strict=False)
    )
    torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scan", [hysteresis_scan, partial(branch_scan, simplified_brc())], ids=["exact", "general"])
def test_a_reset_forgets_the_branch(scan):
    """Held below, a unit that starts anew at zero goes up where x is positive, and holds that."""
    x, beta = torch.full((1, 8, 1), 0.1, dtype=torch.float64), torch.full((1, 8, 1), 1.5, dtype=torch.float64)
    h0, reset = torch.full((1, 1), -1.0, dtype=torch.float64), (torch.arange(8) == 5)[None]
    args = ((x, beta),) if isinstance(scan, partial) else (x, beta)
    assert (scan(*args, h0)[0, :, 0] > 0).tolist() == [False] * 8
    assert (scan(*args, h0, reset=reset)[0, :, 0] > 0).tolist() == [False] * 5 + [True] * 3


@pytest.mark.parametrize("options", [{}, {"alpha_surr": None}, {"max_gain": 0.3}, {"alpha_surr": 3.0}])
def test_an_mru_hands_its_options_on(options):
    torch.manual_seed(0)
    cell, x = MRU(brc(), D, N, batch_first=True, dtype=torch.float64, **options), batch()[0]
    parameters = list(cell.parameters())
    proj = torch.nn.functional.linear(x, cell.weight_ih_l0, cell.bias_ih_l0)
    args = [*proj.chunk(3, dim=-1), cell.w_a_l0, cell.w_c_l0]
    direct = branch_scan(brc(), args, **{"alpha_surr": 1.0, "max_gain": 10.0} | options)
    plain = branch_scan(brc(), args, alpha_surr=1.0, max_gain=10.0)
    mine, expected, other = (
        torch.autograd.grad(h.sum(), parameters, retain_graph=True)[0] for h in (cell(x)[0], direct, plain)
    )
    assert_close(mine, expected)
    assert torch.equal(mine, other) == (not options)


def test_a_field_that_does_not_increase_has_the_limit_of_a_slow_clock():
    """beta down to -8: undamped iterates jump over the root; c = 0.05 makes the map increase down to beta = -20."""
    torch.manual_seed(0)
    x, beta = 3 * torch.randn(2, 30, N, dtype=torch.float64), 4 * torch.randn(2, 30, N, dtype=torch.float64)
    assert beta.min() < -8
    h = branch_scan(simplified_brc(), (x, beta))
    clock = ClockedRNN(simplified_brc(0.05), 1, N, n_clock=3000).scan([x, beta], None)
    assert (h - clock).abs().max() <= 1e-9


def test_an_mru_takes_any_input_of_the_simplified_brc():
    torch.manual_seed(0)
    cell, x = MRU(simplified_brc(), D, N, batch_first=True), 10 * torch.randn(2, 30, D)
    assert (x @ cell.weight_ih_l0[N:].mT + cell.bias_ih_l0[N:]).min() < -3
    assert cell(x)[0].isfinite().all()


@pytest.mark.parametrize("a", [1.0, 0.9, -1.0, 0.0])
def test_iterations_of_a_linear_field_are_their_sum(a):
    """Where 1 - a is zero too, and with its gradient: 1 + a + a^2 has the slope 1 + 2 a."""
    a = torch.tensor(a, dtype=torch.float64, requires_grad=True)
    p, q = Linear.iterated(3, a)
    assert_close(p, a**3)
    assert_close(q, 1 + a + a**2)
    assert_close(torch.autograd.grad(q, a)[0], 1 + 2 * a)


@pytest.mark.parametrize("n", [1, 2, 3, 1000])
@pytest.mark.parametrize("gap", [10.0**k for k in range(-7, 0)])
def test_the_sum_of_powers_keeps_its_digits_near_one(n, gap):
    """(1 - a^n) / (1 - a) would lose them in float32: 5e-5 at a = 0.9999, n = 2."""
    a = torch.tensor(1 - gap)
    _, q = Linear.iterated(n, a)
    tolerances.assert_close(q, (a.double() ** torch.arange(n)).sum())


@pytest.mark.parametrize(
    ("bounds", "unstable"),
    [((0.0, 1.0), 0.0), ((-1.0, 0.0), 0.0), ((-1.0, 1.0), 0.0)],
    ids=["lower", "upper", "inside"],
)
def test_an_unstable_equilibrium_on_a_bound_is_no_branch(bounds, unstable):
    """``h + x h (1 - h^2)`` leaves 0 for the stable +-1. On (0, 1) the first root going up is unstable, on (-1, 0) the
    last one; taken for stable, 0 would be where everything between goes."""
    field = Field(lambda h, x: h + x * h * (1 - h**2), bounds=bounds)
    rate = 0.1 + 0.4 * torch.rand(1, 6, 200).double()
    start = bounds[0] + (bounds[1] - bounds[0]) * (0.01 + 0.98 * torch.rand(1, 200).double())
    h = branch_scan(field, (rate,), start)
    torch.testing.assert_close(h, start.sign()[:, None].expand_as(h), rtol=0, atol=1e-9)
    slow = start
    for _ in range(2000):
        slow = field(slow, rate[:, 0])
    torch.testing.assert_close(h[:, 0], slow, rtol=0, atol=1e-9)
    assert not (h == unstable).any()


@pytest.mark.parametrize("alpha_surr", [None, 1.0])
def test_nan_shows_until_a_single_branch_and_stays_in_its_unit(alpha_surr):
    x = torch.tensor([0.0, math.nan, 0.0, 0.0, -3.0, 0.0]).double().reshape(1, 6, 1)
    x = torch.cat([x, x.nan_to_num(0.5)], dim=2).requires_grad_()
    h = branch_scan(simplified_brc(), (x, torch.tensor(1.5).double()), alpha_surr=alpha_surr)
    assert h[0, :, 0].isnan().tolist() == [False, True, True, True, False, False]
    assert h[0, 5, 0] < -0.9
    assert h[..., 1].isfinite().all()
    (grad,) = torch.autograd.grad(h.sum(), x)
    assert grad[0, 1, 0].isnan()
    assert grad[..., 1].isfinite().all()
    start = torch.tensor([[math.nan, 0.1]]).double()
    begun = branch_scan(simplified_brc(), (x.detach()[:, 2:], torch.tensor(1.5).double()), start, alpha_surr=alpha_surr)
    assert begun.isnan()[0].tolist() == [[True, False], [True, False], [False, False], [False, False]]


def test_refusals_say_why():
    x = torch.zeros(1, 2, 1)
    with pytest.raises(ValueError, match="field has 3 stable branches, max_branches is 2"):
        branch_scan(Field(staircase, bounds=(-1.01, 1.01)), (x,))
    with pytest.raises(ValueError, match=r"must map its bounds \(-1.0, 1.0\) into themselves"):
        branch_scan(Field(lambda h, x: h + 3 + x), (x,))
    with pytest.raises(ValueError, match="into themselves, but some element leaves them"):
        branch_scan(Field(lambda h, x: h + 0.1 * h + x), (x,))  # one equilibrium, from which all flows away
    with pytest.raises(ValueError, match=r"n_clock must be positive integers, .* got None"):
        ClockedRNN(brc(), D, N, n_clock=None)
    with pytest.raises(ValueError, match=r"n_clock must be positive integers, .* got True"):
        ClockedRNN(brc(), D, N, n_clock=True)
    with pytest.raises(ValueError, match="max_gain must be positive, got 'much'"):
        MRU(brc(), D, N, max_gain="much")
    with pytest.raises(ValueError, match="field must be pointwise"):
        MRU(nbrc(), D, N)
    with pytest.raises(ValueError, match="field must be nonlinear"):
        MRU(linear(), D, N)
    with pytest.raises(ValueError, match="n_clock must be positive integers"):
        ClockedRNN(brc(), D, N, n_clock=0)
    with pytest.raises(ValueError, match="n_clock must be one number or 4"):
        ClockedRNN(brc(), D, N, n_clock=[1, 2])
    with pytest.raises(ValueError, match="n_clock must be finite"):
        ClockedRNN(nbrc(), D, N, n_clock=math.inf)
    for make in (lambda **options: MRU(brc(), D, N, **options), lambda **options: ClockedRNN(brc(), D, N, **options)):
        with pytest.raises(ValueError, match="max_branches must be a positive integer, got 0"):
            make(max_branches=0)
    with pytest.raises(ValueError, match="n_grid must be a positive integer, got 0"):
        MRU(brc(), D, N, n_grid=0)
    with pytest.raises(ValueError, match="n_grid must be a positive integer, got 0"):
        branch_scan(brc(), (x,) * 5, n_grid=0)
    with pytest.raises(ValueError, match="drives must name the arguments"):
        Field(lambda h, x: h, drives={"u": 0.0})
    with pytest.raises(ValueError, match="constants must be the last arguments"):
        Field(lambda h, a, x: h, constants={"a": 0.0})


@pytest.mark.parametrize("wrong", ["brc", brc], ids=["name", "not_called"])
@pytest.mark.parametrize(
    "use",
    [
        lambda field: MRU(field, 3, 4),
        lambda field: ClockedRNN(field, 3, 4),
        lambda field: damped(field, 0.5),
        lambda field: equilibria(field, torch.zeros(1)),
    ],
    ids=["MRU", "ClockedRNN", "damped", "equilibria"],
)
def test_a_field_is_a_field(use, wrong):
    with pytest.raises(TypeError, match=r"field must be a Field, such as simplified_brc\(\), got "):
        use(wrong)
