"""Make a folder of trained models that is ready to be pushed to the Hugging Face Hub, and push it.

python tools/models.py FOLDER RUN [RUN ...]    FOLDER/<name>/{README.md, config.json, model.safetensors} for each run
python tools/models.py FOLDER --push OWNER     upload every model of FOLDER as OWNER/multistable-<name>, with HF_TOKEN

RUN is the folder of a finished run, runs/<task>-<hash>, as `multistable train` and `multistable reproduce` leave it.
The weights are those that were best on validation data. The model card has the run's numbers; where the run has a
result in experiments/results, also what it measured beyond the trained length. RUN may also be a folder that
`SequenceModel.save_pretrained` wrote, as the tutorial on your own data does; its card says how to load it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from multistable import SequenceModel
from multistable.models import files
from multistable_experiments.files import read_json
from multistable_experiments.paper import store
from multistable_experiments.training.results import FILE, load_trained
from multistable_experiments.training.run import Run

ROOT = Path(__file__).parents[1]
CARD = """\
---
library_name: multistable
license: mit
tags: [multistable, rnn, recurrent, {tags}]
---

# {name}

A model of the Python package `multistable`: {blocks} block{s} of `{cells}`, width {width}, {units} units per layer,
{parameters:,} parameters. Trained on the task `{task}` for {epochs} epochs with seed {seed}.

```python
from multistable import SequenceModel

model = SequenceModel.from_pretrained("{repository}")
y, state = model(x)  # x [B, T, {d_input}] -> y [B, {d_output}]
```

| set | {metric} |
|---|---|
| validation | {valid:.5g} |
| test | {test:.5g} |
{tests}
The weights are the best on validation data, of epoch {epoch}. One seed: other seeds differ. How the model does on data
of another kind was not measured. The method is that of *Parallelizable memory recurrent units* (arXiv 2601.09495), and
the subject of patent applications that it names; the licence covers code and weights.

All that decided the numbers:

```json
{run}
```

Trained with multistable {version} (commit {commit}) on {machine}.
"""


def card(name: str, run: Run, result: dict[str, Any], repository: str, tests: str = "") -> str:
    """The model card of a finished run."""
    metric, best, model = run.task.metric, result["metrics"]["best"], run.model
    about = result["machine"]
    return CARD.format(
        name=name,
        cells="`, `".join(dict.fromkeys(model.cells)),
        tags=", ".join(dict.fromkeys(model.cells)),
        blocks=len(model.cells),
        s="s" if len(model.cells) > 1 else "",
        width=model.d_model,
        units=model.d_state,
        parameters=result["parameters"],
        task=run.task.name,
        epochs=run.epochs,
        seed=run.seed,
        repository=repository,
        d_input=model.d_input,
        d_output=model.d_output,
        metric=metric,
        valid=best[f"valid_{metric}"],
        test=best[f"test_{metric}"],
        epoch=best["epoch"],
        tests=tests,
        run=json.dumps(run.to_dict(), indent=1),
        version=about["multistable"],
        commit=(about["commit"] or "unknown")[:12],
        machine=about["gpu"] or about["processor"],
    )


def measured(run: Run, records: list[store.Record]) -> tuple[str, str]:
    """The name of the run's configuration and rows of its tests, if it is among the stored results."""
    for record in records:
        if record.run.id == run.id:
            rows = [", ".join(f"{k} {v}" for k, v in test.items()) for test in record.tests]
            lines = "".join(f"- {row}\n" for row in rows)
            return (
                f"{record.run.task.name}-{record.configuration}",
                f"\nTests at other lengths:\n\n{lines}" if rows else "",
            )
    return f"{run.task.name}-{run.model.cells[0]}-{run.id[:6]}", ""


def prepare(folder: Path, places: list[Path], owner: str = "OWNER") -> list[Path]:
    """Write a folder for each run, which must have finished."""
    records = store.load(ROOT / "experiments" / "results")
    made = []
    for place in places:
        if (place / files.CONFIG).exists():
            name, model = place.name, files.load(place)
            text = files.MODEL_CARD.format(repo_id=f"{owner}/multistable-{name}")
        elif (place / FILE).exists():
            run, model = load_trained(place)
            name, tests = measured(run, records)
            text = card(name, run, read_json(place / FILE), f"{owner}/multistable-{name}", tests)
        else:
            raise SystemExit(f"{place} must be a finished run, with {FILE}, or a saved model, with {files.CONFIG}")
        files.save(model, folder / name)
        (folder / name / "README.md").write_text(text, encoding="utf-8")
        made.append(folder / name)
    return made


def push(folder: Path, owner: str) -> list[str]:
    """Upload every model that loads; the cards name the repository."""
    from huggingface_hub import HfApi

    api, addresses = HfApi(library_name="multistable"), []
    for place in sorted(path.parent for path in folder.glob("*/config.json")):
        SequenceModel.from_pretrained(place)  # raises if a file is damaged
        readme = place / "README.md"
        readme.write_text(readme.read_text(encoding="utf-8").replace("OWNER/", f"{owner}/"), encoding="utf-8")
        repository = api.create_repo(f"{owner}/multistable-{place.name}", exist_ok=True).repo_id
        addresses.append(str(api.upload_folder(repo_id=repository, folder_path=place)))
    return addresses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--push", metavar="OWNER", help="upload the folder's models to this account")
    given = parser.parse_args()
    for path in prepare(given.folder, given.runs):
        print(path)
    for address in push(given.folder, given.push) if given.push else ():
        print(address)


if __name__ == "__main__":
    main()
