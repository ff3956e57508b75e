"""Batch norm over two processes equals batch norm of one process on both batches."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from multistable import ModelConfig, SequenceModel, build_model

LENGTHS = torch.tensor([9, 4, 2, 7])


def make() -> SequenceModel:
    torch.manual_seed(0)
    return build_model(ModelConfig(("lru", "bmru"), d_input=2, d_output=1, d_model=6, d_state=4)).double()


def batch() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(4, 9, 2, dtype=torch.float64) + torch.arange(4.0, dtype=torch.float64)[:, None, None]


def losses(model: SequenceModel, rows: slice) -> list[torch.Tensor]:
    """One mean loss of a batch with padding, one without."""
    x, lengths = batch()[rows], LENGTHS[rows]
    return [model(x, lengths=lengths)[0].square().mean(), model(x)[0].square().mean()]


def share(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    assert dist.get_world_size() == 2
    model = make()
    model.synchronize_norms()
    torch.stack(losses(model, slice(2 * rank, 2 * rank + 2))).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    results = [parameter.grad / 2 for parameter in model.parameters()]
    torch.save([*results, *model.buffers()], folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch was built without gloo")
def test_two_processes_share_their_statistics(tmp_path):
    mp.spawn(share, args=(tmp_path,), nprocs=2)
    model = make()
    torch.stack(losses(model, slice(None))).sum().backward()
    expected = [*(parameter.grad for parameter in model.parameters()), *model.buffers()]
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
