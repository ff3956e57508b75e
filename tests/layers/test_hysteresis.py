"""``HysteresisMRU``: compared with the general unit, compiled, and trained."""

import pytest
import torch

from multistable import MRU, HysteresisMRU
from multistable.dynamics import simplified_brc

DAMPED = simplified_brc(c=0.1)


def test_layer_matches_the_mru_of_the_same_field():
    torch.manual_seed(0)
    fast = HysteresisMRU(4, 6, 2, batch_first=True, bidirectional=True, dtype=torch.float64)
    general = MRU(DAMPED, 4, 6, 2, batch_first=True, bidirectional=True, dtype=torch.float64)
    general.load_state_dict(fast.state_dict())
    x = 2 * torch.randn(3, 20, 4, dtype=torch.float64)
    lengths = torch.tensor([20, 7, 0])
    for mine, other in zip(fast(x, lengths=lengths), general(x, lengths=lengths), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-9)


@pytest.mark.skipif(torch.__version__ < (2, 11), reason="torch's compiler cannot trace this unit before 2.11")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # raised when dynamo traces it
def test_compiles_as_one_graph():
    torch.compiler.reset()
    rnn = HysteresisMRU(3, 4, batch_first=True, dtype=torch.float64)
    x, results = torch.randn(2, 30, 3, dtype=torch.float64), []
    for layer in (rnn, torch.compile(rnn, fullgraph=True, backend="aot_eager")):
        output, h_n = layer(x)
        results.append([output, h_n, *torch.autograd.grad(output.square().sum(), list(rnn.parameters()))])
    torch.compiler.reset()
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)


def test_layer_learns_to_hold_a_bit_with_the_surrogate_only():
    """Recall the sign of the first of 20 inputs; the rest is noise. The exact gradient cannot learn a threshold."""

    def train(alpha_surr: float | None) -> float:
        torch.manual_seed(0)
        rnn, out = HysteresisMRU(2, 8, batch_first=True, alpha_surr=alpha_surr), torch.nn.Linear(8, 1)
        optimiser = torch.optim.Adam([*rnn.parameters(), *out.parameters()], lr=0.02)
        loss = torch.zeros(())
        for _ in range(150):
            x = torch.randn(64, 20, 2)
            x[..., 1] = torch.arange(20) == 0
            target = (x[:, 0, 0] >= 0).float()
            h = rnn(x)[0][:, -1]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(out(h)[:, 0], target)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return loss.item()

    assert train(1.0) < 0.25
    assert train(None) > 0.5


def test_bad_arguments_raise():
    with pytest.raises(ValueError, match="alpha_surr must not be negative"):
        HysteresisMRU(2, 3, alpha_surr=-1.0)
    with pytest.raises(ValueError, match="max_gain must be positive"):
        HysteresisMRU(2, 3, max_gain=0.0)
    with pytest.raises(ValueError, match="backend must be auto or one with a gradient of its own"):
        HysteresisMRU(2, 3, backend="reference")
