"""The LRU against its equations."""

import math

import pytest
import torch

from multistable import LRU, Hybrid


@pytest.mark.parametrize(
    ("r_min", "r_max", "theta_max"), [(0.0, 0.99, 2 * math.pi), (0.9, 0.999, math.pi / 10), (0, 1, 1)]
)
def test_eigenvalues_start_in_the_ring(r_min, r_max, theta_max):
    torch.manual_seed(0)
    rnn = LRU(3, 8192, r_min=r_min, r_max=r_max, theta_max=theta_max, dtype=torch.float64)
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


def test_the_default_device_does_not_matter_for_the_start():
    """It may be a GPU; mps has no float64. And memory on ``meta`` takes no random numbers."""
    torch.manual_seed(0)
    expected = LRU(3, 8).state_dict()
    torch.manual_seed(0)
    with torch.device("meta"):
        LRU(3, 8)
        actual = LRU(3, 8, device="cpu").state_dict()
    assert all(torch.equal(actual[name], x) for name, x in expected.items())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_forward_matches_a_complex_loop(dtype, bias):
    torch.manual_seed(0)
    rnn = LRU(3, 10, bias=bias, batch_first=True, dtype=dtype)
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
    rnn = LRU(2, 4, bidirectional=True, batch_first=True, dtype=torch.float64)
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
    rnn = LRU(64, 400, r_min=0.5, r_max=0.99, batch_first=True)
    output, _ = rnn(torch.randn(20, 2000, 64))
    power = output[:, 1000:].square().mean(dim=(0, 1))
    assert (power[:200] + power[200:]).mean().item() == pytest.approx(1.0, abs=0.1)


def test_hidden_size_counts_numbers():
    rnn = LRU(10, 20, bidirectional=True)
    output, h_n = rnn(torch.randn(5, 3, 10), torch.zeros(2, 3, 20))
    assert (output.shape, h_n.shape) == ((5, 3, 40), (2, 3, 20))
    assert len(rnn.log_nu_l0) == 10
    with pytest.raises(ValueError, match=r"hidden_size of an LRU must be even .*, got 7"):
        LRU(10, 7)


def test_weights_of_complex_units_say_which_size_they_need():
    """``LRU(10, 20)`` once had 20 complex units."""
    with pytest.raises(RuntimeError, match=r"LRU: hidden_size counts numbers now, .* those of LRU\(10, 40\)"):
        LRU(10, 20).load_state_dict(LRU(10, 40).state_dict())
    with pytest.raises(RuntimeError, match=r"lru\.0\.: hidden_size counts numbers now"):
        Hybrid(10, 20).load_state_dict(Hybrid(10, 30, lru_size=20).state_dict())
    with pytest.raises(RuntimeError) as error:
        LRU(10, 20).load_state_dict(LRU(10, 30).state_dict())
    assert "counts numbers" not in str(error.value)


def test_several_layers_say_that_they_are_one_linear_map():
    with pytest.warns(UserWarning, match=r"LRU\(num_layers=2\) is one linear map") as warned:
        LRU(3, 4, num_layers=2)
    assert warned[0].filename == __file__


def test_bad_rings_raise():
    with pytest.raises(ValueError, match=r"0 <= r_min < r_max <= 1, got 0\.9 and 0\.5"):
        LRU(3, 4, r_min=0.9, r_max=0.5)
    with pytest.raises(TypeError, match="theta_max must be a number, got 'a'"):
        LRU(3, 4, theta_max="a")
    for wrong in (0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"theta_max must be positive and finite, got {wrong}"):
            LRU(3, 4, theta_max=wrong)
