"""Write the generated blocks of README.md: the tour from the files' docstrings, the tables from the results.

python tools/readme.py            rewrite the blocks
python tools/readme.py --check    say whether they are up to date
"""

import ast
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SOURCE = ROOT / "src" / "multistable"
TOUR = (
    "surrogate.py",
    "ops/reference.py",
    "ops/portable.py",
    "ops/cpu.py",
    "ops/team.py",
    "ops/fused.py",
    "ops/memory.py",
    "ops/triton_latch.py",
    "ops/triton_latch_backward.py",
    "ops/triton_linear.py",
    "ops/triton_linear_backward.py",
    "ops/triton_pieces.py",
    "ops/triton_tiles.py",
    "ops/dispatch.py",
    "ops/library.py",
    "cells/recurrent.py",
    "cells/bmru.py",
    "cells/lru.py",
    "cells/hybrid.py",
    "cells/hysteresis.py",
    "cells/mru.py",
    "cells/clocked.py",
    "dynamics/equilibria.py",
    "introspect.py",
    "export.py",
    "models/block.py",
    "models/sequence.py",
    "tasks/base.py",
    "training/loop.py",
    "paper/experiments.py",
    "paper/reproduce.py",
    "paper/store.py",
    "paper/claims/__init__.py",
    "paper/theory.py",
    "paper/theory_figures.py",
    "paper/result_figures.py",
    "paper/report.py",
    "page/__init__.py",
    "cli.py",
)


def first_line(path: Path) -> str:
    """The first line of a file's docstring, in Markdown."""
    line = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]
    return re.sub(r"(:\w+:)?`+([^`]+)`+", r"`\2`", line)


def tour() -> str:
    lines = [f"| [`{name}`](src/multistable/{name}) | {first_line(SOURCE / name)} |" for name in TOUR]
    return "\n".join(["| file in `src/multistable` | what it is |", "|---|---|", *lines])


def results(file: str) -> str:
    """A benchmark's rows: layers against torch's and training steps, the others folded; machine and commit below.

    Of the rows on growth with T, only those that have a goal or fresh memory are shown.
    """
    content = json.loads((ROOT / "experiments" / "benchmarks" / "results" / file).read_text())
    rows = [r for r in content["rows"] if "per step" not in r["name"] or r["goal"] is not None or "fresh" in r["name"]]
    shown = [row for row in rows if is_headline(row)]
    goals = [row for row in rows if row["goal"] is not None]
    missed = [f"{r['name']} at {' x '.join(map(str, r['shape']))} in {r['dtype']}" for r in goals if not r["reached"]]
    summary = f"{len(rows) - len(shown)} more. Of {len(goals)} goals {len(goals) - len(missed)} are reached"
    summary += f", all but {', '.join(missed)}." if missed else "."
    folded = [f"<details><summary>{summary}</summary>\n", *table([r for r in rows if r not in shown]), "\n</details>"]
    machine = content["machine"]
    where = machine["gpu"] or f"{machine['processor']}, {machine['threads']} threads"
    source = f"{where}, torch {machine['torch']}, commit `{machine['commit'][:12]}`, {machine['date'][:10]}."
    return "\n".join([*table(shown), "", *folded, "", f"{source} {content.get('note', '')}".strip()])


def is_headline(row: dict) -> bool:
    layer = row["name"].startswith("BMRU layer") and "fresh" not in row["name"]
    return row["name"].startswith("training step") or (layer and row["baseline"].endswith(("GRU", "LSTM")))


