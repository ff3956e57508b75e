"""Agents: corridors, learning rates, POPGym, the speed of a learner."""

import json
from pathlib import Path
from statistics import fmean

from tables.common import RESULTS, commits_of, markdown_table, number

from multistable_experiments.rl.rates import RATES, is_search, maze_rates, most_right, popgym_rates

AGENTS = ("bmru", "hybrid", "lru", "mingru", "gru", "lstm", "none")
MADE_TO_HOLD = ("gru-held", "lstm-held", "lru-held")
IN_MAZES, IN_POPGYM = (*AGENTS, *MADE_TO_HOLD, "mixed"), (*AGENTS, "mixed")
SHARED, APART = "tmaze-*.json", "apart-tmaze-*.json"  # whether the critic trains the memory, too


def agents(pattern: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted((RESULTS / "rl").glob(pattern))]


def t_maze(pattern: str = SHARED) -> str:
    """Correct turns in percent at the end of training and by length, one number per seed, at the rates of each cell."""
    return "\n\n".join(
        f"{words}:\n\n{mazes(noise, pattern)}" for noise, words in ((False, "Without noise"), (True, "With noise"))
    )


def mazes(noise: bool, pattern: str) -> str:
    results = agents(pattern)
    chosen = maze_rates(results)
    tested = [r for r in results if r["run"]["noise"] == noise and not is_search(r)]
    lengths = sorted({walk["length"] for r in tested for walk in r["walks"]})
    rows = []
    for cell in IN_MAZES:
        best = chosen.get(cell, RATES[0])
        ran = {r["run"]["rate"] for r in tested if r["run"]["cell"] == cell}
        for rate in sorted(ran, key=lambda rate: (rate != best, rate)):
            own = [r for r in tested if (r["run"]["cell"], r["run"]["rate"]) == (cell, rate)]
            found = [{walk["length"]: success(walk) for walk in r["walks"]} for r in own]
            at = [[by_length.get(length, "-") for by_length in found] for length in lengths]
            words = f"**{rate:g}**" if rate == best else f"{rate:g}"
            seeds, ends = [str(r["run"]["seed"]) for r in own], [f"{100 * at_end(r):.0f}" for r in own]
            rows.append((cell, words, *map(", ".join, (seeds, ends, *at))))
    names = ["cell", "rate", "seeds", "end of training", *(f"{length:,}" for length in lengths)]
    return markdown_table("; ".join(names), rows)


def at_end(result: dict) -> float:
    """The share of correct turns at the end of a training, in as many rollouts as decide which weights are the best."""
    return fmean(result["training"][-result["run"]["window"] :])


def success(walk: dict) -> str:
    """Correct turns in percent; 100 only if it is all of them.

    >>> success({"right": 9_999, "wrong": 1, "strayed": 0}), success({"right": 3, "wrong": 0, "strayed": 0})
    ('99.9', '100')
    """
    share = walk["right"] / (walk["right"] + walk["wrong"] + walk["strayed"])
    return f"{100 * share:.0f}" if share == 1 or share < 0.99 else f"{int(1000 * share) / 10:.1f}"


def rates(pattern: str = SHARED) -> str:
    """Correct turns in the best five rollouts of training in a row, at each learning rate of the search."""
    results = [r for r in agents(pattern) if is_search(r)]
    found = {(r["run"]["cell"], r["run"]["noise"], r["run"]["rate"]): f"{100 * most_right(r):.1f}" for r in results}
    chosen = maze_rates(results)
    columns = [(noise, rate) for noise in (False, True) for rate in sorted(RATES)]
    names = [f"{rate:g}{', noise' if noise else ''}" for noise, rate in columns]
    rows = [
        (cell, *(found.get((cell, *each), "") for each in columns), f"{chosen[cell]:g}" if cell in chosen else "")
        for cell in IN_MAZES
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
        for cell in IN_POPGYM
    ]
    return markdown_table("; ".join(["cell", *(f"{task}, {rate:g}" for task, rate in columns), "chosen"]), rows)


def popgym() -> str:
    """Scores of POPGym by task and cell, at the learning rate of each cell: means over seeds, and their range."""
    found: dict[tuple[str, str], list[float]] = {}
    chosen = popgym_rates(agents("popgym-*-500000-*.json"))
    for r in agents("popgym-*-2000000-*.json"):
        run = r["run"]
        if run["rate"] == chosen[run["cell"]]:
            found.setdefault((run["task"], run["cell"]), []).append(r["score"])
    tasks = (*HELD, *OTHERS)
    rows = [(task, *(spread(found.get((task, cell), [])) for cell in IN_POPGYM)) for task in tasks]
    done, planned = sum(map(len, found.values())), 3 * len(tasks) * len(IN_POPGYM)
    return f"{done} of {planned} runs are computed.\n\n" + markdown_table("; ".join(["task", *IN_POPGYM]), rows)


def popgym_means() -> str:
    """Means over tasks, from the worst to the best seed, of every cell and rate; of seeds that ran in all tasks."""
    found: dict[tuple[str, float], dict[int, dict[str, float]]] = {}
    for r in agents("popgym-*-2000000-*.json"):
        run = r["run"]
        found.setdefault((run["cell"], run["rate"]), {}).setdefault(run["seed"], {})[run["task"]] = r["score"]
    chosen = popgym_rates(agents("popgym-*-500000-*.json"))
    groups = ((*HELD, *OTHERS), HELD, OTHERS)
    rows = []
    for cell, rate in sorted(found, key=lambda key: (IN_POPGYM.index(key[0]), key[1] != chosen[key[0]])):
        whole = [scores for scores in found[cell, rate].values() if scores.keys() >= set(groups[0])]
        means = [[fmean(scores[task] for task in tasks) for scores in whole] for tasks in groups]
        words = f"**{rate:g}**" if rate == chosen[cell] else f"{rate:g}"
        if whole:
            rows.append((cell, words, len(whole), *(spread(each, 3) for each in means)))
    names = ("all 14", "8 that ask to hold something", "6 other")
    return markdown_table("; ".join(["cell", "rate", "seeds", *names]), rows)


def spread(values: list[float], digits: int = 2) -> str:
    """
    >>> spread([0.5, 0.7]), spread([0.5]), spread([])
    ('0.60 (0.50 to 0.70)', '0.50', '')
    """
    if len(values) < 2:
        return "".join(f"{value:.{digits}f}" for value in values)
    return f"{fmean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


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
