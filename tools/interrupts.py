"""Interrupt calls of a layer at random moments: count interrupts that were lost and results that were wrong.

    python tools/interrupts.py [--seconds 60] [--threads 2]

A call must either raise ``KeyboardInterrupt`` or return what an undisturbed call returns, and every interrupt must be
raised by some call. The signal is SIGALRM with Python's own handler for Ctrl-C, at random times of 0 to 20 ms.
"""

import argparse
import random
import signal
import time
from types import FrameType

import torch

from multistable import BMRU, LRU


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    calls, sent, raised, wrong = stress(options.seconds)
    lost = sent - raised
    print(f"{calls} calls, {sent} interrupts, {raised} raised, {lost} lost, {wrong} wrong results")
    raise SystemExit(lost + wrong > 0)


def stress(seconds: float) -> tuple[int, int, int, int]:
    """Calls, interrupts sent, interrupts raised, wrong results."""
    torch.manual_seed(0)
    x = torch.randn(32, 600, 8)  # outputs of 5 MiB, in memory that is kept
    cells = [BMRU(8, 64, batch_first=True), LRU(8, 32, batch_first=True)]
    expected = [run(cell, x) for cell in cells]
    calls = sent = raised = wrong = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal sent
        sent += 1
        raise KeyboardInterrupt

    before, end = signal.signal(signal.SIGALRM, interrupt), time.monotonic() + seconds
    while time.monotonic() < end:
        which = random.randrange(2)
        calls += 1
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 2e-2))
            found = run(cells[which], x)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            raised += 1
            continue
        wrong += not all(torch.equal(a, b) for a, b in zip(found, expected[which], strict=True))
    signal.signal(signal.SIGALRM, before)
    return calls, sent, raised, wrong


def run(cell: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """States and gradients; the memory of the last call is filled with NaN before the next one reuses it."""
    h, h_n = cell(x)
    found = [h.detach().clone(), h_n.detach().clone(), *torch.autograd.grad(h.sum(), list(cell.parameters()))]
    h.detach().fill_(float("nan"))
    return found


if __name__ == "__main__":
    main()
