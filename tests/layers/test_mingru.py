"""MinGRU against its equations."""

import torch

from multistable import MinGRU

D, N, T = 3, 4, 30


def test_mingru_matches_its_equations():
    torch.manual_seed(0)
    rnn = MinGRU(D, N, batch_first=True, dtype=torch.float64)
    (W_z, W_h), (b_z, b_h) = rnn.weight_ih_l0.chunk(2), rnn.bias_ih_l0.chunk(2)
    x = torch.randn(2, T, D, dtype=torch.float64)
    output, _ = rnn(x)
    h = torch.zeros(2, N, dtype=torch.float64)
    for t in range(T):
        z = torch.sigmoid(x[:, t] @ W_z.T + b_z)
        h = (1 - z) * h + z * (x[:, t] @ W_h.T + b_h)
        torch.testing.assert_close(output[:, t], h, rtol=1e-12, atol=1e-12)
