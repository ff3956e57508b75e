"""The files from which a killed run resumes: ``last.safetensors``, ``best.safetensors``, ``metrics.jsonl``."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from multistable_experiments.files import UNREADABLE, check_types, file_named, write_atomically
from multistable_experiments.training import checkpoint, results
from multistable_experiments.training.run import Run

__all__ = ["BEST", "LAST", "METRICS", "RunFiles"]

LAST, BEST, METRICS = "last.safetensors", "best.safetensors", "metrics.jsonl"
POSITION = {
    "epoch": int, "step": int, "seconds": float, "history": list[dict[str, float]], "best": dict[str, float] | None
}  # fmt: skip
"""What a checkpoint says beside its tensors."""


class RunFiles:
    """The files of a run in progress. Only the first process writes them."""

    def __init__(self, run: Run, folder: Path, attempt: checkpoint.Attempt | None) -> None:
        self.run, self.folder, self.attempt = run, folder, attempt
        self.saved_best: dict[str, Any] | None = None

    def check_attempt(self) -> None:
        """Raise if another process has taken over, before anything is written."""
        if self.attempt is not None:
            self.attempt.check()

    def publish(self) -> None:
        """Copy the folder to its mirror, if it has one."""
        if self.attempt is not None:
            self.attempt.publish()

    def save(
        self,
        tensors: dict[str, Tensor],
        best_weights: dict[str, Tensor],
        best: dict[str, Any] | None,
        position: dict[str, Any],
    ) -> None:
        """Write the checkpoint to resume from and, before it, the best weights.

        Two files, because the first one is a quarter smaller that way and the best weights change less often.
        """
        self.check_attempt()
        described = {"run": self.run.to_dict(), "best": best}
        if best != self.saved_best:
            checkpoint.save(self.folder / BEST, best_weights, described)
            self.saved_best = best
        checkpoint.save(self.folder / LAST, tensors, described | position)
        self.publish()

    def load(self, tensors: dict[str, Tensor], best_weights: dict[str, Tensor]) -> dict[str, Any] | None:
        """Copy the last checkpoint into these tensors; return its other content, or None if there is no checkpoint."""
        if not (self.folder / LAST).exists():
            return None
        info = self._restore(LAST, tensors, POSITION)
        if info["best"] is not None:
            # After a kill between the two files, the best weights are those of an epoch that is computed again: it
            # will be as good as it was, not better, so the weights stay.
            self.saved_best = self._restore(BEST, best_weights, {"best": dict[str, float]})["best"]
        return info | {"best": self.saved_best}

    def _restore(self, name: str, live: dict[str, Tensor], kinds: dict[str, Any]) -> dict[str, Any]:
        """Copy a checkpoint's tensors into the live ones; return its other content, which has these types."""
        path = self.folder / name
        if not path.exists():
            raise checkpoint.CheckpointError(f"{path} is missing beside {LAST}")
        saved, info = checkpoint.load(path)
        results.check_same(self.run, info.get("run"), path)
        try:
            check_types(info, kinds)
        except TypeError as error:
            raise checkpoint.CheckpointError(f"{path} is not a checkpoint of this run: {error}") from error
        checkpoint.restore(live, saved, path)
        return info

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Add the line of an epoch."""
        self.check_attempt()
        path = self.folder / METRICS
        with file_named(path), path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def restart_metrics(self, history: list[dict[str, Any]]) -> None:
        """Cut metrics.jsonl to the epochs of the checkpoint.

        Raise if it is malformed or disagrees with the checkpoint; never overwrite it then. A killed writer may leave an
        unfinished last line, and a power cut fewer lines than the checkpoint has.
        """
        path, saved = self.folder / METRICS, "".join(json.dumps(record) + "\n" for record in history).encode()
        if path.exists():
            found = path.read_bytes()
            *later, _ = found[len(saved) :].split(b"\n")
            try:
                epochs = [json.loads(line)["epoch"] for line in later]
            except UNREADABLE:
                epochs = []
            expected = [len(history) + i for i in range(1, len(later) + 1)]
            if epochs != expected or found[: len(saved)] != saved[: len(found)]:
                raise checkpoint.CheckpointError(
                    f"{path} is corrupt or disagrees with {LAST}; remove it to write it again from there"
                )
        write_atomically(path, saved)
