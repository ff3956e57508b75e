"""The training loop of all tasks and layers. A run killed at any moment resumes to the same bits."""

import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multistable.layers import Recurrent
from multistable.models import SequenceModel, build_model
from multistable_experiments.files import UNREADABLE, check_types, file_named, write_atomically
from multistable_experiments.machine import describe, source_commit
from multistable_experiments.mirror import Mirror
from multistable_experiments.tasks import Samples
from multistable_experiments.tasks.seeds import derive, generator
from multistable_experiments.training import checkpoint, results
from multistable_experiments.training.diagnose import first_bad_layer
from multistable_experiments.training.evaluate import Evaluator
from multistable_experiments.training.memory import named_memory_errors
from multistable_experiments.training.optim import build_optimizer, optimizer_tensors
from multistable_experiments.training.processes import Processes
from multistable_experiments.training.run import Run
from multistable_experiments.training.step import Stepper, autocast
from multistable_experiments.training.terminal import defer_interrupts, print_epoch, progress
from multistable_experiments.training.track import Tracker, tracking

__all__ = ["NonFiniteLossError", "Options", "OutOfTimeError", "train_run"]

SHOW_SECONDS = 0.5  # least time between two readings of loss and metric within an epoch: reading waits for the GPU
LAST, BEST, METRICS = "last.safetensors", "best.safetensors", "metrics.jsonl"
POSITION = {
    "epoch": int, "step": int, "seconds": float, "history": list[dict[str, float]], "best": dict[str, float] | None
}  # fmt: skip
"""What a checkpoint says beside its tensors."""


