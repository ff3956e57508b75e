"""``multistable train`` as a script, for launchers that start several processes (see test_processes.py)."""

import atexit
from pathlib import Path

import torch
import typer

from multistable_experiments.cli.train import train


def report_threads() -> None:
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    print(f"threads of gloo at exit: {[name for name in names if 'gloo' in name]}")


if __name__ == "__main__":
    atexit.register(report_threads)  # the last one to run
    torch.set_num_threads(1)
    typer.run(train)
