"""End processes in awkward moments, again and again: each must end by itself, with its own exit code and no message.

    python tools/exits.py [--times 50] [--only SCENARIO ...]

A thread that frees a tensor while the interpreter ends aborts the process. ``daemon`` is what no library can mend, for
comparison with ``daemon of nn.GRU``: a thread of the user's that is never joined.
"""

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from typing import IO

import torch

from multistable import BMRU, LRU

SECONDS = 30
SETUP = """
import os, signal, sys, threading, time
import torch
from multistable import BMRU
layer, x = BMRU(8, 64), torch.randn(256, 4, 8)
def train(times=1):
    for _ in range(times):
        layer(x)[0].sum().backward()
def later(number, *seconds):
    def send():
        for wait in seconds:
            time.sleep(wait)
            os.kill(os.getpid(), number)
    threading.Thread(target=send).start()
"""
DAEMON = """
threading.Thread(target=lambda: [layer(x) for _ in range(10**6)], daemon=True).start()
time.sleep(0.1)
"""
SCENARIOS = {
    "after a call": "layer(x)",
    "after a step": "train()",
    "large tensors kept": "y = BMRU(8, 256)(torch.randn(512, 16, 8))[0]; torch.kept = y",
    "threads not joined": "[threading.Thread(target=train, args=(5,)).start() for _ in range(3)]",
    "a call at exit": "import atexit; atexit.register(train); train()",
    "SIGTERM": "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); later(signal.SIGTERM, 0.05); train(10**6)",
    "Ctrl-C twice": """
signal.signal(signal.SIGINT, signal.default_int_handler)
layer, x = BMRU(8, 256), torch.randn(2048, 16, 8)
later(signal.SIGINT, 0.3, 0.004)
try:
    try:
        train(10**6)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
""",
    "an error in a thread": """
from multistable.ops.threads import for_each
def work(item):
    tensor = torch.randn(1000, 100)
    time.sleep(0.002)
    if threading.current_thread() is not threading.main_thread():
        raise OverflowError
try:
    for_each(range(8), work, 2)
except OverflowError:
    pass
""",
    "DataLoader": """
from torch.utils.data import DataLoader
batches = iter(DataLoader([x] * 8, num_workers=2, collate_fn=lambda xs: layer(xs[0])[0].detach()))
next(batches), train()
""",
    "daemon": DAEMON,
    "daemon of nn.GRU": "layer = torch.nn.GRU(8, 64)\n" + DAEMON,
}


def compile_loops() -> None:
    """Once, and in one thread: a forked process inherits the loops, but would hang with torch's threads."""
    torch.set_num_threads(1)
    for layer in (BMRU(8, 64), LRU(8, 64)):
        layer(torch.randn(64, 4, 8))[0].sum().backward()


def end_once(code: str, log: IO[str]) -> str:
    """Fork, run ``code``, end the interpreter. How that went: ``ended``, or what was wrong."""
    if (pid := os.fork()) == 0:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        torch.set_num_threads(2)
        exec(SETUP + code, {"__name__": "__main__"})
        sys.exit()
    end = time.monotonic() + SECONDS
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.002)
    if ended[0] == 0:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        return "hung"
    log.seek(0)
    message = log.read().strip().splitlines()
    exit_code = os.waitstatus_to_exitcode(ended[1])
    return "ended" if exit_code == 0 and not message else f"exit code {exit_code}: {' '.join(message[-1:])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=50, help="processes per scenario (default: 50)")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), metavar="SCENARIO")
    options = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks in a process with threads
    compile_loops()
    for name in options.only:
        found: Counter[str] = Counter()
        for _ in range(options.times):
            with tempfile.TemporaryFile("w+", errors="replace") as log:
                found[end_once(SCENARIOS[name], log)] += 1
        print(f"{name}: {', '.join(f'{count} {how}' for how, count in found.most_common())}", flush=True)


if __name__ == "__main__":
    main()
