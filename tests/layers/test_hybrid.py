"""The hybrid against its parts."""

import pytest
import torch

from multistable import Hybrid


def test_hybrid_matches_its_parts():
    """Positions reach the BMRU but not the LRU."""
    torch.manual_seed(0)
    rnn = Hybrid(7, 9, batch_first=True, position_size=3, dtype=torch.float64)
    x = torch.randn(2, 20, 7, dtype=torch.float64)
    output, h_n = rnn(x)
    bistable, linear = output.split([5, 8], dim=-1)
    assert torch.equal(bistable, rnn.bmru[0](x)[0])
    torch.testing.assert_close(linear, rnn.lru[0](x[..., :4])[0], rtol=1e-13, atol=1e-13)
    assert torch.equal(h_n[0], output[:, -1])
    with pytest.raises(ValueError, match="hidden_size must be at least 2"):
        Hybrid(3, 1)
    with pytest.raises(ValueError, match="position_size must lie between 0 and input_size - 1, got 3"):
        Hybrid(3, 4, position_size=3)
