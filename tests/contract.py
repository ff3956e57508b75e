"""Layers and inputs for the tests of what every layer must satisfy."""

from functools import partial

import torch

from layer_names import NAMES
from multistable import Stack
from multistable.layers import Recurrent, find_layer

B, T, D, N = 3, 9, 4, 6
TOLERANCE = 1e-12

STACKS = ("stack:bmru", "stack:lru", "stack:hybrid", "stack:lstm", "batch:hybrid")
"""Stacks of two blocks; the last with batch norm, in evaluation mode."""

ALL = (*NAMES, *STACKS)


def make(name: str, **options) -> Recurrent:
    torch.manual_seed(0)
    kind, fixed = (partial(Stack, name.split(":")[1]), {}) if name in STACKS else find_layer(name)
    options |= {"norm": "batch"} if name.startswith("batch") else {}
    sizes = {"input_size": D, "hidden_size": N, "num_layers": 2, "batch_first": True, "dtype": torch.float64}
    cell = kind(**sizes | fixed | options)
    with torch.no_grad():  # no parameter keeps a value that hides a mistake, such as 0 or 1
        for parameter in cell.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return cell.eval()


def random_batch(cell: Recurrent, length: int = T) -> tuple[torch.Tensor, torch.Tensor]:
    """An input and an initial state."""
    torch.manual_seed(1)
    states = cell.num_layers * (2 if cell.bidirectional else 1)
    h0 = torch.randn(states, B, cell.state_size, dtype=torch.float64)
    return torch.randn(B, length, D, dtype=torch.float64), h0


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)
