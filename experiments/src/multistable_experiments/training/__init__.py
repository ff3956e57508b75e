"""Training: one loop for every task and every cell, killed and resumed to the same bits."""

from multistable_experiments.training.loop import NonFiniteLossError, Options, OutOfTimeError, train_run
from multistable_experiments.training.run import Decay, Run, Schedule
from multistable_experiments.training.trained import evaluate_lengths, load_trained

__all__ = [
    "Decay",
    "NonFiniteLossError",
    "Options",
    "OutOfTimeError",
    "Run",
    "Schedule",
    "evaluate_lengths",
    "load_trained",
    "train_run",
]
