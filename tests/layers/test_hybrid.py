"""The hybrid against its parts."""

import pytest
import torch

from multistable import Hybrid


def test_hybrid_matches_its_parts():
    """Positions reach the BMRU but not the LRU."""
    torch.manual_seed(0)
    rnn = Hybrid(7, 11, batch_first=True, position_size=3, dtype=torch.float64)
    x = torch.randn(2, 20, 7, dtype=torch.float64)
    output, h_n = rnn(x)
    bistable, linear = output.split([7, 4], dim=-1)
    assert torch.equal(bistable, rnn.bmru[0](x)[0])
    torch.testing.assert_close(linear, rnn.lru[0](x[..., :4])[0], rtol=1e-13, atol=1e-13)
    assert torch.equal(h_n[0], output[:, -1])
    with pytest.raises(ValueError, match="hidden_size must be at least 3"):
        Hybrid(3, 2)
    with pytest.raises(ValueError, match="position_size must lie between 0 and input_size - 1, got 3"):
        Hybrid(3, 4, position_size=3)


@pytest.mark.parametrize(
    ("hidden_size", "lru_size", "bistable"), [(3, None, 1), (4, None, 2), (6, None, 4), (20, None, 10), (30, 20, 10)]
)
def test_numbers_are_divided(hidden_size, lru_size, bistable):
    rnn = Hybrid(5, hidden_size, lru_size=lru_size)
    assert rnn.feature_size == rnn.state_size == hidden_size
    assert [cell.hidden_size for cell in rnn.cells_of(0)] == [bistable, hidden_size - bistable]


@pytest.mark.parametrize("lru_size", [0, 3, 10, -2, 4.0, "4"])
def test_a_part_that_cannot_be_is_refused(lru_size):
    with pytest.raises(ValueError, match=f"lru_size must be even and lie between 0 and hidden_size, got {lru_size!r}"):
        Hybrid(5, 10, lru_size=lru_size)


@pytest.mark.parametrize("position_size", [-1, 5, 1.5, "1"])
def test_a_position_that_cannot_be_is_refused(position_size):
    message = f"position_size must lie between 0 and input_size - 1, got {position_size!r}"
    with pytest.raises(ValueError, match=message):
        Hybrid(5, 10, position_size=position_size)


def test_options_that_are_changed_later_reach_the_parts():
    """Those of the constructor again: states, gradients, and what ``reset_parameters`` draws."""
    options = {"alpha_surr": 0.3, "start": "branch", "beta_bias": 2.0, "r_min": 0.8, "r_max": 0.9, "theta_max": 0.1}
    expected, rnn = Hybrid(3, 8, 2, backend="reference", **options), Hybrid(3, 8, 2)
    for name, value in {**options, "backend": "reference"}.items():
        setattr(rnn, name, value)
    x, found = torch.randn(5, 2, 3), []
    for layer in (rnn, expected):
        torch.manual_seed(0)
        layer.reset_parameters()
        output, h_n = layer(x)
        found.append((output, *torch.autograd.grad(output.square().sum() + h_n.sum(), layer.parameters())))
        assert {part.backend for part in (*layer.bmru, *layer.lru)} == {"reference"}
    for own, other in zip(*found, strict=True):
        assert torch.equal(own, other)
