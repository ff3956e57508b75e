"""A language model of characters: the next one, in the text of Python's manual, which every Python has.

    python examples/clients/characters.py

The score is the cross entropy per character on the last tenth of the text: smaller is better.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from compare import Program, Task, compare
from torch import Tensor

LENGTH, SYMBOLS = 100, 96


@lru_cache
def text() -> Tensor:
    from pydoc_data.topics import topics

    joined = "".join(topics[name] for name in sorted(topics))
    codes = torch.frombuffer(bytearray(joined.encode("ascii", "replace")), dtype=torch.uint8).long()
    return (codes - 31).clamp(0, SYMBOLS - 1)  # control characters are one symbol


def draw(B: int, random: torch.Generator, test: bool) -> tuple[Tensor, Tensor]:
    """Windows of the text, each character as a vector, and the characters that follow."""
    codes, cut = text(), len(text()) * 9 // 10
    codes = codes[cut:] if test else codes[:cut]
    starts = torch.randint(0, len(codes) - LENGTH - 1, (B,), generator=random)
    window = codes[starts[:, None] + torch.arange(LENGTH + 1)]
    return F.one_hot(window[:, :-1], SYMBOLS).float(), window[:, 1:]


def loss(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), y.flatten())


TASK = Task(draw, SYMBOLS, loss, lambda out, y: loss(out, y).item(), steps=300)
PROGRAM = Program("cross entropy", TASK.train)

if __name__ == "__main__":
    compare(PROGRAM)
