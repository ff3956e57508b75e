"""Which initialisation lets a newcomer's first BMRU learn? Six small tasks, several settings, five seeds.

python tools/defaults.py          train what docs/defaults.json lacks, one line per run
python tools/defaults.py --table  print the table of docs/defaults.md

Each model is a recurrent layer of 64 units and one linear map behind it, trained by Adam at 3e-3 for a fixed number of
steps. A score is better if it is larger: an accuracy, the share of the variance that is explained, or, for the control
task, the share of 200 steps for which the pole stays up. sequential MNIST reads images of 14 x 14 pixels, one by one.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multistable
from multistable.models.atomic import write_atomically

RESULTS = Path(__file__).parents[1] / "docs" / "defaults.json"
UNITS, BATCH, RATE = 64, 32, 3e-3
SETTINGS = {f"{value}": (value, value) for value in (0.0, 1.0, 2.0, 4.0)} | {"0 to 2": (0.0, 2.0), "0 to 4": (0.0, 4.0)}
"""What is added to the biases of the thresholds: from the first unit of a layer to the last."""
MODELS = {
    "BMRU": lambda D: multistable.BMRU(D, UNITS, batch_first=True, thresholds="paper"),
    "Stack of 2": lambda D: multistable.Stack("bmru", D, UNITS, 2, batch_first=True, thresholds="paper"),
}


@dataclass(frozen=True)
class Task:
    draw: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
    """Batch size and random numbers -> inputs ``[B, T, D]``, targets ``[B]`` (last step) or ``[B, T]`` (every step)."""
    outputs: int
    steps: int
    score: Callable[[nn.Module, Tensor, Tensor], float] | None = None


class Net(nn.Module):
    def __init__(self, rnn: nn.Module, outputs: int) -> None:
        super().__init__()
        self.rnn, self.head = rnn, nn.Linear(UNITS, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


def hold(B: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """The sign of the first of 200 normal numbers, which a flag marks."""
    x = torch.randn(B, 200, 2, generator=random)
    x[..., 1] = 0
    x[:, 0, 1] = 1
    return x, (x[:, 0, 0] > 0).long()


def copy_first(B: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """The first of 100 normal numbers, which a flag marks."""
    x, _ = hold(B, random)
    return x[:, :100], x[:, 0, 0]


def adding(B: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """The sum of two of 100 uniform numbers, one in each half, which a flag marks."""
    x = torch.rand(B, 100, 2, generator=random)
    marks = torch.stack([torch.randint(0, 50, (B,), generator=random), torch.randint(50, 100, (B,), generator=random)])
    x[..., 1] = 0
    x[torch.arange(B), marks, 1] = 1
    return x, (x[..., 0] * x[..., 1]).sum(dim=1)


def mnist(B: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    images, labels = digits()
    rows = torch.randint(0, len(images), (B,), generator=random)
    return images[rows, :, None], labels[rows]


@lru_cache
def digits() -> tuple[Tensor, Tensor]:
    from multistable_experiments.tasks.mnist import load

    images, labels = load("train")
    small = F.avg_pool2d(images.view(-1, 1, 28, 28).float() / 255, 2)
    return small.flatten(1) * 4 - 0.5, labels.long()


def text(B: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """The next character, 100 times, in the text of Python's manual."""
    codes = characters()
    starts = torch.randint(0, len(codes) - 101, (B,), generator=random)
    window = codes[starts[:, None] + torch.arange(101)]
    return F.one_hot(window[:, :-1], 96).float(), window[:, 1:]


@lru_cache
def characters() -> Tensor:
    from pydoc_data.topics import topics

    joined = "".join(topics[name] for name in sorted(topics))
    codes = torch.frombuffer(bytearray(joined.encode("ascii", "replace")), dtype=torch.uint8).long()
    return (codes - 31).clamp(0, 95)  # control characters are one


GAINS = torch.tensor([1.0, 2.4, 32.0, 5.6])


def push(state: Tensor, force: Tensor) -> Tensor:
    """0.02 s of a cart with a pole: ``[B, 4]`` of place, speed, angle and its speed; the usual constants."""
    place, speed, angle, turn = state.unbind(-1)
    inner = (force + 0.05 * turn**2 * angle.sin()) / 1.1
    bend = (9.8 * angle.sin() - angle.cos() * inner) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
    pull = inner - 0.05 * bend * angle.cos() / 1.1
    return torch.stack([place + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * turn, turn + 0.02 * bend], dim=-1)


def expert(state: Tensor) -> Tensor:
    return (state @ GAINS).clamp(-10, 10)


