"""Find trained models where they are: folders of runs, stored results, tutorials. `models.py` writes them."""

import contextlib
import io
import runpy
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import model_cards as cards
import torch
from torch import nn

from multistable import SequenceModel
from multistable.machines import Machine, Transducer, certify
from multistable.models import files
from multistable.models.tensors import load_tensors
from multistable_experiments.files import read_json
from multistable_experiments.paper import store
from multistable_experiments.state_machines.store import load_model
from multistable_experiments.state_machines.training import Training
from multistable_experiments.threads import one_thread
from multistable_experiments.training.results import FILE, load_trained
from multistable_experiments.training.run import Run

BATCH = 20


@dataclass(frozen=True)
class Trained:
    name: str
    model: nn.Module
    card: str
    arguments: dict[str, Any] | None = None
    """Of the model's class; None for a :class:`SequenceModel`, whose configuration is its own."""


def find(places: list[Path], results: Path, check: int = 0) -> Iterator[Trained]:
    """The models of all places; ``check`` is the number of test samples on which models of runs are tested again."""
    words = iter(places)
    for place in words:
        if (place / files.CONFIG).exists():
            text = files.MODEL_CARD.format(repo_id=f"OWNER/multistable-{place.name}")
            yield Trained(place.name, files.load(place), text)
        elif (place / FILE).exists():
            run, model = load_trained(place)
            record = next((each for each in store.load(results) if each.run.id == run.id), None)
            yield of_run(run, model, read_json(place / FILE), record, check)
        elif place.suffix == ".py":
            yield of_tutorial(place)
        elif place.suffix == ".json" and place.exists():
            yield of_result(place, words, check)
        else:
            known = f"a finished run, with {FILE}, a saved model, with {files.CONFIG}, a result or a tutorial"
            raise SystemExit(f"{place} must be {known}")


def of_result(path: Path, words: Iterator[Path], check: int) -> Trained:
    """A result that holds its weights, or else is followed by the file that does."""
    values = read_json(path)
    if "training" in values and "weights" in values:
        return of_machine(path.stem, values)
    if path.name.startswith(("tmaze-", "apart-tmaze-")):
        return of_agent(values)
    record, weights = store.read(path), next(words, None)
    if weights is None or not weights.is_file():
        raise SystemExit(f"{path} must be followed by the file of its weights, got {weights}")
    tensors, info = load_tensors(weights)
    config = record.run.model.to_dict()
    if (own := info.get("config", config)) != config:
        different = sorted(key for key in config | own if config.get(key) != own.get(key))
        raise SystemExit(f"{weights} is not of the run of {path}: {', '.join(different)} differ")
    model = files.from_tensors(record.run.model, tensors, f"{weights} does not fit {path}").eval()
    return of_run(record.run, model, asdict(record), record, check)


def of_run(run: Run, model: SequenceModel, result: dict[str, Any], record: store.Record | None, check: int) -> Trained:
    """A model of a run; ``record``: its stored result, if there is one."""
    parts = [run.model.cells[0], run.id[:6]] if record is None else [record.recipe, record.name]
    name = "-".join([run.task.name, *parts])
    again = measure_again(run, model, result["metrics"]["best"], check) if check else ""
    return Trained(name, model, cards.of_run(name, run, result, record.tests if record else (), again))


@torch.no_grad()
def measure_again(run: Run, model: SequenceModel, best: dict[str, float], samples: int) -> str:
    """A row of the card's table: the metric of the first test samples, in float32.

    Exit if that of the whole test set, as stored, is more than three standard errors away."""
    task, expected = run.task, best[f"test_{run.task.metric}"]
    found = task.samples("test", run.seed)
    scores = []
    for stored, target in zip(found.stored[:samples].split(BATCH), found.target[:samples].split(BATCH), strict=True):
        scores.append(task.scores(model(task.inputs(stored))[0], target))
    score = torch.cat(scores).double()
    # Of an accuracy, the variance that the stored one means: all of a few samples may be right.
    variance = expected * (1 - expected) if task.metric == "accuracy" else float(score.var())
    error, mean = (variance / len(score)) ** 0.5, float(score.mean())
    if abs(mean - expected) > 3 * error:
        raise SystemExit(
            f"{task.metric} of the first {len(score)} test samples is {mean:.5g}, stored {expected:.5g} +- {error:.2g}"
        )
    return f"| the first {len(score)} of the test set, again with these files, float32 | {mean:.5g} |\n"


