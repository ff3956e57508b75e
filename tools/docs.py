"""Generate the parts of the documents that come from files: tables of results, claims, benchmarks, the tour.

python tools/docs.py            rewrite them
python tools/docs.py --check    exit with 1 if one is out of date

A generated part stands between ``<!-- name -->`` and ``<!-- end name -->``.
"""

import ast
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from multistable_experiments.rl.rates import RATES, is_search, maze_rates, most_right, popgym_rates
from multistable_experiments.state_machines.rivals import LAYERS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
BENCHMARKS = ROOT / "experiments" / "benchmarks" / "results"


def markdown_table(header: str, rows: list[tuple]) -> str:
    """
    >>> print(markdown_table("file, seeds", [("a", 1)]))
    | file | seeds |
    |---|---|
    | a | 1 |
    """
    columns = header.split("; " if "; " in header else ", ")
    lines = ["| " + " | ".join(map(str, values)) + " |" for values in (columns, *rows)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]])


def tied(text: str) -> str:
    """The same words, which no browser breaks into two lines.

    >>> tied("62.9 ms")
    '62.9\\xa0ms'
    """
    return text.replace(" ", "\u00a0")


# Results of training


def load_results() -> dict[str, list[dict]]:
    """All runs, one list per configuration, ``{"tuned/mnist/lru-2-blocks": [seed 0, seed 1], ...}``."""
    configurations: dict[str, list[dict]] = {}
    for path in sorted(RESULTS.glob("*/*/*.json"), key=numeric_order):
        result = json.loads(path.read_text())
        folder = path.parent.relative_to(RESULTS)
        configurations.setdefault(f"{folder}/{result['configuration']}", []).append(result)
    return configurations


def numeric_order(path: Path) -> list[str]:
    """Sort key that puts 128 before 1024.

    >>> sorted([Path("hard-1024"), Path("hard-128")], key=numeric_order)[0].name
    'hard-128'
    """
    return [part.zfill(9) for part in re.split(r"(\d+)", str(path))]


def all_runs() -> str:
    """Every configuration: test metric at the last epoch and at the epoch with the best validation metric."""
    configurations = load_results()
    rows = []
    for name, results in configurations.items():
        recipe, task, configuration = name.split("/")
        last, best = (
            mean_and_range([test_metric(r["metrics"][epoch]) for r in results if epoch in r["metrics"]], is_error(task))
            for epoch in ("last", "best")
        )
        seconds = f"{sum(r['seconds'] for r in results) / len(results):.0f}"
        commits = ", ".join(sorted({commits_of(r["machine"]) for r in results}))
        rows.append(
            (
                recipe,
                task,
                f"`{configuration}`",
                results[0]["run"]["epochs"],
                len(results),
                last,
                best,
                seconds,
                commits,
            )
        )
    runs = sum(map(len, configurations.values()))
    header = "recipe, task, configuration, epochs, seeds, last epoch, best epoch, seconds, commit"
    return f"{runs} runs of {len(configurations)} configurations:\n\n{markdown_table(header, rows)}"


def is_error(task: str) -> bool:
    return task == "copy-first"


def test_metric(metrics: dict) -> float:
    """The error, or the accuracy in percent."""
    return metrics["test_mse"] if "test_mse" in metrics else 100 * metrics["test_accuracy"]


def mean_and_range(values: list[float], error: bool) -> str:
    """
    >>> mean_and_range([0.001, 0.003], error=True), mean_and_range([98.04], error=False)
    ('0.002 (0.001 to\\xa00.003)', '98.0\\xa0%')
    """
    if not values:
        return "failed"
    mean, low, high = (
        f"{x:.2g}" if error else tied(f"{x:.1f} %") for x in (sum(values) / len(values), min(values), max(values))
    )
    return mean if len(values) == 1 else f"{mean} ({low} {tied(f'to {high})')}"


