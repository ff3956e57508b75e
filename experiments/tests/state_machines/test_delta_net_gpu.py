"""The delta rule against the kernels of its authors, in flash-linear-attention."""

import pytest
import torch
import torch.nn.functional as F

from multistable_experiments.state_machines.delta_net import delta_rule

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize(
    ("kernel", "dtype", "tolerance"),
    [("fused_recurrent_delta_rule", torch.float32, 1e-4), ("chunk_delta_rule", torch.bfloat16, 3e-2)],
)
def test_against_the_authors_kernels(kernel, dtype, tolerance):
    """Outputs, last state, and gradients of all arguments. The chunked kernel exists in half precision alone."""
    rules = pytest.importorskip("fla.ops.delta_rule", reason="needs flash-linear-attention")
    T, d, B, n = 100, 16, 3, 2
    torch.manual_seed(0)
    q, k, v = torch.randn(3, T, d, B * n)
    drawn = F.normalize(q, dim=1), F.normalize(k, dim=1), v, 2 * torch.rand(T, 1, B * n), torch.randn(d, d, B * n)
    ours = [x.to(dtype).float().cuda().requires_grad_() for x in drawn]
    q, k, v, beta = (x.unflatten(-1, (B, n)).permute(2, 0, 3, 1).contiguous().to(dtype) for x in ours[:4])
    state = ours[4].unflatten(-1, (B, n)).permute(2, 3, 1, 0).contiguous()  # their rows are those of the keys
    y, last = getattr(rules, kernel)(
        q, k, v, beta.squeeze(-1), scale=1.0, initial_state=state, output_final_state=True
    )  # fmt: skip
    theirs = y.float().permute(1, 3, 0, 2).flatten(2), last.permute(3, 2, 0, 1).flatten(2)
    weights = [torch.randn_like(each) for each in theirs]
    results = []
    for outputs in (delta_rule(*ours), theirs):
        total = sum((each * weight).sum() for each, weight in zip(outputs, weights, strict=True))
        results.append([*outputs, *torch.autograd.grad(total, ours)])
    for mine, other in zip(*results, strict=True):
        assert (mine - other).norm() <= tolerance * mine.norm()
