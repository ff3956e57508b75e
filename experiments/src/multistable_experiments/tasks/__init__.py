"""Tasks: what a model is trained on. Each is a frozen dataclass that makes its data from a seed."""

from multistable_experiments.tasks.base import Classification, Regression, Samples, Split, Streamed, Task
from multistable_experiments.tasks.copy_first import CopyFirst
from multistable_experiments.tasks.hold_bit import HoldBit
from multistable_experiments.tasks.mnist import MNIST
from multistable_experiments.tasks.pathfinder import Pathfinder

__all__ = [
    "MNIST",
    "TASKS",
    "Classification",
    "CopyFirst",
    "HoldBit",
    "Pathfinder",
    "Regression",
    "Samples",
    "Split",
    "Streamed",
    "Task",
]

TASKS: dict[str, type[Task]] = {task.name: task for task in (HoldBit, CopyFirst, MNIST, Pathfinder)}
"""The tasks by the name that the command line and the result files use. Add your own before you train or load it:
``TASKS[MyTask.name] = MyTask``."""
