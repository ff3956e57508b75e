"""Make a folder of trained models that is ready to be pushed to the Hugging Face Hub, and push it.

python tools/models.py FOLDER SOURCE [SOURCE ...]    FOLDER/<name>/{README.md, config.json, model.safetensors} for each
python tools/models.py FOLDER --push OWNER           upload each of them as OWNER/multistable-<name>, with HF_TOKEN

A SOURCE is one of these:
- the folder of a finished run, runs/<task>-<hash>, as `multistable train` and `multistable reproduce` leave it;
- a stored result and the weights of its run: RESULT.json WEIGHTS.safetensors, two words;
- a result of `multistable machines`, which holds its weights, or a T-maze of `multistable rl`, which is trained again;
- a folder that `SequenceModel.save_pretrained` wrote;
- a tutorial, docs/tutorials/NAME.py, which is run.

Weights of runs are those that were best on validation data. The card has the run's numbers; where the run has a result
in experiments/results, also what it measured beyond the trained length. With --check N, weights of runs are tested
again on the first N samples of the test set. The card says what came out, and three standard errors away from the
stored result is an error.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from multistable import SequenceModel
from multistable.machines import Transducer
from multistable.models import files
from multistable.models.atomic import write_atomically
from multistable.models.tensors import load_tensors, save_tensors

sys.path.insert(0, str(Path(__file__).parent))
from trained import Trained, find

RESULTS = Path(__file__).parents[1] / "experiments" / "results"


def prepare(folder: Path, places: list[Path], check: int = 0) -> list[Path]:
    """Write a folder for each model."""
    return [write(folder / each.name, each) for each in find(places, RESULTS, check)]


def write(place: Path, each: Trained) -> Path:
    if isinstance(each.model, SequenceModel):
        files.save(each.model, place)
    else:
        place.mkdir(parents=True, exist_ok=True)
        config = {"class": type(each.model).__name__, "arguments": each.arguments}
        save_tensors(place / files.WEIGHTS, each.model.state_dict(), {"config": config})
        write_atomically(place / files.CONFIG, (json.dumps(config, indent=2) + "\n").encode())
    (place / "README.md").write_text(each.card, encoding="utf-8")
    return place


def load(place: Path) -> Any:
    """A model of a folder that :func:`prepare` made; raises if a file is damaged."""
    config = json.loads((place / files.CONFIG).read_text(encoding="utf-8"))
    if "class" not in config:
        return SequenceModel.from_pretrained(place)
    if config["class"] == "Transducer":
        model = Transducer(**config["arguments"])
    else:
        from multistable_experiments.rl.agent import Agent  # its room needs gymnasium

        model = Agent(**config["arguments"])
    model.load_state_dict(load_tensors(place / files.WEIGHTS)[0])
    return model.eval()


def push(folder: Path, owner: str) -> list[str]:
    """Upload every model that loads; the cards name the repository."""
    from huggingface_hub import HfApi

    api, addresses = HfApi(library_name="multistable"), []
    for place in sorted(path.parent for path in folder.glob(f"*/{files.CONFIG}")):
        load(place)
        repository = api.create_repo(f"{owner}/multistable-{place.name}", exist_ok=True).repo_id
        with TemporaryDirectory() as copy:  # the folder may be a part of a repository, and stays as it is
            shutil.copytree(place, copy, dirs_exist_ok=True)
            readme = Path(copy, "README.md")
            readme.write_text(readme.read_text(encoding="utf-8").replace("OWNER/", f"{owner}/"), encoding="utf-8")
            addresses.append(str(api.upload_folder(repo_id=repository, folder_path=copy)))
    return addresses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("sources", nargs="*", type=Path)
    parser.add_argument("--check", type=int, default=0, metavar="N", help="test weights of runs on N samples again")
    parser.add_argument("--push", metavar="OWNER", help="upload the folder's models to this account")
    given = parser.parse_intermixed_args()  # sources may follow --check N
    for path in prepare(given.folder, given.sources, given.check):
        print(path)
    for address in push(given.folder, given.push) if given.push else ():
        print(address)


if __name__ == "__main__":
    main()
