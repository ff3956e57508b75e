"""A smoke test of an installed multistable: run it with the Python of a clean environment, in an empty folder.

python smoke.py VERSION    exit with 1 if the version differs, an extra is needed, or a layer does not learn
"""

import importlib.util
import sys
import time

import torch
import torch.nn.functional as F

import multistable
from multistable import BMRU, Stack

EXTRAS = ("numba", "safetensors", "huggingface_hub", "onnxscript", "gymnasium")


def learns(steps: int = 150) -> float:
    """Train eight units to hold a sign for 20 steps; the share of right answers after 2,000."""
    torch.manual_seed(0)
    rnn, out = BMRU(2, 8, batch_first=True), torch.nn.Linear(8, 1)
    optimiser = torch.optim.Adam([*rnn.parameters(), *out.parameters()], lr=0.02)

    def batch(B: int, T: int) -> tuple[torch.Tensor, torch.Tensor]:
        sign = torch.randint(2, (B,)).float()
        x = torch.zeros(B, T, 2)
        x[:, 0] = torch.stack([2 * sign - 1, torch.ones(B)], dim=-1)
        return x, sign

    for _ in range(steps):
        x, sign = batch(32, 20)
        loss = F.binary_cross_entropy_with_logits(out(rnn(x)[0][:, -1]).squeeze(-1), sign)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    x, sign = batch(100, 2_000)
    return float(((out(rnn(x)[0][:, -1]).squeeze(-1) > 0).float() == sign).float().mean())


def main() -> None:
    torch.set_num_threads(1)
    start = time.perf_counter()
    assert multistable.__version__ == sys.argv[1], f"version {multistable.__version__}, expected {sys.argv[1]}"
    output, h_n = Stack("hybrid", 4, 16, num_layers=2, batch_first=True)(torch.randn(2, 50, 4))
    assert output.shape == (2, 50, 16)
    assert torch.isfinite(h_n).all()
    score = learns()
    assert score > 0.95, f"after 2,000 steps {score:.0%} of the answers are right"
    present = [name for name in EXTRAS if importlib.util.find_spec(name)]
    print(
        f"multistable {multistable.__version__}, Python {sys.version.split()[0]}, torch {torch.__version__}: "
        f"{score:.0%} in {time.perf_counter() - start:.1f} s; extras: {', '.join(present) or 'none'}"
    )


if __name__ == "__main__":
    main()
