"""A Lightning module: the first bit of a long noisy sequence.

    pip install lightning
    python examples/clients/lightning_module.py

The first of 100 steps carries a bit, +1 or -1, and a flag; the others carry noise of the same strength. The answer is
due at the end. The score is the accuracy on sequences ten times as long as those of the training.
"""

import logging
import time
import warnings

import torch
import torch.nn.functional as F
from compare import BATCH, Net, Program, Trained, build, compare
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning
except ImportError as error:
    raise SystemExit("this program needs Lightning: pip install lightning") from error

LENGTH, LONGER, STEPS = 100, 10, 400


def sequences(count: int, length: int, seed: int) -> TensorDataset:
    """Inputs ``[count, length, 2]``, a number and a flag, and bits ``[count]``."""
    random = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 2, (count,), generator=random)
    x = torch.zeros(count, length, 2)
    x[..., 0] = torch.randn(count, length, generator=random)
    x[:, 0, 0], x[:, 0, 1] = 2.0 * bits - 1, 1
    return TensorDataset(x, bits)


class FirstBit(lightning.LightningModule):
    """A classifier that reads its answer after the last step. Nothing in it knows which layer it has."""

    def __init__(self, net: Net, rate: float) -> None:
        super().__init__()
        self.net, self.rate = net, rate

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[:, -1]

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        x, y = batch
        out = self(x)
        self.log("error", F.cross_entropy(out, y))
        self.log("accuracy", (out.argmax(-1) == y).float().mean())

    def configure_optimizers(self):
        optimiser = torch.optim.Adam(self.parameters(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimiser, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train(kind: str, rate: float, seed: int, width: int, steps: int = STEPS) -> Trained:
    """One epoch on the CPU, without files, bars and advice: the table is the output of this program."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = FirstBit(build(kind, 2, 2, seed, width), rate)
    data = DataLoader(sequences(BATCH * steps, LENGTH, seed), BATCH)
    valid, test = (DataLoader(sequences(512, T, 10**6 + T), 512) for T in (LENGTH, LONGER * LENGTH))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "num_sanity_val_steps": 0}
    teacher = lightning.Trainer(max_epochs=1, accelerator="cpu", gradient_clip_val=1.0, **quiet)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(does not have many workers|LeafSpec)")  # of torch by Lightning
        start = time.process_time()
        teacher.fit(module, data, valid)
        seconds, error = time.process_time() - start, teacher.callback_metrics["error"].item()
        teacher.validate(module, test, verbose=False)
    return Trained(module.net.eval(), error, teacher.callback_metrics["accuracy"].item(), seconds)


PROGRAM = Program(f"accuracy at {LONGER * LENGTH:,} steps", train)

if __name__ == "__main__":
    compare(PROGRAM)
