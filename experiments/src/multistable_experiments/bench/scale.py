"""What scale costs on one GPU: a billion steps, the passes of a cut sequence, runs that share the GPU.

python -m multistable_experiments.bench.scale --out experiments/benchmarks/results/scale-nvidia-h200.json

Each part is a module of this package that prints lines of JSON, in a process with a time limit of its own. The file
names machine and commit of each part, and is written after each. A part that fails leaves its error in the file. With
``--parts`` the others stay as they are.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multistable_experiments.files import write_atomically
from multistable_experiments.machine import describe

__all__ = ["PARTS", "main", "measure"]

PARTS = {
    "billion": ("long_sequence --device cuda --dtype bfloat16 --width 256 --piece 2**20 --steps 2**24 2**27 2**30", 60),
    "packing": ("packing --device cuda --packed 1 2 4 8 --seconds 5", 90),
    "passes": ("passes --device cuda --dtype bfloat16 --width 256 --steps 2**20", 60),
    "one rank": ("ranks --device cuda --dtype bfloat16 --width 256 --steps 1048576", 40),
}
"""The command of each part, and how many seconds it may take."""


def measure(path: Path, parts: Mapping[str, tuple[str, float]], seconds: float = math.inf) -> None:
    """Run each part and write it into the file ``path``, whose other parts stay; ``seconds`` for all together."""
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    end = time.monotonic() + seconds
    for name, (command, limit) in parts.items():
        limit = min(limit, end - time.monotonic())
        if limit <= 0:
            return
        content[name] = {"command": command, "machine": describe(), **run_part(command.split(), limit)}
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def run_part(command: list[str], limit: float) -> dict[str, Any]:
    """The lines that a part prints, also if it fails or runs out of time."""
    module, *args = command
    called = [sys.executable, "-m", f"multistable_experiments.bench.{module}", *args]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # the same code, installed or not
    pipe = subprocess.PIPE
    with subprocess.Popen(called, stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # with its workers
            output, errors = process.communicate()
            errors += f"\nended after {limit:.0f} s"
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {"rows": rows, "messages" if process.returncode == 0 else "error": errors[-2000:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=math.inf, help="for all parts together")
    given = parser.parse_args()
    measure(given.out, {name: PARTS[name] for name in given.parts}, given.seconds)


if __name__ == "__main__":
    main()
