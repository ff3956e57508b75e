"""One training step: gather the batch, forward, backward, optimiser; run eagerly or replayed as one CUDA graph."""

from collections.abc import Callable

import torch
from torch import Tensor

from multistable.models import SequenceModel
from multistable_experiments.tasks import Samples, Task
from multistable_experiments.training.optim import set_rate
from multistable_experiments.training.processes import Processes
from multistable_experiments.training.run import Precision

__all__ = ["Stepper", "autocast", "warm_up"]

WARM_UP_STEPS = 3


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """No cache of cast weights: a step uses each weight once, and a graph must not keep a stale copy."""
    enabled = precision == "bfloat16"
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled, cache_enabled=False)


def warm_up(function: Callable[[], object]) -> None:
    """Call ``function`` a few times on a side stream, as CUDA graphs require: libraries and Triton initialise there."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            function()
    torch.cuda.current_stream().wait_stream(side)


def compile_anew(model: Callable) -> Callable:
    """Compile the model for the shapes of this run; its numbers equal those of the eager model, to rounding.

    By default the compiler keeps float32 between fused operations where the eager model rounds. A model trained that
    way relies on digits that its evaluation, kernel by kernel, does not have: copy-first-input at T = 300 ended with
    0.0025 in training and 0.0117 in validation. Earlier compilations are dropped: torch stops compiling after 8
    variants of a function.
    """
    torch.compiler.reset()
    return torch.compile(model, dynamic=False, options={"emulate_precision_casts": True})


class Stepper:
    """A training step on fixed buffers: what changes between steps is copied into them, so that a graph can replay it.

    ``stepper(index, rate)`` trains on the samples ``index [B]`` without waiting for the GPU: loss and metric are summed
    in ``totals [2]``. After the first loss that is not finite (``bad_step`` is its number in the epoch) no parameter
    changes any more, so that its cause can be found.
    """

    def __init__(
        self,
        task: Task,
        model: SequenceModel,
        optimizer: torch.optim.AdamW,
        samples: Samples,
        batch_size: int,
        precision: Precision,
        processes: Processes,
        compiled: bool = False,
    ) -> None:
        device = processes.device
        self.task = task
        self.optimizer = optimizer
        self.samples = samples
        self.precision: Precision = precision
        self.processes = processes
        self.parameters = list(model.parameters())
        self.forward: Callable = compile_anew(model) if compiled else model
        self.index = torch.arange(batch_size, device=device)
        self.totals = torch.zeros(2, device=device)
        self.steps = torch.zeros((), dtype=torch.int64, device=device)
        self.bad_step = torch.full((), -1, dtype=torch.int64, device=device)
        self.frozen = torch.zeros((), device=device)
        optimizer.found_inf = self.frozen  # pyright: ignore[reportAttributeAccessIssue]
        self.launch: Callable[[], None] = self.step

    def __call__(self, index: Tensor, rate: float) -> None:
        self.index.copy_(index)
        set_rate(self.optimizer, rate)
        self.launch()

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        stored, target = self.samples.stored[self.index], self.samples.target[self.index]
        with autocast(self.processes.device, self.precision):
            output, _ = self.forward(self.task.inputs(self.task.augment(stored)))
        output = output.float()
        loss = self.task.losses(output, target).mean()
        loss.backward()
        self.processes.average_gradients(self.parameters)
        with torch.no_grad():
            self.record(torch.stack([loss, self.task.scores(output, target).mean()]))
        self.optimizer.step()

    def record(self, values: Tensor) -> None:
        values = self.processes.mean(values)
        bad = ~values[0].isfinite() & (self.bad_step < 0)
        self.bad_step.copy_(torch.where(bad, self.steps, self.bad_step))
        self.frozen.copy_(self.bad_step >= 0)
        self.totals += values
        self.steps += 1

    def start_epoch(self) -> None:
        self.totals.zero_()
        self.steps.zero_()

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint within an epoch needs."""
        return {"totals": self.totals, "steps": self.steps}

    def capture(self) -> None:
        """Capture the step as a CUDA graph. This trains a few steps: restore weights and optimiser afterwards."""
        warm_up(self.step)
        self.optimizer.zero_grad(set_to_none=True)  # gradients must be allocated in the graph's own memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        self.launch = graph.replay
        self.start_epoch()
        self.bad_step.fill_(-1)
