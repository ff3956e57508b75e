"""Do the labels mean something? A small residual CNN learns them from images, far above chance.

    multistable data pathfinder --level hard --out hard32.npz
    python benchmarks/pathfinder_cnn.py --data hard32.npz --minutes 5

It is trained on the first 80 % of the file and tested on the last 10 %. After every epoch the state is written to
``--state``; the same command resumes from there until the minutes of training are over. The curve is printed as JSON
lines.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable_experiments.tasks.pathfinder.generated import read
from multistable_experiments.tasks.pathfinder.task import split_rows


class Residual(nn.Module):
    """``x + conv(relu(conv(x)))``, each convolution with batch norm."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(y)))


class Pooled(nn.Module):
    """Mean and maximum over the image."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.mean(dim=(2, 3)), x.amax(dim=(2, 3))], dim=1)


def network(width: int, blocks: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 5, stride=2, padding=2, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        *(Residual(width, dilation=1 + k % 2) for k in range(blocks)),
        Pooled(), nn.Linear(2 * width, 2),
    )  # fmt: skip


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        right = [
            (model(part).argmax(1) == label).sum() for part, label in zip(x.split(1000), y.split(1000), strict=True)
        ]
    model.train()
    return float(torch.stack(right).sum()) / len(x)


class Pixels(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1).float() / 127.5 - 0.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--state", type=Path, default=Path("pathfinder_cnn.pt"))
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--peak", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--epoch-images", type=int, default=160_000, help="images between two tests")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    _, _, labels, images = read(options.data)
    x, y = torch.from_numpy(images).to(options.device), torch.from_numpy(labels).long().to(options.device)
    train, _, test = (rows.to(options.device) for rows in split_rows(len(x), "lra"))
    torch.manual_seed(0)
    model = nn.Sequential(Pixels(), network(options.width, options.blocks)).to(options.device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=options.peak, weight_decay=0.01)
    state = {"seen": 0, "minutes": 0.0}
    if options.state.exists():
        saved = torch.load(options.state, map_location=options.device)
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        state = saved["state"]
    while state["minutes"] < options.minutes:
        start = time.perf_counter()
        run_epoch(model, optimiser, x, y, train, state, options)
        state["minutes"] += (time.perf_counter() - start) / 60
        part = options.state.with_suffix(".part")
        torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "state": state}, part)
        part.replace(options.state)
        found = accuracy(model, x[test], y[test])
        print(json.dumps({**state, "test accuracy": round(found, 4)}), flush=True)


def run_epoch(model, optimiser, x: Tensor, y: Tensor, train: Tensor, state: dict, options) -> None:
    """Train on ``--epoch-images`` images, in an order that follows from the number of images seen before.

    The learning rate rises during the first 5 % of the minutes and then falls linearly.
    """
    torch.manual_seed(state["seen"])
    rows = train[torch.randperm(len(train), device="cpu").to(train.device)][: options.epoch_images]
    start = time.perf_counter()
    for batch in rows.split(options.batch):
        spent = min(1.0, (state["minutes"] + (time.perf_counter() - start) / 60) / options.minutes)
        rate = options.peak * min(1.0, spent / 0.05 + 0.05) * (1 - spent) + 1e-6
        for group in optimiser.param_groups:
            group["lr"] = rate
        with torch.autocast(options.device.split(":")[0], torch.bfloat16, enabled=options.device != "cpu"):
            loss = F.cross_entropy(model(x[batch]), y[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        state["seen"] += len(batch)


if __name__ == "__main__":
    main()