def commits_of(machine: dict) -> str:
    """The commit that finished a run, and the commits at which earlier parts of it were computed.

    ``?`` means that nobody knows whether the sources had changes: the machine had no Git.

    >>> commits_of({"commit": "0123456789abcdef", "dirty": True})
    '`0123456789ab` with changes'
    >>> commits_of({"commit": "0123456789abcdef", "dirty": None, "earlier_commits": ["fedcba9876543210"]})
    '`0123456789ab`? (begun at `fedcba987654`)'
    """
    changes = {True: " with changes", False: "", None: "?"}[machine["dirty"]]
    last = f"`{(machine['commit'] or 'unknown')[:12]}`{changes}"
    earlier = ", ".join(f"`{(each or 'unknown')[:12]}`" for each in machine.get("earlier_commits", []))
    return f"{last} (begun at {earlier})" if earlier else last


def headline_results() -> str:
    """README's table: BMRU, LRU and hybrid on the same task."""
    results = load_results()

    def last_epoch(name: str) -> str:
        return with_seeds([test_metric(r["metrics"]["last"]) for r in results[name]], is_error(name.split("/")[1]))

    def at_length(name: str, length: int) -> str:
        errors = [t["mse"] for r in results[name] for t in r["tests"] if (t["length"], t["noise"]) == (length, 1.0)]
        return with_seeds(errors, error=True)

    def after(recipe: str, kind: str) -> tuple[str, ...]:
        """MNIST by BMRU, LRU and hybrid."""
        return tuple(last_epoch(f"{recipe}/mnist/{layer}-{kind}") for layer in ("bmru", "lru", "hybrid"))

    def copied(recipe: str, measure: Callable[[str], str]) -> tuple[str, ...]:
        return *(measure(f"{recipe}/copy-first/{layer}") for layer in ("bmru", "lru")), ""

    def at_longest(name: str) -> str:
        return with_seeds([100 * test["accuracy"] for r in results[name] for test in longest(r)], error=False)

    million = (at_longest(f"best/mnist/{layer}-3-blocks-random") for layer in ("bmru", "lru", "hybrid"))
    long_copy, longer = "Copy the first of 300 numbers, error", "Trained on 100 numbers, tested on 100,000, error"
    pixels = "— and 1,216 black pixels after the image"
    rows = [
        ("Permuted MNIST, 3 blocks", "best", *after("best", "3-blocks")),
        (pixels, "best", *after("best", "3-blocks-black")),
        ("— and a million random ones, trained with 1,216", "best", *million),
        ("Permuted MNIST, 2 blocks", "best", *after("best", "2-blocks")),
        (pixels, "best", *after("best", "2-blocks-black")),
        ("Permuted MNIST, 2 blocks", "paper", *after("paper", "2-blocks")),
        (long_copy, "paper", *copied("paper", lambda name: last_epoch(name + "-T300"))),
        (longer, "paper", *copied("paper", lambda name: at_length(name + "-T100", 100_000))),
        ("Pathfinder, hard, 10 epochs", "tuned", last_epoch("tuned/pathfinder/hard-3-blocks-1024-10-epochs"), "", ""),
    ]
    return markdown_table("task, recipe, BMRU, LRU, hybrid", rows)


def longest(result: dict) -> list[dict]:
    """The tests with the longest tail, positions held if there are any."""
    most = max(test["pixels"] for test in result["tests"])
    tests = [test for test in result["tests"] if test["pixels"] == most]
    return [test for test in tests if test["held"]] or tests


TAIL_LENGTHS = 1_216, 4_096, 65_536, 1_000_000


def tails() -> str:
    """Accuracies after ever longer tails, with positions held, of the models trained with each tail."""
    rows = []
    for name, results in load_results().items():
        recipe, task, configuration = name.split("/")
        if (recipe, task) != ("best", "mnist") or "-blocks-" not in configuration:
            continue
        trained_with = configuration.rpartition("-")[2]
        for tail in dict.fromkeys(test["tail"] for test in results[0]["tests"]):
            cells = [after_tail(results, tail, pixels) for pixels in TAIL_LENGTHS]
            rows.append((NAMES[configuration.partition("-")[0]], trained_with, tail, *cells))
    header = "layer; trained with; tested with; " + "; ".join(f"{pixels:,}" for pixels in TAIL_LENGTHS)
    return markdown_table(header, sorted(rows, key=lambda row: (TAILS.index(row[1]), TAILS.index(row[2]), row[0])))


