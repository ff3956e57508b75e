"""Training: one loop for every task and layer; a killed run resumes to the same bits."""

from multistable_experiments.training.loop import NonFiniteLossError, Options, OutOfTimeError, train_run
from multistable_experiments.training.results import evaluate_lengths, load_trained
from multistable_experiments.training.run import Decay, Run, Schedule

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
