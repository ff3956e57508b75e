"""The delta rule against the kernels of its authors, on a GPU."""

import pytest
import torch

from state_machines.delta_net_peer import largest_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize(
    ("kernel", "dtype", "tolerance"),
    [("fused_recurrent_delta_rule", torch.float32, 1e-4), ("chunk_delta_rule", torch.bfloat16, 3e-2)],
)
def test_against_the_authors_kernels(kernel, dtype, tolerance):
    """The chunked kernel exists in half precision alone."""
    pytest.importorskip("fla.ops.delta_rule", reason="needs fla-core")
    assert largest_error(kernel, dtype, "cuda") <= tolerance
