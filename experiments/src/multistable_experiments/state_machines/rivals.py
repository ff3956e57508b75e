"""Machines and other layers on the same task, with equal parameters, an equal search and the same seeds.

Layers stand in blocks (:class:`multistable.Stack`) between a linear encoder of one-hot symbols and a linear read-out;
``fsm`` is a :class:`multistable.machines.Transducer` of as many units as make up the number of parameters. Its units
have as many states as the target; those of ``fsm-16`` have 16, whatever the target.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multistable import Stack
from multistable.machines import Transducer
from multistable_experiments.state_machines.delta_net import DeltaStack
from multistable_experiments.state_machines.training import Data, loss
from multistable_experiments.tasks.seeds import generator
from multistable_experiments.tasks.state_tracking import failing_length, machine
from multistable_experiments.threads import one_thread

__all__ = ["CELLS", "LAYERS", "RATES", "SEARCH_SEED", "Contest", "build_rival", "contest"]

LAYERS = {
    "fsm": "FSM", "fsm-16": "FSM, 16 states", "bmru": "BMRU", "hybrid": "hybrid", "lru": "LRU",
    "lru-ring": "LRU, moduli 0.9 to 1", "mingru": "minGRU", "deltanet": "DeltaNet", "gru": "GRU", "lstm": "LSTM",
}  # fmt: skip
"""How tables and figures call them."""
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {"lru-ring": ("lru", {"r_min": 0.9, "r_max": 1.0})}
"""Layers that have arguments. By default the LRU starts with moduli from 0 to 0.99, which last some hundred steps."""
CELLS = tuple(LAYERS)
RATES = (1e-3, 3e-3, 1e-2)
"""The search of every layer: each of these with one seed, which no later run has."""
SEARCH_SEED = 100
CHECK_EVERY = 100  # updates
CHECK: dict[str, Any] = {"longest": 512, "sequences": 64}
"""Training ends when none of these has an error; otherwise the weights that came furthest are kept."""
TEST: dict[str, Any] = {"longest": 100_000, "sequences": 64}


@dataclass(frozen=True)
class Contest:
    """Everything that decides the numbers of one layer's training."""

    machine: str
    cell: str
    rate: float
    seed: int
    parameters: int
    """As near to this as the width allows."""
    length: int = 128
    lengths: Any = "uniform"
    batch: int = 64
    updates: int = 2_000
    """At most."""
    states: int | None = None
    """Of each unit of ``fsm``; None: as many as the target has. ``fsm-16`` has 16."""
    decay: float = 0.0
    blocks: int = 2

    @property
    def name(self) -> str:
        return f"rival-{self.machine}-{self.cell}-{self.rate:g}-seed{self.seed}"

    @property
    def data(self) -> Data:
        return Data(self.machine, self.length, self.lengths, self.batch)


class Reader(nn.Module):
    """``symbols [B, T]`` -> logits ``[B, T, C]`` and the state, by blocks of a layer."""

    def __init__(self, cell: str, n_symbols: int, n_outputs: int, width: int, blocks: int) -> None:
        super().__init__()
        if cell == "deltanet":
            self.rnn = DeltaStack(n_symbols, width, blocks)
        else:
            cell, options = OPTIONS.get(cell, (cell, {}))
            self.rnn = Stack(cell, n_symbols, width, blocks, batch_first=True, **options)
        self.read_out = nn.Linear(width, n_outputs)

    def forward(self, symbols: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        features, last = self.rnn(F.one_hot(symbols, self.rnn.input_size).float(), state)
        return self.read_out(features), last


def build_rival(item: Contest) -> nn.Module:
    """The model before training, of the width that comes nearest to the number of parameters."""
    target = machine(item.machine)
    sizes = target.n_symbols, target.n_outputs

    def make(width: int) -> nn.Module:
        if item.cell in ("fsm", "fsm-16"):
            return Transducer(*sizes, width, 16 if item.cell == "fsm-16" else item.states or target.n_states)
        return Reader(item.cell, *sizes, width, item.blocks)

    counts: dict[int, int] = {}
    for width in range(1, 10_000):
        try:
            with torch.device("meta"):
                counts[width] = sum(parameter.numel() for parameter in make(width).parameters())
        except ValueError:  # such as an LRU of an odd width
            continue
        if counts[width] > item.parameters:
            break
    torch.manual_seed(item.seed)
    return make(min(counts, key=lambda width: abs(counts[width] - item.parameters)))


def contest(item: Contest) -> dict[str, Any]:
    """Train on short sequences, then measure the length at which the model fails."""
    with one_thread():
        model, updates, reached, last_loss = train_rival(item)
        target = machine(item.machine)
        failed = failing_length(model, target, **TEST, seed=item.seed)
    return {
        "count": sum(parameter.numel() for parameter in model.parameters()),
        "updates": updates,
        "loss": round(last_loss, 6),
        "check": {**CHECK, "failing_length": reached},
        "test": {**TEST, "failing_length": failed},
    }


def train_rival(item: Contest) -> tuple[nn.Module, int, int | None, float]:
    """The model with its best weights, updates, the check's failing length, the mean loss of the last 100 updates."""
    model, target, data = build_rival(item), machine(item.machine), item.data
    random = generator(item.seed, "machines", item.machine)
    optimiser = torch.optim.AdamW(model.parameters(), lr=item.rate, weight_decay=item.decay)
    best, weights, losses = 0, model.state_dict(), list[float]()
    for update in range(1, item.updates + 1):
        optimiser.zero_grad()
        value = loss(model, target, data.draw(random), "every")
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(value.item())
        if update % CHECK_EVERY == 0 or update == item.updates:
            failed = failing_length(model.eval(), target, **CHECK, seed=update)
            if failed is None or failed > best:
                best, weights = failed or 0, {name: v.clone() for name, v in model.state_dict().items()}
            if failed is None:
                return model, update, None, sum(losses[-100:]) / len(losses[-100:])
            model.train()
    model.load_state_dict(weights)
    return model.eval(), item.updates, best, sum(losses[-100:]) / len(losses[-100:])
