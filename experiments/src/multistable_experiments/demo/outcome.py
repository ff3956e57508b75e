"""What training and testing one model gives: the same for both tasks of the demo."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Outcome", "error_rows", "score"]


@dataclass(frozen=True)
class Outcome:
    """A trained model and its tests. Errors are mean squared errors of the last output."""

    curve: list[tuple[int, float]]
    """Training step or epoch, error at the length of the training."""
    errors: dict[float, list[tuple[int, float]]]
    """Standard deviation of the noise -> length of the sequences, error."""
    outputs: Tensor
    """``[S, T]``: the output at every step of S sequences of the longest length."""
    parameters: int
    seconds: float
    """Time of the training."""


def score(error: float) -> str:
    """
    >>> [score(error) for error in (0.0, 3.2e-14, 0.00021, 0.0584, 1.0, 17.23)]
    ['0', '3.2e-14', '0.00021', '0.058', '1.00', '17.23']
    """
    if error == 0:
        return "0"
    return f"{error:.2f}" if error >= 0.1 else f"{error:.2g}"


def error_rows(outcomes: Mapping[str, Outcome]) -> list[list[str]]:
    """A table: one row per noise and length, one column per model."""
    models = list(outcomes.values())
    rows = []
    for noise in models[0].errors:
        words = f" steps, noise {noise:g}" if len(models[0].errors) > 1 else " steps"
        for tests in zip(*(model.errors[noise] for model in models), strict=True):
            rows.append([f"{tests[0][0]:,}{words}", *(score(error) for _, error in tests)])
    return rows
