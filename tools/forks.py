"""Call layers in forked processes after the parent has used them: which calls return, and which hang.

    python tools/forks.py

A forked child has the parent's memory but none of its threads. A worker of a DataLoader sets one thread by itself; a
child of ``os.fork`` does not. ``nn.GRU`` is there to compare with: a child that computes on several of torch's threads
waits for threads that do not exist.
"""

import os
import signal
import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from multistable import BMRU, LRU

SECONDS = 20
LAYERS = {"BMRU": BMRU, "LRU": LRU, "GRU": nn.GRU}


class Calls(Dataset):
    """One forward and backward per item."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.layer, self.x = LAYERS[name](32, 128, batch_first=True), torch.randn(16, 300, 32)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        h, _ = self.layer(self.x)
        return torch.autograd.grad(h.sum(), self.layer.weight_ih_l0)[0]


def in_worker(calls: Calls) -> bool:
    loader = DataLoader(calls, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=SECONDS)
    try:
        return len(list(loader)) == len(calls)
    except RuntimeError:
        return False


def in_fork(calls: Calls, threads: int | None) -> bool:
    """In a child of ``os.fork`` that sets this number of threads first, or none."""
    if (pid := os.fork()) == 0:
        signal.alarm(SECONDS)
        if threads is not None:
            torch.set_num_threads(threads)
        calls[0]
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def main() -> None:
    warnings.simplefilter("ignore")
    name, threads = (sys.argv[1], int(sys.argv[2])) if sys.argv[1:] else ("", 0)
    if not name:  # each case in a process of its own
        for threads in (1, 2):
            for name in LAYERS:
                os.spawnl(os.P_WAIT, sys.executable, sys.executable, __file__, name, str(threads))
        return
    torch.set_num_threads(threads)
    calls = Calls(name)
    calls[0]  # the parent's threads exist now
    found = {"DataLoader": in_worker(calls), "os.fork": in_fork(calls, None), "os.fork, 1 thread": in_fork(calls, 1)}
    words = ", ".join(f"{where} {'returns' if good else 'hangs'}" for where, good in found.items())
    print(f"{name}, parent with {threads} thread{'s' if threads > 1 else ''}: {words}", flush=True)


if __name__ == "__main__":
    main()
