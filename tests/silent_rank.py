"""Started once per rank by test_exchange.py: one rank dies, hangs, or skips a layer; the others must say so."""

import os
import signal
import sys
import time

import torch

from multistable import BMRU
from multistable.distributed import ExchangeError, sequence_parallel
from ranks import join

if __name__ == "__main__":
    folder, how = sys.argv[1:]
    rank, size = join(folder, timeout=10)
    rnn = BMRU(2, 4, batch_first=True, backend="portable")
    with sequence_parallel() as pieces:
        rnn(torch.randn(1, 5, 2))
        if rank == 1 and how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1 and how == "hangs":
            time.sleep(300)
        start = time.monotonic()
        try:
            rnn(torch.randn(1, 5, 2))
        except ExchangeError as error:
            print(f"{time.monotonic() - start:.0f} s: {error}", flush=True)
            os._exit(3)
