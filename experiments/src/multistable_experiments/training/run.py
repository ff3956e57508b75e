"""A run: everything that decides the numbers of one training, as a frozen dataclass, JSON and a hash."""

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from multistable.models import ModelConfig
from multistable.models.config import LRUConfig, PositionConfig
from multistable.ops.checks import check_sizes
from multistable_experiments.tasks import MNIST, TASKS, Pathfinder, Task

__all__ = ["LATER", "Decay", "Precision", "Run", "Schedule"]

Precision = Literal["float32", "bfloat16"]

LATER: dict[type, dict[str, Any]] = {
    MNIST: {"tail": "black"},
    Pathfinder: {"more_images": 0, "augmented": False},
    ModelConfig: {"start": "zero", "norm_out": False},
    PositionConfig: {"held": False},
}
"""Fields added since the first results were stored: class (Run, a task, ModelConfig, ...) -> name -> the value that
means the behaviour before the field existed. At this value a field is left out of the hash, and a stored run without
the field gets this value, so that identities last."""


@dataclass(frozen=True)
class Schedule:
    """Learning rate: linear from ``start`` to ``peak`` during the warm-up, then a half cosine to ``end``."""

    start: float = 1e-4
    peak: float = 1e-3
    end: float = 1e-5
    warmup_epochs: float = 10

    def __post_init__(self) -> None:
        for name in ("start", "peak", "end"):
            rate = getattr(self, name)
            if not isinstance(rate, int | float) or not 0 <= rate < math.inf:
                raise ValueError(f"schedule.{name} must be a learning rate of at least 0, got {rate!r}")

    def rate(self, epoch: float, epochs: int) -> float:
        """The rate after ``epoch`` epochs (a fraction within an epoch) of ``epochs``.

        >>> [round(Schedule().rate(epoch, 100), 6) for epoch in (0, 5, 10, 55, 100)]
        [0.0001, 0.00055, 0.001, 0.000505, 1e-05]
        """
        if epoch < self.warmup_epochs:
            return self.start + (self.peak - self.start) * epoch / self.warmup_epochs
        done = (epoch - self.warmup_epochs) / (epochs - self.warmup_epochs)
        return self.end + (self.peak - self.end) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class Decay:
    """Weight decay of the BMRU's parameters (projections, alpha, read-out), and of all others.

    ``reading="paper"`` takes the paper's "other parameters" literally. ``"usual"`` exempts vectors among them: scales
    and shifts of norms, biases, and the LRU's eigenvalues and normalisation.
    """

    bmru: float = 1e-4
    other: float = 0.05
    reading: Literal["paper", "usual"] = "paper"

    def __post_init__(self) -> None:
        for name in ("bmru", "other"):
            strength = getattr(self, name)
            if not isinstance(strength, int | float) or not 0 <= strength < math.inf:
                raise ValueError(f"decay.{name} must be a weight decay of at least 0, got {strength!r}")


@dataclass(frozen=True)
class Run:
    """One training. Equal runs give equal numbers on one machine; device and speed options are not part of it."""

    task: Task
    model: ModelConfig
    epochs: int = 100
    batch_size: int = 256
    """Of all processes together; the paper does not give it. Samples after the last full batch of an epoch are not
    used; each epoch has another order, so they are other ones each time."""
    schedule: Schedule = None  # pyright: ignore[reportAssignmentType]
    """None: the default one, with a tenth of the epochs as warm-up."""
    decay: Decay = field(default_factory=Decay)
    seed: int = 0
    """Decides weights, data, order and dropout."""
    precision: Precision = "float32"
    """``"bfloat16"``: matrix products under autocast; parameters and optimiser stay float32."""

    def __post_init__(self) -> None:
        check_sizes(1, epochs=self.epochs)
        if self.schedule is None:
            object.__setattr__(self, "schedule", Schedule(warmup_epochs=self.epochs / 10))
        for name, kind in (("task", Task), ("model", ModelConfig), ("schedule", Schedule), ("decay", Decay)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got {getattr(self, name)!r}")
        check_sizes(2, batch_size=self.batch_size)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"seed must be an integer, got {self.seed!r}")
        if not 0 <= self.schedule.warmup_epochs < self.epochs:
            raise ValueError(
                f"schedule.warmup_epochs must be at least 0 and less than the {self.epochs} epochs of the run, "
                f"got {self.schedule.warmup_epochs!r}"
            )
        for name, value, choices in (
            ("precision", self.precision, get_args(Precision)),
            ("decay.reading", self.decay.reading, ("paper", "usual")),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
        for name in ("d_input", "d_output", "pooling"):
            expected, got = getattr(self.task, name), getattr(self.model, name)
            if expected != got:
                raise ValueError(f"model.{name} must be {expected!r} for the task {self.task.name}, got {got!r}")

    @property
    def id(self) -> str:
        """The identity of this run: a hash of twelve hexadecimal digits."""
        text = json.dumps(hashed_fields(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: dictionaries, lists, numbers, strings."""
        values = json.loads(json.dumps(dataclasses.asdict(self)))
        return {**values, "task": {"name": self.task.name, **values["task"]}}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Run":
        """The inverse of :meth:`to_dict`."""
        values = LATER.get(cls, {}) | values
        task = dict(values["task"])
        name = task.pop("name")
        if name not in TASKS:
            known, hint = ", ".join(map(repr, TASKS)), "add a task of your own to multistable_experiments.tasks.TASKS"
            raise ValueError(f"task.name must be one of {known}, got {name!r}; {hint}")
        model = LATER.get(ModelConfig, {}) | values["model"]
        for part, kind in (("position", PositionConfig), ("lru", LRUConfig)):
            if model.get(part) is not None:
                model[part] = LATER.get(kind, {}) | model[part]
        parts = {
            "task": TASKS[name](**LATER.get(TASKS[name], {}) | task),
            "model": ModelConfig.from_dict(model),
            "schedule": Schedule(**LATER.get(Schedule, {}) | values["schedule"]),
            "decay": Decay(**LATER.get(Decay, {}) | values["decay"]),
        }
        return cls(**{**values, **parts})


def hashed_fields(value: Any) -> Any:
    """The fields of a run, or of one of its parts, that its identity depends on."""
    if not dataclasses.is_dataclass(value):
        return value
    later = LATER.get(type(value), {})
    fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    fields = {name: hashed_fields(x) for name, x in fields.items() if name not in later or x != later[name]}
    return {"name": value.name, **fields} if isinstance(value, Task) else fields