class NonFiniteLossError(RuntimeError):
    """The loss became NaN or infinite. ``result`` is the result so far, without metrics."""

    def __init__(self, message: str, result: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.result = result or {}


class OutOfTimeError(RuntimeError):
    """The deadline has passed. A checkpoint has been written; the same call with a later deadline resumes from it."""


@dataclass(frozen=True)
class Options:
    """How to compute a run. Nothing here changes its numbers beyond rounding, except ``compiled``, which draws other
    random numbers for dropout."""

    device: str = "auto"
    graph: bool = True
    """On a GPU, replay the whole step as one CUDA graph (one process only)."""
    compiled: bool | None = None
    """Compile the model with ``torch.compile``; None: if the step is a CUDA graph and the run is long enough."""
    show_progress: bool = True
    checkpoint_seconds: float = 20
    """Least time between two checkpoints; a killed run loses about this much work."""
    deadline: float | None = None
    """Training stops with a checkpoint when ``time.perf_counter()`` reaches this (one process only)."""
    after_epoch: Callable[[dict[str, Any]], None] | None = None
    """Called with the line of metrics of each epoch, in the first process. What it raises ends the training."""
    test: bool = True
    """Whether the trained model is tested; a search must not see the test set."""
    track: Tracker | None = None
    """Also send the metrics of each epoch there: tensorboard, trackio or wandb."""
    mirror: str | None = None
    """An address for fsspec, at which the run's folder is kept as well, see ``mirror.py``."""


def worth_compiling(graph: bool, model: SequenceModel, timesteps: int) -> bool:
    """Whether compiling saves time in a run of so many timesteps, all epochs together.

    Compiled, two blocks of 256 units train 64 million timesteps per second instead of 42 (H200), which saves 8 s in a
    billion. Compiling took 6 to 20 s, and about 4 s if a similar model had been compiled before, as for the next seed.
    Without a graph, launching the kernels takes longer than computing them.
    """
    parallel = all(layer.parallel for layer in model.modules() if isinstance(layer, Recurrent))
    return graph and parallel and timesteps >= 1e9


def train_run(run: Run, out: Path | str, options: Options | None = None) -> dict[str, Any]:
    """Train a run in its folder under ``out``, or resume it; return its result.

    The folder holds ``run.json``, ``metrics.jsonl`` (a line per epoch), ``last.safetensors``, ``best.safetensors``
    (best on the validation set) and in the end ``model`` (the best, for ``SequenceModel.from_pretrained``) and
    ``result.json``; a run that has one is not computed again. Raises :class:`OutOfTimeError` at ``options.deadline``.
    A compiled run starts with ``torch.compiler.reset()``: everything else this process has compiled is compiled again.
    """
    options = options or Options()
    folder = results.folder_of(run, Path(out))
    if (finished := results.read(folder, run)) is not None:
        return finished
    processes = Processes.join(options.device)
    if options.deadline is not None and processes.count > 1:
        raise ValueError(f"options.deadline must be None for several processes, got it with {processes.count}")
    if processes.first:
        folder.mkdir(parents=True, exist_ok=True)
    mirror = None if options.mirror is None else Mirror(options.mirror)
    with checkpoint.alone_in(folder, mirror) if processes.first else nullcontext() as attempt:
        if processes.first:
            results.write_run(folder, run)
            if mirror is not None and (finished := results.read(folder, run)) is not None and processes.count == 1:
                return finished  # on another machine
        with processes.naming_the_lost(), named_memory_errors(f"the run {folder.name}"):
            processes.wait()
            return Training(run, folder, options, processes, attempt).finish()


class Training:
    """A run in progress: model, optimiser, data, position, history. :meth:`finish` does it all."""

    def __init__(
        self, run: Run, folder: Path, options: Options, processes: Processes, attempt: checkpoint.Attempt | None = None
    ) -> None:
        self.run, self.folder, self.options, self.processes, self.attempt = run, folder, options, processes, attempt
        device = processes.device
        torch.manual_seed(derive(run.seed, "weights"))
        self.model = build_model(run.model).to(device)
        if processes.count > 1:
            self.model.synchronize_norms()
        self.optimizer = build_optimizer(self.model, run.decay)
        self.train_set = run.task.samples("train", run.seed, device)
        self.valid_set = run.task.samples("valid", run.seed, device)
        self.steps_per_epoch = len(self.train_set) // run.batch_size
        if run.batch_size % processes.count:
            raise ValueError(f"batch_size must be a multiple of the {processes.count} processes, got {run.batch_size}")
        if self.steps_per_epoch == 0:
            size = len(self.train_set)
            raise ValueError(f"batch_size must not exceed the {size} training samples, got {run.batch_size}")
        self.graph = device.type == "cuda" and options.graph and processes.count == 1
        timesteps = self.steps_per_epoch * run.epochs * run.batch_size * run.task.length
        self.compiled = options.compiled
        if self.compiled is None:
            self.compiled = worth_compiling(self.graph, self.model, timesteps)
        self.stepper = Stepper(
            run.task,
            self.model,
            self.optimizer,
            self.train_set,
            run.batch_size // processes.count,
            run.precision,
            processes,
            self.compiled,
        )
        self.epoch, self.step = 0, 0
        self.history: list[dict[str, Any]] = []
        self.commits = [source_commit()]
        self.best: dict[str, Any] | None = None
        self.saved_best: dict[str, Any] | None = None
        self.best_weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.seconds_before, self.speed = 0.0, 0.0
        self.started = self.saved_at = self.shown_at = time.perf_counter()
        self.evaluate = Evaluator(run.task, self.model, run.batch_size, run.precision, processes, self.graph)
        if self.graph:
            fresh = {name: tensor.clone() for name, tensor in self.tensors().items()}
            self.stepper.capture()
            checkpoint.restore(self.tensors(), fresh, "of the fresh model")
        self.resume()

    # The loop

    def finish(self) -> dict[str, Any]:
        """Train what is left, test, and return the result."""
        total = self.run.epochs * self.steps_per_epoch
        shown = self.options.show_progress and self.processes.first
        alone = self.processes.count == 1  # the others would wait for a process that stops between steps
        tracker = self.options.track if self.processes.first else None
        with (
            progress(total, self.run.epochs, shown) as self.show,
            tracking(tracker, self.run, self.folder) as self.track,
            defer_interrupts(alone) as self.interrupted,
        ):
            while self.epoch < self.run.epochs:
                self.train_epoch()
                self.end_epoch()
        self.save()
        if self.interrupted.is_set():
            raise KeyboardInterrupt
        self.processes.wait()
        return self.test()

    def train_epoch(self) -> None:
        """Train from ``self.step`` to the end of the epoch."""
        self.model.train()
        if self.step == 0:
            self.stepper.start_epoch()
        order, started, first = self.order(), time.perf_counter(), self.step
        while self.step < self.steps_per_epoch:
            self.seed_step()
            rate = self.run.schedule.rate(self.epoch + self.step / self.steps_per_epoch, self.run.epochs)
            self.stepper(order[self.step], rate)
            self.step += 1
            self.show_progress()
            self.save_if_due()
            self.stop_if_asked()
        self.check_loss()
        timesteps = (self.step - first) * self.run.batch_size * self.run.task.length
        self.speed = timesteps / (time.perf_counter() - started)

    def order(self) -> Tensor:
        """``[steps, B]``: the samples of each step of this process. Depends on the seed and the epoch only."""
        run = self.run
        order = torch.randperm(len(self.train_set), generator=generator(run.seed, "order", self.epoch))
        batches = order[: self.steps_per_epoch * run.batch_size].view(self.steps_per_epoch, run.batch_size)
        return batches[:, self.processes.share(run.batch_size)].to(self.processes.device)

    def seed_step(self) -> None:
        """Seed dropout with the run's seed and the step, so that checkpoints need no generator state.

        Not with ``torch.manual_seed``: without a GPU each call stores a traceback (80 us, never freed).
        """
        seed = derive(self.run.seed, "step", self.epoch, self.step, self.processes.rank)
        torch.default_generator.manual_seed(seed)
        if self.processes.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def end_epoch(self) -> None:
        """Validate, keep the weights if they are the best so far, write a line of metrics."""
        metric = self.run.task.metric
        train_loss, train_score = (self.stepper.totals / self.steps_per_epoch).tolist()
        valid = self.evaluate(self.valid_set)
        self.epoch, self.step = self.epoch + 1, 0
        record = {
            "epoch": self.epoch,
            "train_loss": train_loss,
            f"train_{metric}": train_score,
            "valid_loss": valid.loss,
            f"valid_{metric}": valid.score,
            "rate": self.run.schedule.rate(self.epoch, self.run.epochs),
            "seconds": round(self.seconds, 3),
            "timesteps_per_second": round(self.speed),
        }
        self.history.append(record)
        if self.is_best(valid.score):
            self.best = {"epoch": self.epoch, "score": valid.score}
            checkpoint.restore(self.best_weights, self.model.state_dict(), "of this epoch")
        if self.processes.first:
            self.check_attempt()
            path = self.folder / METRICS
            with file_named(path), path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        self.save_if_due()
        if self.processes.first and self.options.show_progress:
            print_epoch(record, self.run.epochs, metric)
        self.track(record)
        if self.processes.first and self.options.after_epoch is not None:
            self.options.after_epoch(record)

    def is_best(self, score: float) -> bool:
        if self.best is None:
            return math.isfinite(score)
        return score > self.best["score"] if self.run.task.larger_is_better else score < self.best["score"]

    def show_progress(self) -> None:
        """From time to time, read loss and metric from the device and show them."""
        now = time.perf_counter()
        if now - self.shown_at < SHOW_SECONDS:
            return
        if self.processes.count == 1:  # several processes must stop at the same step: at the end of the epoch
            self.check_loss()
        loss, score = (self.stepper.totals / self.step).tolist()
        done = self.epoch * self.steps_per_epoch + self.step
        speed = (done - self.done_before) * self.run.batch_size * self.run.task.length / (now - self.started)
        text = f"loss {loss:.4f}  {self.run.task.metric} {score:.4f}  {speed:,.0f} timesteps/s"
        self.show(done, self.epoch + 1, text)
        self.shown_at = time.perf_counter()

    def check_loss(self) -> None:
        """Raise if a loss was not finite. No parameter has changed since, so that step can be repeated to find why."""
        step = int(self.stepper.bad_step)
        if step < 0:
            return
        index, self.step = self.order()[step], step
        self.seed_step()
        with autocast(self.processes.device, self.run.precision):
            cause = first_bad_layer(self.model, self.run.task.inputs(self.train_set.stored[index]))
        message = f"the loss is not finite in epoch {self.epoch + 1}, step {step + 1}: {cause}"
        raise NonFiniteLossError(message, self.result({}))

    def stop_if_asked(self) -> None:
        """After a Ctrl-C, a SIGTERM or at the deadline, write a checkpoint and stop."""
        deadline = math.inf if self.options.deadline is None else self.options.deadline
        if not self.interrupted.is_set() and time.perf_counter() < deadline:
            return
        self.check_loss()
        self.save()
        if self.interrupted.is_set():
            raise KeyboardInterrupt
        raise OutOfTimeError(f"no time left in epoch {self.epoch + 1} of {self.run.epochs}, step {self.step}")

    def test(self) -> dict[str, Any]:
        """Test the last weights and the best ones on the validation set, and write the result."""
        samples = self.run.task.samples("test", self.run.seed, self.processes.device) if self.options.test else None
        metrics = {"last": self.test_weights(samples, self.run.epochs)}
        if self.best is not None:
            checkpoint.restore(self.model.state_dict(), self.best_weights, "of the best epoch")
            metrics["best"] = self.test_weights(samples, self.best["epoch"])
        if self.processes.first:
            self.check_attempt()
            self.model.save_pretrained(self.folder / "model")
            results.write(self.folder, self.run, self.result(metrics))
            self.publish()
        self.processes.wait()
        return results.read(self.folder, self.run) or {}

    def result(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """The content of ``result.json``; ``options`` are those used, not those asked for."""
        return {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "metrics": metrics,
            "history": self.history,
            "seconds": round(self.seconds, 3),
            "machine": describe()
            | {
                "device": self.processes.device.type,
                "processes": self.processes.count,
                "earlier_commits": self.commits[:-1],  # at which earlier parts of this run were computed
            },
            "options": {"graph": self.graph, "compiled": self.compiled},
        }

    def test_weights(self, samples: Samples | None, epoch: int) -> dict[str, Any]:
        valid = {key: value for key, value in self.history[epoch - 1].items() if key.startswith("valid")}
        if samples is None:
            return {"epoch": epoch, **valid}
        test, metric = self.evaluate(samples), self.run.task.metric
        return {"epoch": epoch, **valid, "test_loss": test.loss, f"test_{metric}": test.score}

    # Checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that change during a run, except the best weights, by name; live, not copies."""
        parts = {
            "model": self.model.state_dict(),
            "optimizer": optimizer_tensors(self.model, self.optimizer),
            "stepper": self.stepper.tensors(),
        }
        return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started

    def check_attempt(self) -> None:
        """Raise if another process has taken over, before anything is written."""
        if self.attempt is not None:
            self.attempt.check()

    def publish(self) -> None:
        if self.attempt is not None:
            self.attempt.publish()

    def save_if_due(self) -> None:
        if time.perf_counter() - self.saved_at >= self.options.checkpoint_seconds:
            self.save()

    def save(self) -> None:
        """Write the checkpoint to resume from and, before it, the best weights; never a state with a bad loss.

        Two files, because the first one is a quarter smaller that way and the best weights change less often.
        """
        if not self.processes.first or int(self.stepper.bad_step) >= 0:
            return
        self.check_attempt()
        described = {"run": self.run.to_dict(), "best": self.best}
        if self.best != self.saved_best:
            checkpoint.save(self.folder / BEST, self.best_weights, described)
            self.saved_best = self.best
        position = {"epoch": self.epoch, "step": self.step, "seconds": self.seconds, "history": self.history}
        checkpoint.save(self.folder / LAST, self.tensors(), described | position | {"commits": self.commits})
        self.publish()
        self.saved_at = time.perf_counter()

    def resume(self) -> None:
        """Resume from the last checkpoint, if any; metrics logged after it are recomputed."""
        if (self.folder / LAST).exists():
            info = self.restore(LAST, self.tensors(), POSITION)
            self.epoch, self.step, self.seconds_before = info["epoch"], info["step"], info["seconds"]
            self.history = info["history"]
            now = self.commits[-1]
            self.commits = [commit for commit in info.get("commits", []) if commit != now] + [now]
            if info["best"] is not None:
                # After a kill between the two files, the best weights are those of an epoch that is computed again: it
                # will be as good as it was, not better, so the weights stay.
                self.best = self.saved_best = self.restore(BEST, self.best_weights, {"best": dict[str, float]})["best"]
        self.done_before = self.epoch * self.steps_per_epoch + self.step
        if self.processes.first:
            self.restart_metrics()
        self.processes.wait()

    def restart_metrics(self) -> None:
        """Cut metrics.jsonl to the epochs of the checkpoint.

        Raise if it is malformed or disagrees with the checkpoint; never overwrite it then. A killed writer may leave an
        unfinished last line, and a power cut fewer lines than the checkpoint has.
        """
        path, saved = self.folder / METRICS, "".join(json.dumps(record) + "\n" for record in self.history).encode()
        if path.exists():
            found = path.read_bytes()
            *later, _ = found[len(saved) :].split(b"\n")
            try:
                epochs = [json.loads(line)["epoch"] for line in later]
            except UNREADABLE:
                epochs = []
            expected = [len(self.history) + i for i in range(1, len(later) + 1)]
            if epochs != expected or found[: len(saved)] != saved[: len(found)]:
                raise checkpoint.CheckpointError(
                    f"{path} is corrupt or disagrees with {LAST}; remove it to write it again from there"
                )
        write_atomically(path, saved)

    def restore(self, name: str, live: dict[str, Tensor], kinds: dict[str, Any]) -> dict[str, Any]:
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
