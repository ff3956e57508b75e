"""State tracking: read symbols, answer with the state of a machine. Exact at every length, or not at all.

parity       whether the number of ones is odd
mod3, mod5   the number of ones modulo n, for any n from 2 to 9999
flip-flop    the last bit that was set; a third symbol sets nothing
dyck         brackets of two kinds, at most three open at a time: closed, open, or broken
Z2, Z3, Z6, S3, D4, A4, S4, A5   the product of all elements of a group so far
"""

import re
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Protocol

import torch
from torch import Tensor

from multistable.machines import Machine
from multistable.ops.checks import check_sizes
from multistable_experiments.tasks.seeds import derive

__all__ = ["MACHINES", "failing_length", "machine", "random_symbols", "with_idle", "word_problem"]

Permutation = tuple[int, ...]
GENERATORS: dict[str, tuple[Permutation, ...]] = {
    "Z2": ((1, 0),),
    "Z3": ((1, 2, 0),),
    "Z6": ((1, 2, 3, 4, 5, 0),),
    "S3": ((1, 0, 2), (1, 2, 0)),
    "D4": ((1, 2, 3, 0), (3, 2, 1, 0)),
    "A4": ((1, 2, 0, 3), (1, 0, 3, 2)),
    "S4": ((1, 2, 3, 0), (1, 0, 2, 3)),
    "A5": ((1, 2, 3, 4, 0), (1, 2, 0, 3, 4)),
}
MACHINES = ("parity", "mod3", "mod5", "flip-flop", "dyck", *GENERATORS)
"""Names of machines; ``modN`` exists for every N of up to four digits."""
CHUNK = 10_000  # steps read at a time
AT_ONCE = {"cpu": 200_000, "cuda": 2_000_000}  # steps of all sequences together


@cache
def machine(name: str) -> Machine:
    """The machine of a name."""
    if name in GENERATORS:
        return word_problem(GENERATORS[name])
    if name == "parity":
        return counter(2)
    if match := re.fullmatch(r"mod([2-9]|[1-9]\d{1,3})", name):
        return counter(int(match[1]))
    if name == "flip-flop":
        return Machine(((0, 0, 1), (1, 0, 1)), (0, 1))
    if name == "dyck":
        return dyck(kinds=2, depth=3)
    raise ValueError(f"machine must be one of {', '.join(MACHINES)}, or modN with N from 2 to 9999, got {name!r}")


def counter(n: int) -> Machine:
    """Counts symbol 1 modulo n; symbol 0 does not count."""
    return Machine(tuple((q, (q + 1) % n) for q in range(n)), tuple(range(n)))


def word_problem(generators: tuple[Permutation, ...]) -> Machine:
    """States and symbols are the elements of the group that these permutations generate, the identity first.

    Symbol a takes q to the product "first q, then a"; the output is the state.

    >>> word_problem(((1, 0),)).table
    ((0, 1), (1, 0))
    """
    elements = [tuple(range(len(generators[0])))]
    for element in elements:  # grows while it is read
        for generator_ in generators:
            new = tuple(generator_[i] for i in element)
            if new not in elements:
                elements.append(new)
    number = {element: q for q, element in enumerate(elements)}
    table = tuple(tuple(number[tuple(a[i] for i in q)] for a in elements) for q in elements)
    return Machine(table, tuple(range(len(elements))))


def dyck(kinds: int, depth: int) -> Machine:
    """Brackets: symbol k opens one of kind k, symbol ``kinds + k`` closes it. Closing another one than the last opened,
    or opening more than ``depth``, breaks the word for good. Outputs: 0 all closed, 1 some open, 2 broken."""
    stacks: list[Permutation] = [stack for d in range(depth + 1) for stack in product(range(kinds), repeat=d)]
    number, broken = {stack: q for q, stack in enumerate(stacks)}, len(stacks)
    rows: list[tuple[int, ...]] = []
    for stack in stacks:
        opened = [number.get((*stack, k), broken) for k in range(kinds)]
        closed = [number[stack[:-1]] if stack and stack[-1] == k else broken for k in range(kinds)]
        rows.append((*opened, *closed))
    outputs = [0, *[1] * (len(stacks) - 1), 2]
    return Machine((*rows, (broken,) * 2 * kinds), tuple(outputs))


