"""The search behind the recipe ``best``: settings of a layer for a task, chosen on validation data alone.

Every layer gets the same number of trials of the same number of epochs, judged by the same rule, in the same space
where it applies: learning rate, dropout and weight decay for all; thresholds and positions for layers with a BMRU; the
ring of eigenvalues for layers with an LRU. Settings are proposed by Optuna's tree-structured Parzen estimator; after
each epoch a trial whose best score so far is below the median of the earlier ones is given up.

``multistable sweep`` writes all trials, good and bad, into ``results/search/<task>-<layer>.json``.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from multistable_experiments.files import check_writable, read_json, write_json
from multistable_experiments.machine import describe
from multistable_experiments.paper.recipes import Choice, apply_choice, has_eigenvalues
from multistable_experiments.paper.settings import BLACK_PIXELS, PRESETS, has_thresholds, make_run
from multistable_experiments.tasks.seeds import derive
from multistable_experiments.training.checkpoint import InUseError
from multistable_experiments.training.loop import NonFiniteLossError, Options, train_run
from multistable_experiments.training.results import check_same, folder_of
from multistable_experiments.training.resume import METRICS
from multistable_experiments.training.run import Run

__all__ = ["EPOCHS", "TRIALS", "Search", "base_run", "best_choice", "path_of", "run_search", "search"]

TRIALS = 16
EPOCHS = {"mnist": 8, "copy-first": 20}
SEED = 1_000_000
"""Of the trials: weights, order and validation images are those of no experiment."""
STARTUP = 5
"""Random trials before the estimator proposes; none is given up among them."""


def base_run(task: str, layer: str) -> Run:
    """The run of a trial before its settings: two blocks, MNIST with black pixels or copy-first at T = 300."""
    preset = PRESETS[task, "full"]
    changes = {"black_pixels": BLACK_PIXELS} if task == "mnist" else {"length": 300}
    preset = replace(preset, task=replace(preset.task, **changes), epochs=EPOCHS[task], initial="unit")
    return make_run(preset, (layer,) * preset.blocks, seed=SEED, precision="bfloat16")


def suggest(trial: Any, run: Run) -> Choice:
    """The settings of a trial."""
    layer, positions = run.model.cells[0], run.model.position is not None
    chosen: dict[str, Any] = {
        "peak": trial.suggest_float("peak", 3e-4, 1e-2, log=True),
        "dropout": trial.suggest_categorical("dropout", (0.0, 0.1, 0.2)),
        "decay": trial.suggest_float("decay", 1e-3, 0.3, log=True),
    }
    if has_thresholds(layer):
        chosen["bmru_decay"] = trial.suggest_float("bmru_decay", 1e-5, 0.1, log=True)
        chosen["tuning"] = trial.suggest_categorical("tuning", (0.0, 8.0)) if positions else 0.0
        if not chosen["tuning"]:
            chosen["beta_bias"] = trial.suggest_categorical("beta_bias", (0.0, 2.0, 4.0, 8.0))
    if has_eigenvalues(layer):
        slowest = trial.suggest_float("slowest", 2, 6)  # r_max = 1 - 10^-slowest, from 0.99 to 1 - 1e-6
        fastest = min(trial.suggest_float("fastest", 0, 4), slowest - 0.3)  # r_min from 0 to 0.9999, below r_max
        chosen |= {"r_min": 1 - 10**-fastest, "r_max": 1 - 10**-slowest}
        chosen["theta_max"] = trial.suggest_categorical("theta_max", (2 * math.pi, math.pi / 10, 1e-3))
    if positions:
        chosen["scale"] = trial.suggest_categorical("scale", (1.0, 4.0))
        if layer != "bmru":
            chosen["everywhere"] = trial.suggest_categorical("everywhere", (False, True))
    return Choice(**chosen)


def search(
    task: str,
    layer: str,
    trials: int = TRIALS,
    results: Path | str = "results",
    out: Path | str = "runs",
    options: Options | None = None,
    deadline: float | None = None,
    say: Callable[[str], None] = print,
) -> Choice | None:
    """Run the trials that the file does not have yet, and return the best choice; None before the first. Raise if the
    file has trials of other settings.

    After ``deadline`` (of ``time.perf_counter()``) no trial is begun; one that is interrupted resumes.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    run, path = base_run(task, layer), path_of(results, task, layer)
    check_writable("--results", path)  # before the first trial, not after it
    larger = run.task.larger_is_better
    study = optuna.create_study(
        direction="maximize" if larger else "minimize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=1),
    )
    done = stored_trials(path, run)
    for trial in done:
        study.add_trial(restored(study, trial, run))
    while len(done) < trials and not (deadline and time.perf_counter() >= deadline):
        number = len(done)
        study.sampler = optuna.samplers.TPESampler(
            seed=derive(0, task, layer, number) % 2**32, n_startup_trials=STARTUP
        )
        trial, folder = run_trial(study, run, out, options or Options())
        if len(stored_trials(path, run)) != len(done):
            raise InUseError(f"{path} is in use: another process has added trials")
        done.append(trial)
        write_search(path, task, layer, done, larger)
        shutil.rmtree(folder, ignore_errors=True)  # now that nothing of it can be lost
        say(f"{task} {layer}, trial {number + 1} of {trials}: {done[-1]['score']:.4f} {done[-1]['choice']}")
    return best_choice(path) if done else None


