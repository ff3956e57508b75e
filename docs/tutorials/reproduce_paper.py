# %% [markdown]
# # Reproduce the paper
#
# Every experiment of the paper is a *run*: a frozen record of everything that determines its numbers. This tutorial
# computes one and reads the results that are stored in the repository.

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
# ## List the experiments
#
# On the command line, `multistable reproduce` computes the experiments that have no result yet, the most valuable
# first, and resumes where it was stopped. Each figure has experiments with the paper's settings (recipe `paper`) and
# with the best settings that a search found (recipe `best`). Count them from Python:

# %%
for name, runs in EXPERIMENTS.items():
    paper, best = (len(runs("full", 0, recipe)) for recipe in ("paper", "best"))
    print(f"{name:>18}: {paper:2} runs per seed with recipe paper, {best:2} with recipe best")

# %% [markdown]
# ## Compute a small run
#
# The task copy-first-input: read random numbers and output the first one at the end. Use 10 numbers instead of the
# paper's 100 or 300:

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
# The last line tests the model at the trained length and at a hundred times that length, where the error of this small
# model is larger.
#
# ## Read the stored results
#
# Results are small files in `experiments/results`, with machine, versions and commit. `multistable figure`,
# `multistable claims` and `multistable report` read these files. So can you:

# %%
clone = Path(multistable_experiments.__file__).parents[3]
for record in store.load(clone / "experiments" / "results"):
    if record.configuration == "bmru-T300" and record.recipe == "tuned":
        print(f"seed {record.run.seed}: test error {record.score('last'):.4f} after {record.run.epochs} epochs")

# %% [markdown]
# For all commands, budgets and exit codes, see [Reproducing the paper](../reproduce.md). For all numbers, see
# [Results](../results.md).
