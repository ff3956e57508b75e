"""``multistable train`` as a script, for launchers that start several processes (see test_processes.py)."""

import torch
import typer

from multistable_experiments.cli.train import train

if __name__ == "__main__":
    torch.set_num_threads(1)
    typer.run(train)