def visible(state: Tensor) -> Tensor:
    """Place and angle, scaled; no speeds."""
    return state[..., [0, 2]] * torch.tensor([1.0, 10.0])


def balance(B: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """The force of an expert who sees the speeds too, along 100 steps that noise disturbs."""
    seen, forces = lessons()
    rows = torch.randint(0, len(seen), (B,), generator=random)
    return seen[rows], forces[rows]


@lru_cache
def lessons() -> tuple[Tensor, Tensor]:
    random, seen, forces = torch.Generator().manual_seed(0), [], []
    state = 0.1 * torch.randn(2048, 4, generator=random)
    for _ in range(100):
        seen.append(visible(state))
        forces.append(expert(state))
        state = push(state, forces[-1] + 3 * torch.randn(len(state), generator=random))
    return torch.stack(seen, dim=1), torch.stack(forces, dim=1) / 10


def balanced(model: nn.Module, x: Tensor, _: Tensor) -> float:
    """The share of 200 steps before the pole of each of the carts falls, with the model in command."""
    state = torch.zeros(len(x), 4)
    state[:, [0, 2]] = x[:, 0] / torch.tensor([1.0, 10.0])
    memory, up, steps = None, torch.ones(len(x), dtype=torch.bool), 0.0
    for _ in range(200):
        features, memory = model.rnn.step(visible(state), memory)
        state = push(state, 10 * model.head(features)[:, 0].clamp(-1, 1))
        up = up & (state[:, 2].abs() < 0.21) & (state[:, 0].abs() < 2.4)
        steps += up.float().mean().item()
    return steps / 200


TASKS = {
    "hold": Task(hold, 2, 600),
    "copy-first": Task(copy_first, 1, 600),
    "adding": Task(adding, 1, 800),
    "sequential MNIST": Task(mnist, 10, 1200),
    "text": Task(text, 96, 1000),
    "control": Task(balance, 1, 600, balanced),
}


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    out = model(x) if y.ndim == 2 else model(x)[:, -1]
    if y.is_floating_point():
        return F.mse_loss(out.squeeze(-1), y)
    return F.cross_entropy(out.flatten(0, -2), y.flatten())


def score_of(model: nn.Module, x: Tensor, y: Tensor) -> float:
    if y.is_floating_point():
        return 1 - loss_of(model, x, y).item() / y.var().item()
    out = model(x) if y.ndim == 2 else model(x)[:, -1]
    return (out.argmax(-1) == y).float().mean().item()


def raise_thresholds(model: nn.Module, first: float, last: float) -> None:
    for module in model.modules():
        if isinstance(module, multistable.BMRU):
            module.bias_ih_l0.data[module.hidden_size :] += torch.linspace(first, last, module.hidden_size)


def train(task: Task, make: Callable[[int], nn.Module], offsets: tuple[float, float], seed: int) -> float:
    """Train one model and return its score on 512 samples of another seed."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = Net(make(task.draw(1, random)[0].shape[-1]), task.outputs)
    raise_thresholds(model, *offsets)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(task.steps):
        optimiser.zero_grad()
        loss_of(model, *task.draw(BATCH, random)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    model.eval()
    with torch.no_grad():
        return (task.score or score_of)(model, *task.draw(512, torch.Generator().manual_seed(1_000_000)))


def stored() -> dict[str, float]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def table() -> str:
    """Mean and lowest score of the seeds, for each task and setting."""
    results, lines = stored(), ["| task | model |" + "".join(f" {name} |" for name in SETTINGS)]
    lines.append("|---|---|" + "---|" * len(SETTINGS))
    for task in TASKS:
        for model in MODELS:
            cells = []
            for setting in SETTINGS:
                scores = [score for key, score in results.items() if key.startswith(f"{task}, {model}, {setting}, ")]
                cells.append(f"{statistics.mean(scores):.3f} ({min(scores):.2f})" if scores else "")
            lines.append(f"| {task} | {model} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    if "--table" in sys.argv:
        print(table())
        return
    for model, make in MODELS.items():
        for seed in range(5 if model == "BMRU" else 3):
            for name, task in TASKS.items():
                for setting, offsets in SETTINGS.items():
                    if model != "BMRU" and setting not in ("0.0", "0 to 2"):
                        continue
                    key = f"{name}, {model}, {setting}, seed {seed}"
                    if key in (results := stored()):
                        continue
                    start = time.perf_counter()
                    results[key] = score = round(train(task, make, offsets, seed), 4)
                    if not math.isfinite(score):
                        raise SystemExit(f"{key}: {score}")
                    write_atomically(RESULTS, (json.dumps(results, indent=1) + "\n").encode())
                    print(f"{key}: {score} in {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
