"""Training: one loop for every task and every cell, killed and resumed to the same bits."""

from multistable.training.config import Decay, Run, Schedule
from multistable.training.loop import NonFiniteLossError, Options, OutOfTimeError, train_run

__all__ = ["Decay", "NonFiniteLossError", "Options", "OutOfTimeError", "Run", "Schedule", "train_run"]