def of_tutorial(path: Path) -> Trained:
    """Run a tutorial, and take the ``model`` that it trained."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        names = runpy.run_path(str(path))
    model, name = names.get("model"), f"tutorial-{path.stem.replace('_', '-')}"
    origin = cards.TUTORIAL.format(path=f"docs/tutorials/{path.name}", said=said.getvalue())
    if isinstance(model, Transducer):
        return transducer(name, model.eval(), names["target"], repr(names["target"]), origin)
    if not isinstance(model, SequenceModel):
        raise SystemExit(f"{path} has no model of a class that can be imported")
    head = cards.head(name, ", ".join(dict.fromkeys(model.config.cells)))
    return Trained(name, model.eval(), head + origin + cards.PRETRAINED.format(name=name) + cards.METHOD)


def of_machine(name: str, values: dict[str, Any]) -> Trained:
    """A result of `multistable machines`."""
    training = Training(**values["training"])
    origin = cards.of_machine(training.machine, training.length, values)
    target = f'machine("{training.machine}")'  # both functions are in tasks.state_tracking
    target = f"with_idle({target}, {training.idle_symbols})" if training.idle_symbols else target
    return transducer(f"machine-{name}", load_model(values), training.data.target, target, origin)


def transducer(name: str, model: Transducer, target: Machine, shown: str, origin: str) -> Trained:
    """A machine with its card, which has the proof made just now, and shows the target as code."""
    verdict, rnn = certify(model, target), model.rnn
    arguments = {
        "n_symbols": rnn.input_size, "n_outputs": model.read_out.out_features, "units": rnn.units,
        "n_states": rnn.n_states, "num_layers": rnn.num_layers, "transitions": rnn.transitions,
        "surrogate": rnn.surrogate, "alpha_surr": rnn.alpha_surr,
    }  # fmt: skip
    proof = (cards.PROOF if verdict.right else cards.NO_PROOF).format(verdict=verdict, target=shown)
    use = "logits, state = model(symbols)  # symbols [B, T], integers -> logits [B, T, C]"
    load = cards.loading(name, "multistable.machines", "Transducer", use)
    return Trained(name, model, cards.head(name, "fsm") + origin + proof + load + cards.METHOD, arguments)


def of_agent(values: dict[str, Any]) -> Trained:
    """A T-maze of `multistable rl`, which keeps no weights: train the agent again, and test it in corridors of up to
    10,000 steps."""
    from multistable_experiments.rl import horizons  # needs gymnasium
    from multistable_experiments.rl.corridors import walk
    from multistable_experiments.rl.tmaze import ACTIONS

    kind = horizons.ApartRun if "critic" in values["run"] else horizons.TMazeRun
    run = kind(**values["run"] | {"lengths": tuple(values["run"]["lengths"])})
    near = tuple(length for length in run.lengths if length <= 10_000)
    with one_thread():
        agent, notes, _ = horizons.train(run)
        walks = walk(agent, run.noise, near, run.episodes, seed=run.seed)
    same = [round(share, 4) for share in notes["right"]] == values["training"]
    origin = cards.AGENT.format(
        run=run, noise=" with noise" if run.noise else "", those="those" if same else "not those"
    )
    arguments = {"cell": run.cell, "input_size": 3, "outputs": len(ACTIONS), "hidden_size": values["width"]}
    use = "policy, value, state = model(x, model.memory.initial_state((len(x),), x[:, 0]))  # x [B, T, 3]"
    load = cards.loading(run.name, "multistable_experiments.rl.agent", "Agent", use)
    card = cards.head(run.name, run.cell) + origin + cards.table([each.as_dict() for each in walks])
    return Trained(run.name, agent, card + load + cards.METHOD, arguments)
