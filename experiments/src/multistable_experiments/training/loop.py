"""The training loop of all tasks and layers. A run killed at any moment resumes to the same bits."""

import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multistable.models import build_model
from multistable_experiments.machine import describe, source_commit
from multistable_experiments.mirror import Mirror
from multistable_experiments.tasks import Samples
from multistable_experiments.tasks.seeds import derive, generator
from multistable_experiments.training import checkpoint, results
from multistable_experiments.training.diagnose import first_bad_layer
from multistable_experiments.training.evaluate import Evaluator
from multistable_experiments.training.memory import named_memory_errors
from multistable_experiments.training.optim import build_optimizer, optimizer_tensors
from multistable_experiments.training.options import Options, worth_compiling
from multistable_experiments.training.processes import Processes
from multistable_experiments.training.resume import RunFiles
from multistable_experiments.training.run import Run
from multistable_experiments.training.step import Stepper, autocast
from multistable_experiments.training.terminal import defer_interrupts, print_epoch, progress
from multistable_experiments.training.track import tracking

__all__ = ["NonFiniteLossError", "Options", "OutOfTimeError", "train_run"]

SHOW_SECONDS = 0.5  # least time between two readings of loss and metric within an epoch: reading waits for the GPU


class NonFiniteLossError(RuntimeError):
    """The loss became NaN or infinite. ``result`` is the result so far, without metrics."""

    def __init__(self, message: str, result: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.result = result or {}


class OutOfTimeError(RuntimeError):
    """The deadline has passed. A checkpoint has been written; the same call with a later deadline resumes from it."""


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
    with named_memory_errors(f"the run {folder.name}"):
        run.task.samples("valid", run.seed)  # raises for missing data before there is a folder
    if processes.first:
        folder.mkdir(parents=True, exist_ok=True)
    mirror = None if options.mirror is None else Mirror(options.mirror)
    with checkpoint.alone_in(folder, mirror) if processes.first else nullcontext() as attempt:
        if processes.first:
            results.write_run(folder, run)
            if processes.count == 1 and (finished := results.read(folder, run)) is not None:
                return finished  # by another process meanwhile, or on another machine
        with processes.naming_the_lost(), named_memory_errors(f"the run {folder.name}"):
            processes.wait()
            return Training(run, folder, options, processes, attempt).finish()


class Training:
    """A run in progress: model, optimiser, data, position, history. :meth:`finish` does it all."""

    def __init__(
        self, run: Run, folder: Path, options: Options, processes: Processes, attempt: checkpoint.Attempt | None = None
    ) -> None:
        self.run, self.folder, self.options, self.processes = run, folder, options, processes
        self.files = RunFiles(run, folder, attempt)
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
            self.files.append_metrics(record)
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
            self.files.check_attempt()
            self.model.save_pretrained(self.folder / "model")
            results.write(self.folder, self.run, self.result(metrics))
            self.files.publish()
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

    def save_if_due(self) -> None:
        if time.perf_counter() - self.saved_at >= self.options.checkpoint_seconds:
            self.save()

    def save(self) -> None:
        """Write the checkpoint to resume from; never a state with a bad loss."""
        if not self.processes.first or int(self.stepper.bad_step) >= 0:
            return
        position = {
            "epoch": self.epoch,
            "step": self.step,
            "seconds": self.seconds,
            "history": self.history,
            "commits": self.commits,
        }
        self.files.save(self.tensors(), self.best_weights, self.best, position)
        self.saved_at = time.perf_counter()

    def resume(self) -> None:
        """Resume from the last checkpoint, if any; metrics logged after it are recomputed."""
        info = self.files.load(self.tensors(), self.best_weights)
        if info is not None:
            self.epoch, self.step, self.seconds_before = info["epoch"], info["step"], info["seconds"]
            self.history, self.best = info["history"], info["best"]
            now = self.commits[-1]
            self.commits = [commit for commit in info.get("commits", []) if commit != now] + [now]
        self.done_before = self.epoch * self.steps_per_epoch + self.step
        if self.processes.first:
            self.files.restart_metrics(self.history)
        self.processes.wait()
