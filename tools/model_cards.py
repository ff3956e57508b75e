"""The texts of model cards: README.md beside the weights, in the Hugging Face Hub's format."""

import json
from collections.abc import Sequence
from typing import Any

from multistable_experiments.training.run import Run

HEAD = """\
---
library_name: multistable
license: mit
tags: [multistable, rnn, recurrent, {tag}]
---

# {name}

"""
METHOD = """
The method is that of *Parallelizable memory recurrent units* (arXiv 2601.09495), and the subject of patent applications
that it names; the licence covers code and weights.
"""
RUN = """\
A model of the Python package `multistable`: {blocks} block{s} of `{cells}`, width {width}, {units} units per layer,
{parameters:,} parameters. Trained on the task `{task}` for {epochs} epochs with seed {seed}.

```python
from multistable import SequenceModel

model = SequenceModel.from_pretrained("OWNER/multistable-{name}")
y, state = model(x)  # x [B, T, {d_input}] -> y [B, {d_output}]
```

The data, from `multistable-experiments`:

```python
from multistable_experiments.tasks import {task_class}

task = {task_code}
samples = task.samples("test", seed={seed})
x, target = task.inputs(samples.stored[:8]), samples.target[:8]
```

| set | {metric} |
|---|---|
| validation | {valid:.5g} |
| test | {test:.5g} |
{again}{tests}
The weights are the best on validation data, of epoch {epoch}. One seed: other seeds differ. How the model does on data
of another kind was not measured.
{method}
All that decided the numbers:

```json
{run}
```

Trained with multistable {version} (commit {commit}) on {machine}.
"""
PRETRAINED = """
```python
from multistable import SequenceModel

model = SequenceModel.from_pretrained("OWNER/multistable-{name}")
```
"""
TUTORIAL = """\
The model of the tutorial `{path}`, which printed:

```
{said}```
"""
MACHINE = """\
Learnt the machine `{machine}` of `multistable_experiments.tasks.state_tracking` in {updates} updates on sequences of at
most {length} symbols. Tested on {sequences} sequences of {longest:,} symbols: {outcome}. Commit {commit}, {processor}.
"""
PROOF = """
Proven when this card was made: it answers like its target at every length (`multistable.machines.certify`:
{verdict.reason}; the smallest margin is {verdict.margin:.0f} times the rounding).

The target: `{target}`
"""
NO_PROOF = """
Not proven to be right: {verdict.reason}.
"""
AGENT = """\
An agent with a `{run.cell}` memory. It learned T-mazes{noise}, whose corridors have at most {run.longest} steps (PPO,
seed {run.seed}). It was trained again from its stored settings when this card was made. The shares of correct turns in
its rollouts are {those} of the stored result. Episodes with greedy actions, in corridors of other lengths: those with
the right turn, those with the wrong one, and those in which it did not always walk forward before (strayed):

"""
LOADING = """
```python
import json
from pathlib import Path

from huggingface_hub import snapshot_download
from {module} import {name}
from safetensors.torch import load_file

folder = Path(snapshot_download("OWNER/multistable-{repository}"))
model = {name}(**json.loads((folder / "config.json").read_text())["arguments"])
model.load_state_dict(load_file(folder / "model.safetensors"))
{use}
```
"""


def head(name: str, tag: str) -> str:
    return HEAD.format(name=name, tag=tag)


def loading(repository: str, module: str, name: str, use: str) -> str:
    """Code that loads a model whose class has no ``from_pretrained``, ``name`` of ``module``; a line that uses it."""
    return LOADING.format(module=module, name=name, repository=repository, use=use)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows with the columns of the first one, without the time it took."""
    names = [name for name in rows[0] if name != "seconds"]
    lines = [names, ["---"] * len(names), *([row.get(name, "") for name in names] for row in rows)]
    return "".join(f"| {' | '.join(map(show, line))} |\n" for line in lines)


def show(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def of_run(name: str, run: Run, result: dict[str, Any], tests: Sequence[dict[str, Any]] = (), again: str = "") -> str:
    """The card of a finished run. ``again`` is a row of the table: what was measured when the card was made."""
    metric, best, model, about = run.task.metric, result["metrics"]["best"], run.model, result["machine"]
    cells = list(dict.fromkeys(model.cells))
    return head(name, ", ".join(cells)) + RUN.format(
        name=name,
        cells="`, `".join(cells),
        blocks=len(model.cells),
        s="s" if len(model.cells) > 1 else "",
        width=model.d_model,
        units=model.d_state,
        parameters=result["parameters"],
        task=run.task.name,
        task_class=type(run.task).__name__,
        task_code=repr(run.task),
        epochs=run.epochs,
        seed=run.seed,
        d_input=model.d_input,
        d_output=model.d_output,
        metric=metric,
        valid=best[f"valid_{metric}"],
        test=best[f"test_{metric}"],
        again=again,
        tests=f"\nTested at other lengths:\n\n{table(tests)}" if tests else "",
        epoch=best["epoch"],
        method=METHOD,
        run=json.dumps(run.to_dict(), indent=1),
        version=about["multistable"],
        commit=(about["commit"] or "unknown")[:12],
        machine=about["gpu"] or about["processor"],
    )


def of_machine(machine: str, length: int, values: dict[str, Any]) -> str:
    """The paragraph on how a stored machine was trained."""
    test, about = values["test"], values["machine"]
    failed = test["failing_length"]
    return MACHINE.format(
        machine=machine,
        updates=values["updates"],
        length=length,
        sequences=test["sequences"],
        longest=test["longest"],
        outcome="all answers right" if failed is None else f"it fails after {failed:,}",
        commit=(about["commit"] or "unknown")[:12],
        processor=about["gpu"] or about["processor"],
    )