@dataclass(frozen=True)
class Search:
    """The search of one layer for a worker of an engine, with folders that all machines see."""

    task: str
    layer: str
    trials: int
    results: Path
    out: Path
    options: Options
    until: float
    """When no trial is begun any more, by ``time.time()``."""


def run_search(each: Search) -> tuple[list[str], Choice | None]:
    """Run or continue a search in a worker: what there is to say, and the best choice."""
    lines: list[str] = []
    left = each.until - time.time()
    deadline = None if left == math.inf else time.perf_counter() + left
    choice = search(
        each.task, each.layer, each.trials, each.results, each.out, each.options, deadline, say=lines.append
    )
    return lines, choice


def run_trial(study: Any, run: Run, out: Path | str, options: Options) -> tuple[dict[str, Any], Path]:
    """Propose settings, train, and tell the study: the trial as it is stored, and the folder of its run."""
    import optuna

    metric = f"valid_{run.task.metric}"
    trial = study.ask()
    choice = suggest(trial, run)
    run = apply_choice(run, choice)
    folder = folder_of(run, Path(out))

    def scores_so_far() -> list[float]:
        """From the file, which also has the epochs before an interruption."""
        return [json.loads(line)[metric] for line in (folder / METRICS).read_text().splitlines()]

    def report(epoch: dict[str, Any]) -> None:
        scores = scores_so_far()
        trial.report(best(scores, run.task.larger_is_better), len(scores))
        if trial.should_prune():
            raise optuna.TrialPruned

    started, end = time.perf_counter(), "finished"
    try:
        train_run(run, out, replace(options, after_epoch=report, test=False, show_progress=False))
    except optuna.TrialPruned:
        end = "given up"
    except NonFiniteLossError as error:
        end = str(error)
    scores = scores_so_far()
    score = best(scores, run.task.larger_is_better)
    study.tell(trial, score)
    found = {
        "run": run.id,
        "choice": asdict(choice),
        "parameters": trial.params,
        "score": score,
        "scores": scores,
        "end": end,
        "seconds": round(time.perf_counter() - started, 1),
    }
    return found, folder


def best(scores: Sequence[float], larger: bool) -> float:
    """The best score so far; the worst possible if there is none."""
    finite = [score for score in scores if math.isfinite(score)]
    return (max if larger else min)(finite, default=0.0 if larger else 10.0)


def restored(study: Any, stored: dict[str, Any], run: Run) -> Any:
    """A stored trial, for the study."""
    import optuna

    fixed = optuna.trial.FixedTrial(stored["parameters"])
    suggest(fixed, run)
    return optuna.trial.create_trial(
        params=stored["parameters"],
        distributions=fixed.distributions,
        value=stored["score"],
        intermediate_values={
            i: best(stored["scores"][:i], run.task.larger_is_better) for i in range(1, len(stored["scores"]) + 1)
        },
    )


def path_of(results: Path | str, task: str, layer: str) -> Path:
    return Path(results) / "search" / f"{task}-{layer}.json"


def stored_trials(path: Path, run: Run) -> list[dict[str, Any]]:
    """The trials of a file, if there is one; raises if they have other settings than those of ``run``."""
    if not path.exists():
        return []
    found = read_json(path)
    check_same(run, found.get("base"), path)
    return found["trials"]


def write_search(path: Path, task: str, layer: str, trials: list[dict[str, Any]], larger: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    order = max if larger else min
    number = order(range(len(trials)), key=lambda i: trials[i]["score"])
    content = {"task": task, "layer": layer, "base": base_run(task, layer).to_dict(), "best": number}
    write_json(path, content | {"trials": trials, "machine": describe()})


def best_choice(path: Path) -> Choice:
    """The settings with the best score on the validation set."""
    found = read_json(path)
    return Choice(**found["trials"][found["best"]]["choice"])
