"""The LRU against its equations."""

import math

import pytest
import torch

from multistable import LRU


@pytest.mark.parametrize(
    ("r_min", "r_max", "theta_max"), [(0.0, 0.99, 2 * math.pi), (0.9, 0.999, math.pi / 10), (0, 1, 1)]
)
def test_eigenvalues_start_in_the_ring(r_min, r_max, theta_max):
    torch.manual_seed(0)
    rnn = LRU(3, 4096, r_min=r_min, r_max=r_max, theta_max=theta_max, dtype=torch.float64)
    lam = torch.complex(*rnn.eigenvalues().chunk(2))
    radius, phase = lam.abs(), torch.remainder(lam.angle(), 2 * math.pi)
    assert radius.min() >= r_min
    assert radius.max() <= r_max
    assert phase.min() >= 0
    assert phase.max() <= theta_max
    # Uniform over the area of the ring: half of the units lie within the radius that halves the area.
    half = math.sqrt((r_min**2 + r_max**2) / 2)
    assert (radius < half).double().mean().item() == pytest.approx(0.5, abs=0.03)
    assert (phase < theta_max / 2).double().mean().item() == pytest.approx(0.5, abs=0.03)
    assert torch.allclose(rnn.log_gamma_l0.exp() ** 2, 1 - radius**2, atol=1e-12)
    assert all(parameter.isfinite().all() for parameter in rnn.parameters())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_forward_matches_a_complex_loop(dtype, bias):
    torch.manual_seed(0)
    rnn = LRU(3, 5, bias=bias, batch_first=True, dtype=dtype)
    if bias:
        torch.nn.init.normal_(rnn.bias_ih_l0)
    x = torch.randn(2, 40, 3, dtype=dtype)
    h0 = torch.randn(1, 2, 10, dtype=dtype)
    output, h_n = rnn(x, h0)

    p = {name: parameter.detach().double() for name, parameter in rnn.named_parameters()}
    lam = torch.exp(-torch.exp(p["log_nu_l0"]) + 1j * torch.exp(p["log_theta_l0"]))
    matrix = torch.complex(*p["weight_ih_l0"].chunk(2))
    offset = torch.complex(*p["bias_ih_l0"].chunk(2)) if bias else 0
    h = torch.complex(*h0[0].double().chunk(2, dim=-1))
    states = []
    for t in range(x.shape[1]):
        h = lam * h + torch.exp(p["log_gamma_l0"]) * (x[:, t].to(torch.complex128) @ matrix.T + offset)
        states.append(torch.cat([h.real, h.imag], dim=-1))
    tolerance = {torch.float64: 1e-13, torch.float32: 1e-5}[dtype]
    torch.testing.assert_close(output.double(), torch.stack(states, dim=1), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(h_n[0].double(), states[-1], rtol=tolerance, atol=tolerance)


def test_gradients_match_finite_differences():
    torch.manual_seed(0)
    rnn = LRU(2, 2, bidirectional=True, batch_first=True, dtype=torch.float64)
    names = list(dict(rnn.named_parameters()))
    x, h0 = torch.randn(2, 5, 2, dtype=torch.float64), torch.randn(2, 2, 4, dtype=torch.float64)

    def run(x, h0, *values):
        parameters = dict(zip(names, values, strict=True))
        options = {"reset": torch.arange(5) == torch.tensor([[2], [9]]), "lengths": torch.tensor([5, 3])}
        return torch.func.functional_call(rnn, parameters, (x, h0), options)

    values = [parameter.detach().clone().requires_grad_() for parameter in rnn.parameters()]
    assert torch.autograd.gradcheck(run, (x.requires_grad_(), h0.requires_grad_(), *values))


def test_states_of_white_input_have_unit_variance():
    """Real and imaginary part together, averaged over units with eigenvalues of all sizes."""
    torch.manual_seed(0)
    rnn = LRU(64, 200, r_min=0.5, r_max=0.99, batch_first=True)
    output, _ = rnn(torch.randn(20, 2000, 64))
    power = output[:, 1000:].square().mean(dim=(0, 1))
    assert (power[:200] + power[200:]).mean().item() == pytest.approx(1.0, abs=0.1)


def test_bad_rings_raise():
    with pytest.raises(ValueError, match=r"0 <= r_min < r_max <= 1, got 0\.9 and 0\.5"):
        LRU(3, 4, r_min=0.9, r_max=0.5)
    with pytest.raises(ValueError, match="theta_max must be positive, got 0"):
        LRU(3, 4, theta_max=0)
