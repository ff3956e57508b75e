"""Can a small CNN tell our Pathfinder images from those of the original program? It should not.

For each reference set as many images are generated. A CNN is trained on four fifths of both and asked about the rest,
five times, so that every image is asked about once. If the two kinds are alike, the share of right answers is 50 %
within a standard error of ``0.5 / sqrt(images)``, whatever the network does. ``--control`` changes one setting of the
generator: then the same network must tell them apart, or the test has no power.

    MULTISTABLE_DATA=... python benchmarks/pathfinder_tell_apart.py --out tell_apart.json

Finished folds are kept in the file and not computed again.
"""

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable_experiments.tasks.folder import data_folder
from multistable_experiments.tasks.pathfinder.generator import draw
from multistable_experiments.tasks.pathfinder.settings import settings

SETS = {
    "hard, 10 asked": ("hard", 10, "hard_nd10_330"),
    "hard, 5 asked": ("hard", 5, "hard_nd5_200"),
    "easy, 10 asked": ("easy", 10, "easy_nd10_600"),
}
CONTROLS = {
    "none": {},
    "straighter": {"continuity": 1.3},
    "brighter": {"paddle_contrast": 0.8},
    "wider": {"padding": 2},
}
FOLDS, BATCH, SEED = 5, 32, 1000


def network() -> nn.Module:
    def layer(a: int, b: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

    return nn.Sequential(
        *layer(2, 16, 1), *layer(16, 32, 2), *layer(32, 64, 2), *layer(64, 64, 1), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(256, 1),
    )  # fmt: skip


def inputs(x: np.ndarray) -> Tensor:
    """Two channels, so that faint pixels (the lobes of the filter) are seen as well as bright ones."""
    p = torch.from_numpy(x).float().unsqueeze(1)
    return torch.cat([p / 255, torch.log1p(p) / math.log(256)], dim=1)


def images(name: str, control: str) -> tuple[Tensor, Tensor]:
    """Reference images (label 0) and as many of ours (label 1), in turn."""
    level, asked, file = SETS[name]
    with np.load(data_folder() / "pathfinder_reference" / f"{file}.npz") as reference:
        theirs = reference["x"]
    s = replace(settings(level), distractors=asked, **CONTROLS[control])
    ours, _ = draw(s, SEED, 0, len(theirs))
    both = np.stack([theirs, ours], axis=1).reshape(-1, *theirs.shape[1:])
    return inputs(both), torch.arange(len(both)) % 2


def right_answers(x: Tensor, y: Tensor, held_out: Tensor, epochs: int, device: str) -> int:
    """Train on what is not held out; count right answers on what is."""
    model = network().to(device)
    x, y = x.to(device), y.to(device)
    rows = torch.nonzero(~held_out).flatten()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    steps = epochs * (len(rows) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    for _ in range(epochs):
        for batch in rows[torch.randperm(len(rows))][: len(rows) // BATCH * BATCH].split(BATCH):
            loss = F.binary_cross_entropy_with_logits(model(x[batch]).squeeze(1), y[batch].float())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        return int(((model(x[held_out]).squeeze(1) > 0) == (y[held_out] > 0)).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("pathfinder_tell_apart.json"))
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--control", choices=CONTROLS, default="none")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    done = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.sets:
        x, y = images(name, options.control)
        fold = (torch.arange(len(x)) // 2) % FOLDS
        right = 0
        for k in range(FOLDS):
            key = f"{name} | {options.control} | {options.epochs} epochs | fold {k}"
            if key not in done:
                torch.manual_seed(k)
                start = time.perf_counter()
                done[key] = right_answers(x, y, fold == k, options.epochs, options.device)
                options.out.write_text(json.dumps(done, indent=1))
                print(
                    f"  {key}: {done[key]} of {int((fold == k).sum())}, {time.perf_counter() - start:.0f} s", flush=True
                )
            right += done[key]
        share, error = right / len(x), 0.5 / math.sqrt(len(x))
        print(
            f"{name}, control {options.control}: {share:.1%} of {len(x)}, {(share - 0.5) / error:+.1f} standard errors"
        )


if __name__ == "__main__":
    main()
