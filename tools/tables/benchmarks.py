"""Benchmarks of a CPU and a GPU."""

import json

from tables.common import ROOT, commits_of, markdown_table, number, tied

BENCHMARKS = ROOT / "experiments" / "benchmarks" / "results"


def benchmark(file: str) -> str:
    """Goals, machine and commit, layers and training steps, everything else; shares at random and small shapes apart.

    Rows on growth with T are left out unless they have a goal or use fresh memory.
    """
    content = json.loads((BENCHMARKS / file).read_text())
    rows = [r for r in content["rows"] if "per step" not in r["name"] or r["goal"] is not None or "fresh" in r["name"]]
    single = [row for row in rows if row["name"].endswith((", random shape", ", small shape", " at a random shape"))]
    rows = [row for row in rows if row not in single]
    machine = content["machine"]
    device = machine["gpu"] or f"{machine['processor']}, {machine['threads']} threads"
    source = f"{device}, torch {machine['torch']}, {parts_by_commit(content['parts'])}."
    source = f"{source} {content.get('note', '')}".strip()
    header = "what, B x T x N, dtype, time, baseline, ratio, goal"
    text = f"{source} {goals_of(rows)}"
    for title, chosen in (("Layers and training steps", True), ("Scans and the rest", False)):
        found = [benchmark_row(row) for row in rows if is_headline(row) == chosen]
        text += f"\n\n{title}:\n\n{markdown_table(header, found)}"
    for words in ("random shape", "small shape"):
        if found := [row for row in single if row["name"].endswith(f", {words}")]:
            text += f"\n\nShares of copy at each {words}:\n\n{shares_by_shape(found)}"
    return text


def parts_by_commit(parts: dict[str, dict]) -> str:
    """
    >>> old = {"commit": "a" * 40, "dirty": False, "date": "2026-11-16T00:00"}
    >>> new = {"commit": "b" * 40, "dirty": True, "date": "2026-11-16T00:00"}
    >>> parts_by_commit({"scans": old, "maps": old})
    'commit `aaaaaaaaaaaa`, 2026-11-16'
    >>> parts_by_commit({"scans": old, "maps": new})
    'commit `aaaaaaaaaaaa`, 2026-11-16 (scans); commit `bbbbbbbbbbbb` with changes, 2026-11-16 (maps)'
    """
    found: dict[str, list[str]] = {}
    for part, source in parts.items():
        found.setdefault(f"commit {commits_of(source)}, {source['date'][:10]}", []).append(part)
    several = len(found) > 1
    return "; ".join(source + (f" ({', '.join(names)})" if several else "") for source, names in found.items())


def goals_of(rows: list[dict]) -> str:
    """How many goals are reached, and which rows miss theirs, by name."""
    goals = [row for row in rows if row["goal"] is not None]
    missed: dict[str, list[dict]] = {}
    for row in goals:
        if not row["reached"]:
            missed.setdefault(row["name"], []).append(row)
    words = [
        f"{name} ({len(found)} rows)"
        if len(found) > 2
        else "; ".join(f"{name} at {' x '.join(map(str, r['shape']))} in {r['dtype']}" for r in found)
        for name, found in missed.items()
    ]
    reached = f"{len(goals) - sum(map(len, missed.values()))} of {len(goals)} goals are reached."
    return f"{reached} Missed: {'; '.join(words)}." if words else reached


KERNELS = ("BMRU forward", "BMRU backward", "LRU forward", "LRU backward")


def shares_by_shape(rows: list[dict]) -> str:
    """A row per shape and dtype, a column per kernel."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        place = tied(" x ".join(map(str, row["shape"]))), row["dtype"]
        found.setdefault(place, {})[row["name"].split(",")[0]] = f"{row['ratio']:.2f}"
    columns = [*KERNELS, *(["copy by rows"] if any("copy by rows" in shares for shares in found.values()) else [])]
    lines = [(*place, *(shares.get(name, "") for name in columns)) for place, shares in found.items()]
    return markdown_table(", ".join(["B x T x N", "dtype", *columns]), lines)


def is_headline(row: dict) -> bool:
    layer = row["name"].startswith("BMRU layer") and "fresh" not in row["name"]
    return row["name"].startswith("training step") or (layer and row["baseline"].endswith(("GRU", "LSTM")))


def benchmark_row(row: dict) -> tuple:
    unit = next(u for u in ("ms", "us", "KiB", "us/step", "s") if u in row)
    time = tied(f"{number(row[unit])} {unit}")
    if unit == "us/step":  # a rate, without a baseline
        baseline, ratio = "", f"{row['ratio']:.1f} M timesteps/s"
    else:
        baseline = f"{row['baseline']} {tied(number(row[f'baseline_{unit}']) + ' ' + unit)}"
        ratio = tied(f"{row['ratio']:.2f}" + {"cost": "", "gain": " x faster", "share": " of copy"}[row["kind"]])
    goal = "" if row["goal"] is None else tied(f"{'≤' if row['kind'] == 'cost' else '≥'} {row['goal']:.3g}")
    missed = "" if row["goal"] is None or row["reached"] else " (missed)"
    return row["name"], tied(" x ".join(map(str, row["shape"]))), row["dtype"], time, baseline, ratio, goal + missed