NAMES = {"bmru": "BMRU", "lru": "LRU", "hybrid": "hybrid", "mingru": "minGRU"}
TAILS = ["black", "random", "images"]


def after_tail(results: list[dict], tail: str, pixels: int) -> str:
    tests = [test for result in results for test in result["tests"] if (test["tail"], test["pixels"]) == (tail, pixels)]
    held = [test for test in tests if test["held"]] or tests  # a model without positions has none to hold
    return mean_and_range([100 * test["accuracy"] for test in held], error=False)


def with_seeds(values: list[float], error: bool) -> str:
    """Their mean; of errors, which may differ by orders of magnitude, also the least and the greatest.

    >>> with_seeds([98.0, 98.4], error=False), with_seeds([0.00023], error=True), with_seeds([0.1, 0.3], error=True)
    ('98.2 % (2 seeds)', '0.00023 (1 seed)', '0.2 (0.1 to 0.3, 2 seeds)')
    """
    mean = sum(values) / len(values)
    seeds = f"{len(values)} seed{'s' if len(values) > 1 else ''}"
    if error and len(values) > 1:
        seeds = f"{min(values):.2g} to {max(values):.2g}, {seeds}"
    return f"{mean:.2g} ({seeds})" if error else f"{mean:.1f} % ({seeds})"


def claims() -> str:
    """The claims of the paper with their verdicts by each recipe."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "experiments" / "src")]  # these sources, not installed ones
    from multistable_experiments.paper import store
    from multistable_experiments.paper.claims import measure_all
    from multistable_experiments.paper.claims.table import markdown
    from multistable_experiments.paper.recipes import RECIPES

    return markdown(measure_all(store.load(RESULTS), RESULTS, RECIPES))


def searches() -> str:
    """The trials behind the recipe ``best``."""
    rows = []
    for path in sorted((RESULTS / "search").glob("*.json")):
        found = json.loads(path.read_text())
        scores = [trial["score"] for trial in found["trials"]]
        best = found["trials"][found["best"]]
        chosen = ", ".join(f"{name} {value:.4g}" for name, value in best["parameters"].items())
        score = f"{best['score']:.4g}" if is_error(found["task"]) else f"{100 * best['score']:.1f} %"
        seconds = f"{sum(trial['seconds'] for trial in found['trials']):.0f}"
        given_up = sum(trial["end"] == "given up" for trial in found["trials"])
        commit = commits_of(found["machine"])
        rows.append((found["task"], found["layer"], len(scores), given_up, score, chosen, seconds, commit))
    return markdown_table("task; layer; trials; given up; best on validation; chosen; seconds; commit", rows)


# Benchmarks


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
    >>> old, new = ({"commit": letter * 40, "date": "2026-11-16T00:00"} for letter in "ab")
    >>> parts_by_commit({"scans": old, "maps": old})
    'commit `aaaaaaaaaaaa`, 2026-11-16'
    >>> parts_by_commit({"scans": old, "maps": new})
    'commit `aaaaaaaaaaaa`, 2026-11-16 (scans); commit `bbbbbbbbbbbb`, 2026-11-16 (maps)'
    """
    found: dict[str, list[str]] = {}
    for part, source in parts.items():
        found.setdefault(f"commit `{source['commit'][:12]}`, {source['date'][:10]}", []).append(part)
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


def number(x: float) -> str:
    """At least three digits.

    >>> number(0.0948123), number(16339.4)
    ('0.0948', '16,339')
    """
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


# Programs of clients

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


# The tour

LIBRARY = ROOT / "src" / "multistable"
EXPERIMENTS = ROOT / "experiments" / "src" / "multistable_experiments"
ORDER = """
    surrogate ops dynamics layers models export cli tasks training paper bench demo
    reference portable dispatch operators cpu cpu_kernels fused_layer
    fields equilibria bistable
    base sequences bmru lru hybrid mingru hysteresis mru clocked brc
    config build block norm position stack sequence
    run options step loop resume evaluate checkpoint
    settings experiments reproduce store
"""
"""Rooms in the order in which data pass through them, then files worth reading first; the rest is alphabetical."""


