"""Programs of clients, with each layer in turn."""

import json
import sys

from tables.common import ROOT, commits_of, first_line

CLIENTS = ROOT / "examples" / "clients"
SMALLER_IS_BETTER = ("cross entropy", "error")


def clients() -> str:
    """A table of models for each program in examples/clients, and what has not been measured."""
    sys.path[:0] = [str(ROOT / "src"), str(CLIENTS)]
    from compare import KINDS, table

    results = json.loads((ROOT / "docs" / "clients.json").read_text())
    programs = sorted(path.stem for path in CLIENTS.glob("*.py") if path.stem != "compare")
    parts = [machines_of([row["machine"] for program in results.values() for row in program["rows"].values()])]
    for name in programs:
        path = CLIENTS / f"{name}.py"
        found = results.get(name, {"quality": "", "rows": {}})
        better = "smaller" if found["quality"] in SMALLER_IS_BETTER else "larger"
        parts.append(f"[`{name}.py`](../{path.relative_to(ROOT)}). {first_line(path)}")
        if rows := {kind: found["rows"][kind] for kind in KINDS if kind in found["rows"]}:
            parts.append(table(f"{found['quality']}, {better} is better", rows))
        if absent := [f"`{kind}`" for kind in KINDS if kind not in found["rows"]]:
            parts.append(f"Not measured: {', '.join(absent)}.")
    return "\n\n".join(parts)


def machines_of(machines: list[dict]) -> str:
    """Where and with what numbers were computed."""
    words = sorted({f"{machine['processor']}, torch {machine['torch']}, {commits_of(machine)}" for machine in machines})
    return f"Computed on one thread of: {'; '.join(words)}."
