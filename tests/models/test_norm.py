"""Batch norm matches torch's on the valid steps, in one process or two."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from multistable import ModelConfig, SequenceModel, build_model
from multistable.models.norm import BatchNorm

LENGTHS = torch.tensor([9, 4, 2, 7])


def test_batch_norm_matches_torch_on_valid_steps():
    torch.manual_seed(0)
    x, lengths = torch.randn(4, 9, 6) * 3 + 1, torch.tensor([9, 2, 5, 1])
    valid = (torch.arange(9) < lengths[:, None])[..., None]
    ours, theirs = BatchNorm(6), torch.nn.BatchNorm1d(6)
    for _ in range(3):
        y, expected = ours(x, valid), theirs(x[valid[..., 0]])
        torch.testing.assert_close(y[valid[..., 0]], expected)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    torch.testing.assert_close(ours(x), theirs(x.flatten(0, 1)).view(x.shape))
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x.flatten(0, 1)).view(x.shape))


def test_a_batch_without_valid_steps_keeps_the_statistics():
    norm = BatchNorm(3)
    norm(torch.randn(2, 5, 3) + 4)
    before = norm.running_mean.clone(), norm.running_var.clone()
    norm(torch.randn(2, 5, 3), torch.zeros(2, 5, 1, dtype=torch.bool))
    assert torch.equal(norm.running_mean, before[0])
    assert torch.equal(norm.running_var, before[1])


def make() -> SequenceModel:
    torch.manual_seed(0)
    return build_model(ModelConfig(("lru", "bmru"), d_input=2, d_output=1, d_model=6, d_state=4)).double()


def batch() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(4, 9, 2, dtype=torch.float64) + torch.arange(4.0, dtype=torch.float64)[:, None, None]


def losses(model: SequenceModel, rows: slice) -> list[torch.Tensor]:
    """The mean losses of a padded batch and of an unpadded one."""
    x, lengths = batch()[rows], LENGTHS[rows]
    return [model(x, lengths=lengths)[0].square().mean(), model(x)[0].square().mean()]


def train_half(rank: int, folder: Path) -> None:
    """Train one process on its half of the batch, with shared statistics."""
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
def test_two_processes_match_one_with_the_whole_batch(tmp_path):
    mp.spawn(train_half, args=(tmp_path,), nprocs=2)
    model = make()
    torch.stack(losses(model, slice(None))).sum().backward()
    expected = [*(parameter.grad for parameter in model.parameters()), *model.buffers()]
    for rank in range(2):
        actual = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_incoming_gradient_is_made_contiguous() -> None:
    """A slice, such as a concatenation with positions passes back, would take torch's slow kernel on a GPU."""
    y = BatchNorm(4)(torch.randn(2, 3, 4))
    seen: list[torch.Tensor] = []
    y.register_hook(seen.append)
    y.backward(torch.randn(2, 3, 8)[..., :4])
    assert seen[0].is_contiguous()
