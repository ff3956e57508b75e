"""A keyword among tones: which of eight three-tone words was played, long before the end of the recording?

    python examples/clients/keywords.py

A recording has 200 frames of 8 frequency bands with noise. Three tones of 4 frames each, from one of two bands, lie
within the first 20 frames; then other tones of the remaining bands follow as a distraction. The answer is due at the
end. The score is the accuracy: larger is better.
"""

import torch
import torch.nn.functional as F
from compare import Program, Task, compare
from torch import Tensor

FRAMES, BANDS = 200, 8


def draw(B: int, random: torch.Generator, test: bool) -> tuple[Tensor, Tensor]:
    x = 0.3 * torch.randn(B, FRAMES, BANDS, generator=random)
    word = torch.randint(0, 2, (B, 3), generator=random)
    start = torch.randint(0, 8, (B,), generator=random)
    rows = torch.arange(B)
    for tone in range(3):
        for frame in range(4):
            x[rows, start + 4 * tone + frame, word[:, tone]] += 1
    others = torch.randint(2, BANDS, (B, FRAMES // 4), generator=random).repeat_interleave(4, dim=1)
    later = torch.arange(FRAMES) >= 24
    x += F.one_hot(others, BANDS) * later[:, None]
    return x, (word * torch.tensor([4, 2, 1])).sum(dim=1)


def loss(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out[:, -1], y)


TASK = Task(draw, 8, loss, lambda out, y: (out[:, -1].argmax(-1) == y).float().mean().item(), steps=400)
PROGRAM = Program("accuracy", TASK.train)

if __name__ == "__main__":
    compare(PROGRAM)
