"""A cut sequence inside of checkpointing, ``streamed``, ``torch.compile``, DDP and FSDP; what is refused."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves

from cut_pieces import B, D, T, part, total
from multistable import BMRU, Stack
from multistable.distributed import sequence_parallel, sum_gradients
from multistable.streamed import streamed
from tolerances import assert_close


def check_checkpointing(cuts: tuple[int, ...]) -> None:
    """Blocks recomputed inside the context give the same gradients; outside of it they raise."""
    rnn, x = Stack("bmru", D, 6, 2, batch_first=True).double(), torch.randn(B, T, D, dtype=torch.float64)
    results = []
    for again in (False, True):
        rnn.zero_grad()
        with sequence_parallel():
            call = partial(torch.utils.checkpoint.checkpoint, rnn, use_reentrant=False) if again else rnn
            call(part(x, cuts))[0].square().sum().backward()
        results.append([parameter.grad.clone() for parameter in rnn.parameters()])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    with sequence_parallel():
        output = torch.utils.checkpoint.checkpoint(rnn, part(x, cuts), use_reentrant=False)[0]
    with pytest.raises(torch.utils.checkpoint.CheckpointError):  # and not recompute a piece as a whole sequence
        output.sum().backward()


def check_streamed(cuts: tuple[int, ...]) -> None:
    """Pieces in time, each cut over ranks: gradients, loss and last state of the whole sequence."""
    ends, own = (0, 15, 15, T), [[round(cut * share / T) for cut in cuts] for share in (15, 0, T - 15)]
    for make in (lambda: BMRU(D, 5, 2, batch_first=True), lambda: Stack("hybrid", D, 6, 2, batch_first=True)):
        torch.manual_seed(0)
        alone, rnn = make().double(), make().double()
        rnn.load_state_dict(alone.state_dict())
        x = torch.randn(B, T, D, dtype=torch.float64)
        expected, state = alone(x)
        weights = torch.randn_like(expected)
        (expected * weights).sum().backward()
        inputs, scales = (
            [part(y[:, ends[i] : ends[i + 1]], own[i]) for i in range(3)]
            for y in (x, weights)  # of this rank
        )
        with sequence_parallel():
            step = streamed(rnn, inputs.__getitem__, 3, lambda output, i, scales=scales: (output * scales[i]).sum())
        sum_gradients(rnn)
        assert_close(total(step.loss, step.loss), (expected * weights).sum().detach())
        for a, b in zip(tree_leaves(step.state), tree_leaves(state), strict=True):
            assert_close(a, b.detach(), "state")
        for (key, a), b in zip(rnn.named_parameters(), alone.parameters(), strict=True):
            assert_close(a.grad, b.grad, f"streamed {key} {cuts}")


def check_compile(cuts: tuple[int, ...]) -> None:
    """The graph breaks at the exchange; outputs and gradients are the same."""
    x = torch.randn(B, T, D, dtype=torch.float64)
    for rnn in (BMRU(D, 6, batch_first=True).double(), Stack("hybrid", D, 6, batch_first=True).double()):
        found = []
        for call in (rnn, torch.compile(rnn, backend="aot_eager")):
            rnn.zero_grad()
            with sequence_parallel():
                output = call(part(x, cuts))[0]
                output.square().sum().backward()
            found.append([output.detach(), *(parameter.grad for parameter in rnn.parameters())])
        for a, b in zip(*found, strict=True):
            assert_close(a, b, "compiled")


def check_refusals(cuts: tuple[int, ...]) -> None:
    x = torch.randn(B, T, D)
    refused = (Stack("gru", D, 6), BMRU(D, 6, backend="reference"))
    for rnn in refused:
        with sequence_parallel(), pytest.raises((NotImplementedError, ValueError), match="sequence_parallel"):
            rnn(part(x, cuts))


def check_mesh() -> None:
    """DDP or FSDP2 over two halves of the batch, times a sequence over two ranks."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("batch", "sequence"))
    batch, place = (mesh[name].get_local_rank() for name in ("batch", "sequence"))
    for wrap in ("ddp", "fsdp"):
        torch.manual_seed(0)
        alone, model = (Stack("hybrid", D, 8, 2, batch_first=True).double() for _ in range(2))
        model.load_state_dict(alone.state_dict())
        x = torch.randn(4, T, D, dtype=torch.float64)
        weights = torch.randn(4, T, 8, dtype=torch.float64)
        (alone(x)[0] * weights).sum().backward()
        if wrap == "ddp":
            model = nn.parallel.DistributedDataParallel(model, process_group=mesh["batch"].get_group())
        else:
            torch.distributed.fsdp.fully_shard(model, mesh=mesh["batch"])
        own = slice(2 * batch, 2 * batch + 2), [slice(0, 13), slice(13, T)][place]
        with sequence_parallel(mesh["sequence"]):
            (model(x[own])[0] * weights[own]).sum().backward()
        sum_gradients(model, mesh["sequence"])
        for (key, a), b in zip(model.named_parameters(), alone.parameters(), strict=True):
            grad = a.grad.full_tensor() if wrap == "fsdp" else a.grad
            assert_close(2 * grad, b.grad, f"{wrap} {key}")  # both take the mean over the batch's ranks