def reading_order(path: Path) -> tuple[int, str]:
    names = ORDER.split()
    return (names.index(path.stem) if path.stem in names else len(names), path.name)


def walk(folder: Path, is_opened: Callable[[Path], bool]) -> list[Path]:
    """Source files and packages of a folder in reading order, each package followed by its files if it is opened."""
    found = []
    for path in sorted(folder.iterdir(), key=reading_order):
        if (path / "__init__.py").exists():
            found += [path, *(walk(path, is_opened) if is_opened(path) else [])]
        elif path.suffix == ".py" and not path.name.startswith("__"):
            found.append(path)
    return found


def tour() -> str:
    """The source files, each with the first line of its docstring: all of the library, the main ones of the rest."""
    library = walk(LIBRARY, lambda package: True)
    experiments = walk(EXPERIMENTS, lambda package: package.name in ("tasks", "training", "paper"))
    main = [path for path in experiments if path.parent != EXPERIMENTS or path.is_dir() or path.name == "cli.py"]
    return tour_table(LIBRARY, library) + "\n\n" + tour_table(EXPERIMENTS, main)


def tour_table(top: Path, found: list[Path]) -> str:
    rows = []
    for path in found:
        name = f"`{path.relative_to(top)}{'/' if path.is_dir() else ''}`"
        link = f"[{name}]({path.relative_to(ROOT)})"
        rows.append((f"**{link}**" if path.is_dir() else link, first_line(path)))
    return f"`{top.relative_to(ROOT)}`:\n\n" + markdown_table("file, contents", rows)


def first_line(path: Path) -> str:
    """The first line of the docstring of a file or package, in Markdown."""
    source = (path / "__init__.py" if path.is_dir() else path).read_text()
    docstring = ast.get_docstring(ast.parse(source))
    if not docstring:
        raise SystemExit(f"{path.relative_to(ROOT)} has no docstring")
    return re.sub(r"(:\w+:)?`+([^`]+)`+", r"`\2`", docstring.splitlines()[0]).replace("|", "\\|")


# Memory for agents

AGENTS = ("bmru", "hybrid", "lru", "mingru", "gru", "lstm", "none")
MADE_TO_HOLD = ("gru-held", "lstm-held", "lru-held")


def agents(pattern: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted((RESULTS / "rl").glob(pattern))]


def t_maze() -> str:
    """Right turns in percent by length, one number per seed, at the learning rate of each cell."""
    return "\n\n".join(
        f"{words}:\n\n{mazes(noise)}" for noise, words in ((False, "Without noise"), (True, "With noise"))
    )


def mazes(noise: bool) -> str:
    results = agents("tmaze-*.json")
    chosen = maze_rates(results)
    tested = [r for r in results if r["run"]["noise"] == noise and not is_search(r)]
    lengths = sorted({walk["length"] for r in tested for walk in r["walks"]})
    rows = []
    for cell in (*AGENTS, *(cell for cell in MADE_TO_HOLD if any(r["run"]["cell"] == cell for r in tested))):
        best = chosen.get(cell, RATES[0])
        others = {r["run"]["rate"] for r in tested if r["run"]["cell"] == cell} - {best}
        for rate in (best, *sorted(others)):
            own = [r for r in tested if (r["run"]["cell"], r["run"]["rate"]) == (cell, rate)]
            found = [{walk["length"]: success(walk) for walk in r["walks"]} for r in own]
            at = [[by_length.get(length, "-") for by_length in found] for length in lengths]
            words = f"**{rate:g}**" if rate == best else f"{rate:g}"
            rows.append((cell, words, ", ".join(str(r["run"]["seed"]) for r in own), *map(", ".join, at)))
    return markdown_table("; ".join(["cell", "rate", "seeds", *(f"{length:,}" for length in lengths)]), rows)


