# %% [markdown]
# # Reproduce the paper
#
# Every experiment of the paper is a *run*: a frozen record of all that decides its numbers. This tutorial computes
# one and reads the results that are stored in the repository.

# %%
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

import multistable_experiments
from multistable_experiments.paper import store
from multistable_experiments.paper.experiments import EXPERIMENTS
from multistable_experiments.paper.settings import make_run, preset
from multistable_experiments.tasks import CopyFirst
from multistable_experiments.training.loop import train_run
from multistable_experiments.training.results import evaluate_lengths, folder_of, load_trained

# %% [markdown]
# ## What there is to compute
#
# On the command line: `multistable reproduce`. It computes what has no result yet, the most valuable first, and
# resumes where it was stopped. From Python:

# %%
for name, runs in EXPERIMENTS.items():
    paper, best = (len(runs("full", 0, recipe)) for recipe in ("paper", "best"))
    print(f"{name:>18}: runs per seed by the paper's settings {paper:2}, by the best ones {best:2}")

# %% [markdown]
# ## One run, small
#
# Copy-first-input with 10 numbers in the place of 300: output the first of them at the end.

# %%
small = replace(
    preset("copy-first", "small"), task=CopyFirst(10, 1.0, 4_000, 500), blocks=1, d_model=32, d_state=32, epochs=5
)
run = make_run(small, cells=("bmru",))
print(run.id, run.task)

# %%
with tempfile.TemporaryDirectory() as place:
    result = train_run(run, place)
    print({name: round(value, 3) for name, value in result["metrics"]["best"].items()})
    again = train_run(run, place)  # nothing is computed twice
    assert again == result
    folder = folder_of(run, Path(place))
    run, model = load_trained(folder)
    y, state = model(torch.randn(8, 10, run.task.d_input))
    print(evaluate_lengths(folder, [10, 1_000], samples=64))

# %% [markdown]
# ## What has been computed
#
# Results are small files in `experiments/results`, with machine, versions and commit. Figures and claims are made
# from them: `multistable figure tails --recipe best`, `multistable claims`, `multistable report`.

# %%
clone = Path(multistable_experiments.__file__).parents[3]
for record in store.load(clone / "experiments" / "results"):
    if record.configuration == "bmru-T300" and record.recipe == "tuned":
        print(f"seed {record.run.seed}: test error {record.score('last'):.4f} after {record.run.epochs} epochs")

# %% [markdown]
# All commands, budgets and exit codes: [Reproducing the paper](../reproduce.md). All numbers:
# [Results](../results.md).
