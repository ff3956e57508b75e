"""Kill one of two processes that train together, at random, again and again: the other must end and name it.

    python tools/kill_ranks.py [--kills 20]

Afterwards the run must resume to the numbers of two processes that nobody disturbed. The processes are started without
a launcher, which would end the other one itself.
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

from multistable.models import ModelConfig
from multistable_experiments.tasks import CopyFirst
from multistable_experiments.training import results
from multistable_experiments.training.run import Run, Schedule

TASK = CopyFirst(length=20, train_samples=4000, test_samples=50)
MODEL = ModelConfig(("bmru", "lru"), TASK.d_input, TASK.d_output, d_model=16, d_state=16, dropout=0.1)
RUN = Run(TASK, MODEL, epochs=2, batch_size=20, schedule=Schedule(warmup_epochs=1))
CODE = """
import json, sys, torch
from multistable_experiments.training.loop import Options, train_run
from multistable_experiments.training.run import Run
torch.set_num_threads(1)
train_run(Run.from_dict(json.loads(sys.argv[1])), sys.argv[2], Options("cpu", checkpoint_seconds=0.2))
"""
SECONDS = 60
"""The longest that a process may live after the other has died."""


def start(out: Path) -> list[subprocess.Popen[str]]:
    """Both processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    shared |= {"ACCELERATE_USE_CPU": "true", "LOCAL_WORLD_SIZE": "2", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", CODE, json.dumps(RUN.to_dict()), str(out)]
    return [
        subprocess.Popen(command, env=os.environ | shared | {"RANK": r, "LOCAL_RANK": r}, stderr=subprocess.PIPE, text=True)
        for r in "01"
    ]


def finish(out: Path) -> dict:
    for process in start(out):
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    result = results.read(results.folder_of(RUN, out), RUN)
    assert result is not None
    times = ("seconds", "timesteps_per_second")
    history = [{key: value for key, value in epoch.items() if key not in times} for epoch in result["history"]]
    return {"history": history, "metrics": result["metrics"]}


def kill_one(out: Path) -> tuple[int, float, bool]:
    """The rank that was killed, how long the other one lived, whether that one named it."""
    processes, last = start(out), results.folder_of(RUN, out) / "last.safetensors"
    before = last.stat().st_mtime_ns if last.exists() else 0
    while not last.exists() or last.stat().st_mtime_ns == before:  # in training, and further than last time
        time.sleep(0.01)
        assert all(process.poll() is None for process in processes)
    time.sleep(random.uniform(0, 0.3))
    rank = random.randrange(2)
    killed, other = processes[rank], processes[1 - rank]
    killed.kill()
    died = time.monotonic()
    _, errors = other.communicate(timeout=SECONDS)
    killed.communicate()
    seconds = time.monotonic() - died
    return rank, seconds, other.returncode != 0 and f"process {1 - rank} lost process {rank} of 2" in errors


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    kills = parser.parse_args().kills
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        whole = finish(Path(folder, "whole"))
        outcomes = []
        for _ in range(kills):
            outcomes.append(kill_one(Path(folder, "killed")))
            rank, seconds, named = outcomes[-1]
            print(f"killed {rank}: the other ended after {seconds:.1f} s, {'naming it' if named else 'UNNAMED'}", flush=True)
        equal = finish(Path(folder, "killed")) == whole
    good = sum(named for *_, named in outcomes)
    longest = max(seconds for _, seconds, _ in outcomes)
    print(f"{kills} kills, {good} named by the other, which lived {longest:.1f} s at most; results equal: {equal}")
    raise SystemExit(good < kills or not equal)


if __name__ == "__main__":
    main()
