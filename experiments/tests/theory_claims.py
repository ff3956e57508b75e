"""The paper's claims as tests: each measures one sentence, and must fail when its subject is broken on purpose."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from multistable import LRU, dynamics, ops
from multistable.dynamics import Field
from multistable_experiments.paper import simulations
from multistable_experiments.paper.claims import Finding

Patch = pytest.MonkeyPatch
Break = Callable[[Patch], None]


def claim(id: str, sentence: str, where: str, how: str, *, broken_by: Iterable[Break]) -> Callable[..., Any]:
    """Turn a function that measures a claim into a test.

    The claim must hold, as worded in ``results/theory.json``. After each of ``broken_by`` it must not hold.
    """

    def make(measure: Callable[[], Finding]) -> Callable[..., None]:
        @pytest.mark.parametrize("broken", [None, *broken_by], ids=lambda it: it.__name__ if it else "holds")
        def test(broken: Break | None, monkeypatch: Patch, check_stored: Callable[..., None]) -> None:
            if broken is None:
                finding = measure()
                entry = {"sentence": sentence, "where": where, "how": how, "held": finding.held}
                check_stored(id, entry | {"measured": finding.measured, "note": finding.note})
            else:
                broken(monkeypatch)
                finding = measure()
                assert finding.held is False, finding.measured

        return test

    return make


# --- numbers ----------------------------------------------------------------------------------------------------------


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_input(seed: int = 0, T: int = 60) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Candidates and thresholds ``[8, T, 32]``, levels ``[32]``, and states ``[8, 32]`` on one of the two levels."""
    alpha = gaussian(32, seed=seed + 2).abs() + 0.1
    h0 = alpha * torch.where(gaussian(8, 32, seed=seed + 3) >= 0, 1.0, -1.0)
    return gaussian(8, T, 32, seed=seed), 2 * gaussian(8, T, 32, seed=seed + 1), alpha, h0


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Create layers from this seed without affecting random numbers elsewhere."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def settle(field: Field, h: Tensor, *args: Tensor, ticks: int) -> Tensor:
    """``h`` after this many ticks of the clock."""
    for _ in range(ticks):
        h = field(h, *args)
    return h


def differing(x: Tensor, y: Tensor) -> int:
    """The number of elements in which two tensors differ (0.0 equals -0.0)."""
    return int((x != y).sum())


def largest(tensors: Iterable[Tensor]) -> float:
    """The largest element of several tensors; NaN if there is any, which Python's ``max`` would ignore."""
    return float(torch.stack([x.max() for x in tensors]).max())


def within(value: float, bound: float) -> str:
    """Describe a difference. Rounding differs between machines, so name only the bound, unless it is exceeded."""
    return f"at most {bound:g} apart" if value <= bound else f"{value:.2g} apart"


def listed(counts: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(counts))))


# --- what breaks claims of several files ------------------------------------------------------------------------------


def nan_from(owner: Any, name: str) -> Break:
    """Make a function return NaN only."""

    def nan(patch: Patch) -> None:
        plain = getattr(owner, name)
        patch.setattr(owner, name, lambda *args, **options: plain(*args, **options) * math.nan)

    return nan


def fading_scan(patch: Patch) -> None:
    """Make the state lose a millionth at every step, in every backend but the loop."""
    plain = ops.bmru_scan

    def broken(cand, *args, **options):
        h = plain(cand, *args, **options)
        fade = (1 - 1e-6) ** torch.arange(1, cand.shape[1] + 1, dtype=h.dtype)[:, None]
        return h if options.get("backend") == "reference" else h * fade

    patch.setattr(ops, "bmru_scan", broken)


def fading_layer(patch: Patch) -> None:
    from multistable.layers import bmru

    plain = bmru.bmru_layer

    def broken(proj, *args, **options):
        h, last = plain(proj, *args, **options)
        fade = (1 - 1e-6) ** torch.arange(1, proj.shape[1] + 1, dtype=h.dtype)[:, None]
        return h * fade, last * fade[-1]

    patch.setattr(bmru, "bmru_layer", broken)
    patch.setattr(bmru, "fused_backend", lambda *_: None)


def eternal_lru(patch: Patch) -> None:
    def ones(self, layer=0, suffix=""):
        N = self.hidden_size
        return torch.cat([torch.ones(N), torch.zeros(N)]).double()

    patch.setattr(LRU, "eigenvalues", ones)


def wrong_beta(patch: Patch) -> None:
    """Reverse the sign of beta."""
    plain = dynamics.simplified_brc

    def broken(c: float = 1.0) -> Field:
        field = plain(c)
        return Field(lambda h, x, beta: field(h, x, -beta))

    patch.setattr(dynamics, "simplified_brc", broken)
    patch.setattr(simulations, "simplified_brc", broken)
