"""Start one process per rank, from a script in this folder; join the process group from there, and leave it."""

import os
import subprocess
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

import multistable

__all__ = ["join", "leave", "run"]

HERE = Path(__file__).parent


def run(script: str, size: int, *args: object, wait_for: tuple[int, ...] | None = None, timeout: float) -> list:
    """Exit status, output and errors of each rank, or of those in ``wait_for``; the others are killed then."""
    path = os.pathsep.join([str(Path(multistable.__file__).parents[1]), str(HERE)])
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(size)}
    command = [sys.executable, str(HERE / script), *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen(command, env=env | {"RANK": str(rank)}, **pipes) for rank in range(size)]
    try:
        waited = [(ranks[i], *ranks[i].communicate(timeout=timeout)) for i in wait_for or range(size)]
    finally:
        for rank in ranks:
            rank.kill()
            if not rank.stdout.closed:
                rank.communicate()
    return [(rank.returncode, output, errors) for rank, output, errors in waited]


def join(folder: str, timeout: float = 120) -> tuple[int, int]:
    """Start the process group; this rank and how many there are."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    where = {"init_method": f"file://{folder}/store", "rank": rank, "world_size": size}
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout), **where)
    return rank, size


def leave(said: str) -> NoReturn:
    """Print a line when all ranks are here, and end the process without the interpreter's own end.

    A thread of gloo that outlives the interpreter aborts the process, one in eight times: it frees the tensor of the
    last barrier. Its group ends with the last reference to it, and torch keeps some: FSDP's meshes, default arguments.
    """
    dist.barrier()
    print(said, flush=True)
    os._exit(0)