def success(walk: dict) -> str:
    """Right turns in percent; 100 only if it is all of them.

    >>> success({"right": 9_999, "wrong": 1, "strayed": 0}), success({"right": 3, "wrong": 0, "strayed": 0})
    ('99.9', '100')
    """
    share = walk["right"] / (walk["right"] + walk["wrong"] + walk["strayed"])
    return f"{100 * share:.0f}" if share == 1 or share < 0.99 else f"{int(1000 * share) / 10:.1f}"


def rates() -> str:
    """Right turns in the best five rollouts of training in a row, at each learning rate of the search."""
    results = [r for r in agents("tmaze-*.json") if is_search(r)]
    found = {(r["run"]["cell"], r["run"]["noise"], r["run"]["rate"]): f"{100 * most_right(r):.1f}" for r in results}
    chosen = maze_rates(results)
    columns = [(noise, rate) for noise in (False, True) for rate in sorted(RATES)]
    names = [f"{rate:g}{', noise' if noise else ''}" for noise, rate in columns]
    rows = [
        (cell, *(found.get((cell, *each), "") for each in columns), f"{chosen[cell]:g}" if cell in chosen else "")
        for cell in (*AGENTS, *MADE_TO_HOLD)
        if any(key[0] == cell for key in found)
    ]
    return markdown_table("; ".join(["cell", *names, "chosen"]), rows)


HELD = (
    "RepeatFirst", "RepeatPrevious", "Autoencode", "CountRecall", "Battleship", "Concentration", "HigherLower",
    "MineSweeper",
)  # fmt: skip
OTHERS = (
    "MultiarmedBandit", "PositionOnlyCartPole", "VelocityOnlyCartPole", "NoisyPositionOnlyCartPole",
    "PositionOnlyPendulum", "NoisyPositionOnlyPendulum",
)  # fmt: skip


def popgym_search() -> str:
    """Scores at each learning rate of the search."""
    results = [r for r in agents("popgym-*-500000-*.json") if is_search(r)]
    found = {(r["run"]["cell"], r["run"]["task"], r["run"]["rate"]): f"{r['score']:.3f}" for r in results}
    chosen = popgym_rates(results)
    columns = [(task, rate) for task in ("RepeatPrevious", "PositionOnlyCartPole") for rate in sorted(RATES)]
    rows = [
        (cell, *(found.get((cell, *each), "") for each in columns), f"{chosen[cell]:g}" if cell in chosen else "")
        for cell in AGENTS
    ]
    return markdown_table("; ".join(["cell", *(f"{task}, {rate:g}" for task, rate in columns), "chosen"]), rows)


