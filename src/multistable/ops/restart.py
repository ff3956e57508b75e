"""A BMRU whose resets return to the upper branch, ``+alpha``, and not to zero: gates in plain torch, then a latch.

A reset that is not overwritten at once is a write of alpha. With ``reset_t``, and ``S(0) = +1``::

    value'_t = value_t where write_t, else alpha        write'_t = 1

and ``value_t``, ``write_t`` at every other step. The selection passes ``G_t (value_t - alpha)`` to ``write_t``, as a
latch does, and the rest of ``G_t`` to alpha.
"""

import torch
from torch import Tensor

from multistable.ops import reference
from multistable.ops.checks import check_start
from multistable.ops.operators import batch_first, call, last_state
from multistable.ops.portable import flip

__all__ = ["bmru_layer_on_branch"]


def bmru_layer_on_branch(
    proj: Tensor,
    alpha: Tensor,
    h0: Tensor,
    *,
    alpha_surr: float,
    reset: Tensor,
    reverse: bool,
    time_major: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """``layer_scans.bmru_layer``, but the state before a step that ``reset`` marks is ``+alpha``."""
    cand, beta = batch_first(proj, time_major).chunk(2, dim=-1)
    check_start(cand, h0, reset)
    write, value, level = reference.gates(cand, beta, alpha, alpha_surr)
    marked = reset[..., None]
    value = torch.where(marked, reference.latch(write, value, level.expand_as(value)), value)
    write = torch.where(marked, torch.ones_like(write), write)
    h0 = reference.rounded(h0, cand.dtype)
    if backend == "reference":
        h = reference.latch_scan(flip(write, reverse), flip(value, reverse), h0)
        h, h_last = flip(h, reverse), last_state(h, h0, reverse=False)
    else:
        h, h_last = call("latch_scan", write, value, h0, None, reverse, backend)
    return batch_first(h, time_major).to(proj.dtype), h_last.to(proj.dtype)
