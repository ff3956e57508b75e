"""Generate the parts of the documents that come from files: tables of results, claims, benchmarks, the tour.

python tools/docs.py            rewrite them
python tools/docs.py --check    exit with 1 if one is out of date

A generated part stands between ``<!-- name -->`` and ``<!-- end name -->``. The folder ``tables`` makes each of them.
"""

import re
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from tables import agents, clients, machines, tour, training
from tables.benchmarks import benchmark
from tables.common import ROOT

DOCUMENTS = {
    "README.md": {"results": training.headline_results},
    "CONTRIBUTING.md": {"tour": tour.tour},
    "docs/clients.md": {"programs": clients.clients},
    "docs/machines.md": {
        "certified": machines.certified,
        "surrogates": machines.surrogates,
        "rivals": machines.rivals,
    },
    "docs/rl.md": {
        "t-maze": agents.t_maze,
        "rates": agents.rates,
        "t-maze-apart": partial(agents.t_maze, agents.APART),
        "rates-apart": partial(agents.rates, agents.APART),
        "learners": agents.learners,
        "popgym": agents.popgym,
        "popgym-means": agents.popgym_means,
        "popgym-search": agents.popgym_search,
    },
    "docs/results.md": {
        "runs": training.all_runs,
        "searches": training.searches,
        "tails": training.tails,
        "claims": training.claims,
    },
    "docs/speed.md": {"cpu": partial(benchmark, "cpu.json"), "gpu": partial(benchmark, "nvidia-h200.json")},
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