def popgym() -> str:
    """Scores of POPGym by task and cell, means over the seeds that all cells have, and their means over tasks."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for r in agents("popgym-*-2000000-*.json"):
        found.setdefault((r["run"]["task"], r["run"]["cell"]), {})[r["run"]["seed"]] = r["score"]
    seeds = {
        task: set.intersection(*(set(found.get((task, cell), ())) for cell in AGENTS)) for task in (*HELD, *OTHERS)
    }
    whole = [task for task in (*HELD, *OTHERS) if seeds[task]]
    scores = {(task, cell): [found[task, cell][k] for k in sorted(seeds[task])] for task in whole for cell in AGENTS}
    rows = [(task, *(spread(scores[task, cell]) for cell in AGENTS), str(len(seeds[task]))) for task in whole]
    groups = {"mean, all {}": whole, "mean, {} that ask to hold something": [t for t in whole if t in HELD]}
    groups["mean, {} other"] = [task for task in whole if task in OTHERS]
    for name, tasks in groups.items():
        if tasks:
            means = [fmean(fmean(scores[task, cell]) for task in tasks) for cell in AGENTS]
            rows.append((f"**{name.format(len(tasks))}**", *(f"**{mean:.3f}**" for mean in means), ""))
    done, planned = sum(map(len, found.values())), 3 * len(seeds) * len(AGENTS)
    return f"{done} of {planned} runs are computed.\n\n" + markdown_table("; ".join(["task", *AGENTS, "seeds"]), rows)


def spread(values: list[float]) -> str:
    """
    >>> spread([0.5, 0.7]), spread([0.5]), spread([])
    ('0.60 (0.50 to 0.70)', '0.50', '')
    """
    if len(values) < 2:
        return "".join(f"{value:.2f}" for value in values)
    return f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def learners() -> str:
    """Updates per second of a learner, from the files of ``multistable rl speed``."""
    kinds = {
        "CPU, one thread": "speed-cpu.json",
        "CPU, two threads": "speed-cpu-2-threads.json",
        "H200": "speed-cuda.json",
    }
    paths = {name: RESULTS / "rl" / file for name, file in kinds.items()}
    found = {name: path for name, path in paths.items() if path.exists()}
    return "\n\n".join(f"{name}, {provenance(path)}:\n\n{learners_of(path)}" for name, path in found.items())


def provenance(path: Path) -> str:
    machine = json.loads(path.read_text())["machine"]
    return f"commit {commits_of(machine)}, torch {machine['torch']}"


def learners_of(path: Path) -> str:
    content = json.loads(path.read_text())
    rates: dict[str, dict[int, float]] = {}
    for row in content["rows"]:
        rates.setdefault(row["name"].removeprefix("learner, "), {})[row["shape"][1]] = 1e3 / row["ms"]
        rates.setdefault(row["baseline"], {})[row["shape"][1]] = 1e3 / row["baseline_ms"]
    lengths = sorted(rates["BMRU"])
    rows = [
        (name, *(f"{number(each[T])} ({each[T] / rates['nn.GRU'][T]:.1f})" for T in lengths))
        for name, each in rates.items()
    ]
    return markdown_table("; ".join(["memory", *(f"{T:,} steps" for T in lengths)]), rows)


# Finite state machines

STUDIES = {
    "every": "every step",
    "last": "last step",
    "idle": "every step, 9 of 10 symbols irrelevant",
    "last-idle": "last step, 9 of 10 symbols irrelevant",
}
TARGETS = ("parity", "flip-flop", "Z3", "S3", "Z6", "D4", "A4", "S4", "A5", "dyck")


def machine_results(prefix: str = "") -> dict[str, dict]:
    paths = sorted((RESULTS / "machines").glob(f"{prefix}*.json"), key=numeric_order)
    return {path.stem: json.loads(path.read_text()) for path in paths}


def certified() -> str:
    """Machines trained without noise: how many seeds are proven right at every length."""
    found = machine_results()
    groups: dict[tuple[str, str], list[str]] = {}
    for name, result in found.items():
        training = result.get("training")
        if training is not None and training["surrogate"] == "softmax":
            loss = "-".join(["last"] * (training["answers"] == "last") + ["idle"] * ("idle" in training)) or "every"
            groups.setdefault((loss, training["machine"]), []).append(name)
    rows = []
    for loss, target in sorted(groups, key=lambda key: (list(STUDIES).index(key[0]), TARGETS.index(key[1]))):
        names = groups[loss, target]
        own = [found[name] for name in names]
        training, right = own[0]["training"], [each for each in own if each["verdict"]["right"]]
        states = (
            training["states"] or {"parity": 2, "flip-flop": 2, "Z3": 3, "S3": 6, "Z6": 6, "D4": 8, "A4": 12}[target]
        )
        long = [found[f"long-{name}"]["test"] for name in names if f"long-{name}" in found]
        rows.append((
            target, STUDIES[loss], f"{training['units']} x {states}", f"{own[0]['parameters']:,}", training["length"],
            f"{len(right)} of {len(own)}", *(span([each[key] for each in right]) for key in ("updates", "seconds")),
            f"{sum(test['failing_length'] is None for test in long)} of {len(long)}" if long else "",
        ))  # fmt: skip
    header = (
        "machine; loss at; units x states; parameters; longest in training; certified; updates; seconds; "
        "no error in 10^9 steps"
    )
    return markdown_table(header, rows)


def span(values: list[float]) -> str:
    """
    >>> span([3.4, 20, 7]), span([])
    ('3\\xa0to\\xa020', '')
    """
    if not values:
        return ""
    low, high = (f"{round(value):,}" for value in (min(values), max(values)))
    return low if low == high else tied(f"{low} to {high}")


def surrogates() -> str:
    """Updates until a machine is certified, one for each seed, by the gradient of a choice."""
    found: dict[tuple[str, str], list[str]] = {}
    for result in machine_results().values():
        training = result.get("training", {})
        if (training.get("answers"), training.get("lengths"), training.get("states")) == ("every", "uniform", None):
            updates = str(result["updates"]) if result["verdict"]["right"] else "-"
            found.setdefault((training["machine"], training["surrogate"]), []).append(updates)
    kinds = ("softmax", "margin", "gumbel")
    rows = [
        (name, *(", ".join(found.get((name, kind), [])) for kind in kinds))
        for name in ("parity", "Z3", "S3", "flip-flop")
    ]
    return markdown_table("machine; softmax; margin; softmax with Gumbel noise", rows)


def rivals() -> str:
    """The step at which the first of 64 sequences is answered wrongly: the median over the seeds, and their range."""
    found: dict[tuple[str, str], list[dict]] = {}
    for result in machine_results("rival-").values():
        if result["contest"]["seed"] < 100:  # others are the search
            found.setdefault((result["contest"]["cell"], result["contest"]["machine"]), []).append(result)
    if not found:
        return "Nothing is stored yet: `multistable machines --study rivals` takes four hours of one core."
    targets = [name for name in TARGETS if any(target == name for _, target in found)]
    rows = [(LAYERS[cell], *(failing(found.get((cell, name), [])) for name in targets)) for cell in LAYERS]
    return markdown_table("; ".join(["layer", *targets]), rows)


def failing(results: list[dict]) -> str:
    """
    >>> failing([{"test": {"failing_length": n, "longest": 100}} for n in (None, 7, 12)])
    '12 (7 to never in 100), 3 of 5 seeds'
    >>> failing([])
    'not computed'
    """
    if not results:
        return "not computed"
    never = f"never in {results[0]['test']['longest']:,}"
    lengths = sorted(each["test"]["failing_length"] or float("inf") for each in results)
    low, middle, high = (
        never if length == float("inf") else f"{length:,}"
        for length in (lengths[0], lengths[len(lengths) // 2], lengths[-1])
    )
    seeds = f", {len(results)} of 5 seeds" if len(results) < 5 else ""
    return (middle if low == high else f"{middle} ({low} to {high})") + seeds


DOCUMENTS = {
    "README.md": {"results": headline_results},
    "CONTRIBUTING.md": {"tour": tour},
    "docs/clients.md": {"programs": clients},
    "docs/machines.md": {"certified": certified, "surrogates": surrogates, "rivals": rivals},
    "docs/rl.md": {
        "t-maze": t_maze,
        "rates": rates,
        "learners": learners,
        "popgym": popgym,
        "popgym-search": popgym_search,
    },
    "docs/results.md": {"runs": all_runs, "searches": searches, "tails": tails, "claims": claims},
    "docs/speed.md": {"cpu": lambda: benchmark("cpu.json"), "gpu": lambda: benchmark("nvidia-h200.json")},
}


def regenerate(name: str, text: str) -> str:
    for block, generate in DOCUMENTS[name].items():
        pattern = re.compile(f"(<!-- {block} -->\n).*?(<!-- end {block} -->)", re.DOTALL)
        text, count = pattern.subn(lambda match, generate=generate: match[1] + generate() + "\n" + match[2], text)
        if count != 1:
            raise SystemExit(f"{name} must have one block '<!-- {block} -->', has {count}")
    return text


def main() -> None:
    outdated = []
    for name in DOCUMENTS:
        before = (ROOT / name).read_text()
        after = regenerate(name, before)
        if after != before:
            outdated.append(name)
            if "--check" not in sys.argv:
                (ROOT / name).write_text(after)
    if outdated and "--check" in sys.argv:
        raise SystemExit(f"out of date: {', '.join(outdated)}; run python tools/docs.py")


if __name__ == "__main__":
    main()
