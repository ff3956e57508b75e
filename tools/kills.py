"""Kill a training at random, again and again: it must resume to the numbers of one that nobody disturbed.

    python tools/kills.py [--kills 20] [--processes 2]

Of two processes that train together one is killed; the other must end by itself and name it. They are started without
a launcher, which would end the other one.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from multistable.models import ModelConfig
from multistable_experiments.tasks import CopyFirst
from multistable_experiments.training import results
from multistable_experiments.training.run import Run, Schedule

TASK = CopyFirst(length=20, train_samples=20_000, test_samples=50)
MODEL = ModelConfig(("bmru", "lru"), TASK.d_input, TASK.d_output, d_model=16, d_state=16, dropout=0.1)
RUN = Run(TASK, MODEL, epochs=2, batch_size=20, schedule=Schedule(warmup_epochs=1))
CODE = """
import json, sys, torch
from multistable_experiments.training.loop import Options, train_run
from multistable_experiments.training.run import Run
torch.set_num_threads(1)
train_run(Run.from_dict(json.loads(sys.argv[1])), sys.argv[2], Options("cpu", checkpoint_seconds=0.1))
"""
SECONDS = 60
"""The longest that a process may live after the other has died."""


def start(out: Path, count: int) -> list[subprocess.Popen[str]]:
    """All processes of a training."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    shared |= {"ACCELERATE_USE_CPU": "true", "LOCAL_WORLD_SIZE": str(count), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", CODE, json.dumps(RUN.to_dict()), str(out)]
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    return [subprocess.Popen(command, env=os.environ | shared | r, stderr=subprocess.PIPE, text=True) for r in ranks]


def finish(out: Path, count: int) -> dict[str, Any]:
    """Everything but the times of a finished run."""
    for process in start(out, count):
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    result = results.read(results.folder_of(RUN, out), RUN)
    assert result is not None
    times = ("seconds", "timesteps_per_second")
    history = [{key: value for key, value in epoch.items() if key not in times} for epoch in result["history"]]
    return {"history": history, "metrics": result["metrics"]}


def kill_one(out: Path, count: int) -> tuple[float, bool]:
    """How long the other process lived, if there is one, and whether it named the one that was killed."""
    processes, last = start(out, count), results.folder_of(RUN, out) / "last.safetensors"
    before = last.stat().st_mtime_ns if last.exists() else 0
    while not last.exists() or last.stat().st_mtime_ns == before:  # in training, and further than last time
        time.sleep(0.01)
        assert all(process.poll() is None for process in processes)
    time.sleep(random.uniform(0, 0.3))
    rank, died = random.randrange(count), time.monotonic()
    processes[rank].kill()
    named = True
    for other in set(range(count)) - {rank}:
        _, errors = processes[other].communicate(timeout=SECONDS)
        named = processes[other].returncode != 0 and f"process {other} lost process {rank} of 2" in errors
    processes[rank].communicate()
    return time.monotonic() - died, named


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2, choices=(1, 2))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        whole = finish(Path(folder, "whole"), options.processes)
        outcomes = [kill_one(Path(folder, "killed"), options.processes) for _ in range(options.kills)]
        equal = finish(Path(folder, "killed"), options.processes) == whole
    named = sum(named for _, named in outcomes)
    words = f"{options.kills} kills of a training in {options.processes} process{'es' if options.processes > 1 else ''}"
    if options.processes > 1:
        longest = max(seconds for seconds, _ in outcomes)
        words += f", {named} named by the other process, which lived {longest:.1f} s at most"
    print(f"{words}; results equal: {equal}")
    raise SystemExit(named < options.kills or not equal)


if __name__ == "__main__":
    main()