def with_idle(target: Machine, symbols: int) -> Machine:
    """The machine with further symbols, which change nothing.

    >>> with_idle(machine("parity"), 1).table
    ((0, 1, 0), (1, 0, 1))
    """
    return Machine(tuple((*row, *[q] * symbols) for q, row in enumerate(target.table)), target.output)


def random_symbols(
    target: Machine,
    shape: tuple[int, int],
    random: torch.Generator,
    idle: float = 0.0,
    idle_symbols: int = 0,
    broken: float = 0.05,
) -> Tensor:
    """Uniform symbols ``[B, T]`` on the generator's device.

    Where a state cannot be left any more, symbols that would enter it have weight ``broken / A``, all others one more:
    words of brackets would be broken after a few symbols. Each symbol is replaced, with probability ``idle``, by one of
    ``idle_symbols``, which are numbered after those of the target and are not drawn otherwise.
    """
    symbols, device = _relevant(target, shape, random, broken), random.device
    if not idle:
        return symbols
    others = target.n_symbols + torch.randint(idle_symbols, shape, generator=random, device=device)
    return torch.where(torch.rand(shape, generator=random, device=device) < idle, others, symbols)


def _relevant(target: Machine, shape: tuple[int, int], random: torch.Generator, broken: float) -> Tensor:
    device = random.device
    symbols = torch.randint(target.n_symbols, shape, generator=random, device=device)
    table = torch.tensor(target.table, device=device)
    final = (table == torch.arange(target.n_states, device=device)[:, None]).all(1)
    if not final.any():
        return symbols
    allowed = (~final[table]).double() + broken / target.n_symbols
    q = torch.zeros(shape[0], dtype=torch.int64, device=device)
    for t in range(shape[1]):
        symbols[:, t] = torch.multinomial(allowed[q], 1, generator=random).squeeze(1)
        q = table[q, symbols[:, t]]
    return symbols


class Reader(Protocol):
    """A model that reads symbols ``[B, t]`` and answers at every step: logits ``[B, t, C]``, and its state."""

    def __call__(self, symbols: Tensor, state: Tensor | None, /) -> tuple[Tensor, Tensor]: ...


@torch.no_grad()
def failing_length(
    model: Reader | Callable[..., tuple[Tensor, Tensor]],
    target: Machine,
    *,
    longest: int,
    sequences: int,
    seed: int = 0,
    idle: float = 0.0,
    idle_symbols: int = 0,
    device: str = "cpu",
) -> int | None:
    """The first step at which one of ``sequences`` random inputs is answered wrongly; None if there is none up to
    ``longest``. Inputs have idle symbols, which the model knows, as in :func:`random_symbols`."""
    check_sizes(1, longest=longest, sequences=sequences)
    random = torch.Generator(device).manual_seed(derive(seed, "failing-length", longest, sequences))
    with_all, output = with_idle(target, idle_symbols), torch.tensor(target.output, device=device)
    q, state = torch.zeros(sequences, dtype=torch.int64, device=device), None
    chunk = max(1, min(CHUNK, AT_ONCE.get(torch.device(device).type, AT_ONCE["cpu"]) // sequences))
    for start in range(0, longest, chunk):
        symbols = random_symbols(target, (sequences, min(chunk, longest - start)), random, idle, idle_symbols)
        logits, state = model(symbols, state)
        states = with_all.states(symbols, q)
        wrong = (logits.argmax(-1) != output[states]).any(0)
        if bool(wrong.any()):
            return start + int(wrong.nonzero()[0]) + 1
        q = states[:, -1]
    return None
