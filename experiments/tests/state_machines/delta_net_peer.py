"""Compare the loop of the delta rule with the kernels of its authors, in flash-linear-attention.

    python experiments/tests/state_machines/delta_net_peer.py    # needs fla-core and a GPU, or TRITON_INTERPRET=1

Prints the largest relative error of the kernel that computes step by step in float32.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multistable_experiments.state_machines.delta_net import delta_rule


def largest_error(kernel: str, dtype: torch.dtype, device: str) -> float:
    """Of outputs, last state, and the gradients of all arguments, relative to their norms."""
    import fla.ops.delta_rule as rules

    T, d, B, n = 100, 16, 3, 2
    torch.manual_seed(0)
    q, k, v = torch.randn(3, T, d, B * n)
    drawn = F.normalize(q, dim=1), F.normalize(k, dim=1), v, 2 * torch.rand(T, 1, B * n), torch.randn(d, d, B * n)
    ours = [x.to(dtype).float().to(device).requires_grad_() for x in drawn]
    q, k, v, beta = (x.unflatten(-1, (B, n)).permute(2, 0, 3, 1).contiguous().to(dtype) for x in ours[:4])
    state = ours[4].unflatten(-1, (B, n)).permute(2, 3, 1, 0).contiguous()  # their rows are those of the keys
    options: dict[str, Any] = {"scale": 1.0, "initial_state": state, "output_final_state": True}
    y, last = getattr(rules, kernel)(q, k, v, beta.squeeze(-1), **options)
    theirs = y.float().permute(1, 3, 0, 2).flatten(2), last.permute(3, 2, 0, 1).flatten(2)
    weights = [torch.randn_like(each) for each in theirs]
    mine, others = (with_gradients(outputs, weights, ours) for outputs in (delta_rule(*ours), theirs))
    return max(float((x - y).norm() / x.norm()) for x, y in zip(mine, others, strict=True))


def with_gradients(outputs: tuple[Tensor, ...], weights: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:
    total = torch.stack([(y * weight).sum() for y, weight in zip(outputs, weights, strict=True)]).sum()
    return [*(y.detach() for y in outputs), *torch.autograd.grad(total, inputs)]


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(largest_error("fused_recurrent_delta_rule", torch.float32, device))
