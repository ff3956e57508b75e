"""Started twice by torch's launcher: a layer under DDP and FSDP2 computes what it computes alone.

Each rank has half of a batch. Whatever is wrong raises, which ends the launcher with an error.
"""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

from multistable import BMRU, Hybrid, HysteresisMRU, Stack
from ranks import leave

MAKE = {
    "bmru": lambda: BMRU(8, 16, 2, batch_first=True),
    "branch": lambda: BMRU(8, 16, 2, batch_first=True, start="branch"),
    "hybrid": lambda: Hybrid(8, 16, batch_first=True),
    "hysteresis": lambda: HysteresisMRU(8, 16, batch_first=True),
    "stack": lambda: Stack("hybrid", 8, 16, 2, batch_first=True),
}


def shard(model: torch.nn.Module, mesh) -> torch.nn.Module:
    """Blocks first, then the whole; ``step`` does not go through ``forward``, so FSDP has to be told of it."""
    for module in [*getattr(model, "blocks", []), model]:
        fully_shard(module, mesh=mesh)
        register_fsdp_forward_method(module, "step")
    return model


def full(x: torch.Tensor) -> torch.Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def compare(name: str, wrap, folder: Path) -> None:
    torch.manual_seed(0)
    alone, model = MAKE[name]().double(), MAKE[name]().double()
    model.load_state_dict(alone.state_dict())
    model = wrap(model)
    batch = torch.randn(4, 30, 8, dtype=torch.float64)
    x = batch[2 * dist.get_rank() :][:2]
    for _ in range(2):  # FSDP frees and gathers parameters
        model.zero_grad()
        output, h_n = model(x)
        (output.square().sum() + h_n.sum()).backward()
    expected, expected_n = alone(batch)
    (expected.square().sum() + expected_n.sum()).backward()
    torch.testing.assert_close(output, expected[2 * dist.get_rank() :][:2], rtol=1e-12, atol=1e-12)
    for (key, a), b in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(2 * full(a.grad), b.grad, rtol=1e-9, atol=1e-12, msg=f"{name} {key}")
    inner = getattr(model, "module", model)
    torch.testing.assert_close(inner.step(x[:, 0])[0], alone.step(x[:, 0])[0], rtol=1e-12, atol=1e-12)
    check_checkpoint(inner, alone, MAKE[name]().double(), folder / name)


def check_checkpoint(model, alone, other, folder: Path) -> None:
    """Saved by both ranks, loaded into a plain layer; and gathered in memory."""
    dcp.save(get_model_state_dict(model), checkpoint_id=folder)
    state = other.state_dict()
    dcp.load(state, checkpoint_id=folder)
    gathered = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=False))
    for key, value in alone.state_dict().items():
        assert torch.equal(state[key], value), key
        assert torch.equal(full(gathered[key]), value), key


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    for name in MAKE:
        compare(name, DistributedDataParallel, folder / "ddp")
        compare(name, lambda model: shard(model, mesh), folder / "fsdp")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
    leave("all equal")