def table(rows: list[dict]) -> list[str]:
    """The lines of a table in Markdown."""
    lines = ["| what | B x T x N | dtype | time | against | ratio | goal |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        unit = next(u for u in ("ms", "us", "KiB", "us/step") if u in row)
        sign = "≤" if row["kind"] == "cost" else "≥"
        goal = "" if row["goal"] is None else f"{sign} {row['goal']:.3g}{'' if row['reached'] else ' (missed)'}"
        ratio = f"{row['ratio']:.2f}" + {"cost": "", "gain": " x faster", "share": " of copy"}[row["kind"]]
        if unit == "us/step":  # a rate: millions of timesteps per second
            ratio, against, time = f"{row['ratio']:.1f} M timesteps/s", "", f"{row[unit]:.3g} us/step"
        else:
            against, time = f"{row['baseline']} {number(row[f'baseline_{unit}'])} {unit}", f"{number(row[unit])} {unit}"
        shape = " x ".join(map(str, row["shape"]))
        lines.append(f"| {row['name']} | {shape} | {row['dtype']} | {time} | {against} | {ratio} | {goal} |")
    return lines


def number(x: float) -> str:
    """Three digits at least.

    >>> number(0.0948123), number(16339.4)
    ('0.0948', '16,339')
    """
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def trained() -> str:
    """What the runs came to on the test set: last epoch, and the epoch that was best on the validation set."""
    lines = [
        "| task | configuration | epochs | seeds | last epoch | best epoch | seconds | commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    configurations: dict[tuple[str, str], list[dict]] = {}
    for path in sorted((ROOT / "experiments" / "results").glob("*/*.json"), key=by_numbers):
        result = json.loads(path.read_text())
        configurations.setdefault((path.parent.name, result["configuration"]), []).append(result)
    for (task, configuration), results in configurations.items():
        scores = [spread([r["metrics"][which] for r in results if which in r["metrics"]]) for which in ("last", "best")]
        seconds = f"{sum(r['seconds'] for r in results) / len(results):.0f}"
        commits = sorted({commit(r["machine"]) for r in results})
        cells = (
            task,
            f"`{configuration}`",
            results[0]["run"]["epochs"],
            len(results),
            *scores,
            seconds,
            ", ".join(commits),
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    runs = sum(map(len, configurations.values()))
    summary = f"<details><summary>{runs} runs of {len(configurations)} configurations.</summary>\n"
    return "\n".join([summary, *lines, "\n</details>"])


def by_numbers(path: Path) -> list[str]:
    """A key for sorting by which 128 comes before 1024.

    >>> sorted([Path("hard-1024"), Path("hard-128")], key=by_numbers)[0].name
    'hard-128'
    """
    return [part.zfill(9) for part in re.split(r"(\d+)", str(path))]


def commit(machine: dict) -> str:
    """The commit that finished a run, and those at which parts of it were computed before.

    >>> commit({"commit": "0123456789abcdef", "dirty": True})
    '`0123456789ab` with changes'
    >>> commit({"commit": "0123456789abcdef", "dirty": None, "earlier_commits": ["fedcba9876543210"]})
    '`0123456789ab` (begun at `fedcba987654`)'
    """
    found = f"`{(machine['commit'] or 'unknown')[:12]}`{' with changes' if machine['dirty'] else ''}"
    earlier = ", ".join(f"`{(each or 'unknown')[:12]}`" for each in machine.get("earlier_commits", []))
    return f"{found} (begun at {earlier})" if earlier else found


def spread(metrics: list[dict]) -> str:
    """The mean error or accuracy and, for several runs, the least and the greatest; failed runs are left out."""
    if not metrics:
        return "failed"
    errors = "test_mse" in metrics[0]
    values = [m["test_mse"] if errors else 100 * m["test_accuracy"] for m in metrics]
    words = [f"{x:.2g}" if errors else f"{x:.1f} %" for x in (sum(values) / len(values), min(values), max(values))]
    return words[0] if len(values) == 1 else f"{words[0]} ({words[1]} to {words[2]})"


def claims() -> str:
    """The claims of the paper, as the results have them."""
    sys.path.insert(0, str(SOURCE.parent))  # these sources, whatever is installed
    from multistable_experiments.paper import store
    from multistable_experiments.paper.claims import measure
    from multistable_experiments.paper.claims.table import markdown

    results = ROOT / "experiments" / "results"
    return markdown(measure(store.load(results), results))


BLOCKS = {
    "claims": claims,
    "results": trained,
    "tour": tour,
    "cpu": lambda: results("cpu.json"),
    "gpu": lambda: results("nvidia-h200.json"),
}


def update(text: str) -> str:
    for name, make in BLOCKS.items():
        pattern = re.compile(f"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        text, count = pattern.subn(lambda match, make=make: match[1] + make() + "\n" + match[2], text)
        if count != 1:
            raise SystemExit(f"README.md must have one block '<!-- {name} -->', has {count}")
    return text


def main() -> None:
    before = README.read_text()
    after = update(before)
    if "--check" in sys.argv:
        raise SystemExit(0 if before == after else "README.md is out of date: run python tools/readme.py")
    README.write_text(after)


if __name__ == "__main__":
    main()
