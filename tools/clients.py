"""Measure the programs of examples/clients: GRU, LSTM and our layers, three seeds each.

python tools/clients.py             train what docs/clients.json lacks, one line per model (an hour on one core)
python tools/clients.py NAME ...    only these programs

tools/docs.py makes the tables of docs/clients.md from the file. Seconds are those of one CPU thread.
"""

import importlib
import json
import sys
from pathlib import Path

import torch

from multistable_experiments.files import write_atomically
from multistable_experiments.machine import describe

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "clients.json"
PROGRAMS = ("characters", "forecast", "keywords", "agent", "lightning_module")
FACTS = ("processor", "python", "torch", "commit", "dirty", "date")


def stored() -> dict[str, dict]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def main(names: list[str]) -> None:
    sys.path.insert(0, str(ROOT / "examples" / "clients"))
    import compare

    torch.set_num_threads(1)
    about = describe()  # before the first result, which is a change of the source tree itself
    for name in names or PROGRAMS:
        program = importlib.import_module(name).PROGRAM
        for kind in compare.KINDS:
            if kind in stored().get(name, {}).get("rows", {}):
                continue
            row = {**compare.measure(program, kind), "machine": {fact: about[fact] for fact in FACTS}}
            results = stored()
            results.setdefault(name, {"quality": program.quality, "rows": {}})["rows"][kind] = row
            write_atomically(RESULTS, (json.dumps(results, indent=1) + "\n").encode())
            print(f"{name}, {kind}: {row['scores']} at {row['rate']}, {row['seconds']} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
