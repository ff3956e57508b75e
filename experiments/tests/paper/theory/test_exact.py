"""Claims on memory units that solve for their equilibria (section 3)."""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

import theory_claims
from multistable import BMRU, HysteresisMRU, dynamics
from multistable.dynamics import Field, branches, hysteresis
from multistable_experiments.paper.claims import Finding
from multistable_experiments.threads import one_thread
from theory_claims import Patch, claim, gaussian, largest, nan_from, seeded, within

# --- what breaks the claims -------------------------------------------------------------------------------------------


def exact_scan_forgets(patch: Patch) -> None:
    plain = hysteresis.hysteresis_scan
    patch.setattr(hysteresis, "hysteresis_scan", lambda x, beta, h0=None, **options: plain(x, -beta, h0, **options))


def other_branches(patch: Patch) -> None:
    plain = branches.branch_scan
    patch.setattr(branches, "branch_scan", lambda *args, **options: -plain(*args, **options))


def sloppy_roots(patch: Patch) -> None:
    plain = dynamics.equilibria

    def broken(*args, **options):
        found = plain(*args, **options)
        return replace(found, residual=found.residual + 1e-9)

    patch.setattr(dynamics, "equilibria", broken)


def nan_residuals(patch: Patch) -> None:
    plain = dynamics.equilibria

    def broken(*args, **options):
        found = plain(*args, **options)
        return replace(found, residual=found.residual * math.nan)

    patch.setattr(dynamics, "equilibria", broken)


def missing_roots(patch: Patch) -> None:
    """Return only one root per element, a correct one."""
    plain = dynamics.equilibria

    def broken(*args, **options):
        found = plain(*args, **options)
        first = {name: getattr(found, name)[..., :1] for name in ("h", "slope", "stable", "residual", "converged")}
        return replace(found, **first, count=torch.ones_like(found.count))

    patch.setattr(dynamics, "equilibria", broken)


def implicit_gradient_off(patch: Patch) -> None:
    plain = hysteresis.hysteresis_scan

    def broken(*args, **options):
        h = plain(*args, **options)
        return h.detach() + 1.01 * (h - h.detach())

    patch.setattr(hysteresis, "hysteresis_scan", broken)


def fast_exact_unit(patch: Patch) -> None:
    patch.setitem(globals(), "HysteresisMRU", BMRU)


# --- the claims -------------------------------------------------------------------------------------------------------


@claim(
    "exact-unit-in-parallel",
    "The solutions of all timesteps are found in parallel; the previous state only selects",
    "sec. 3",
    "exact unit by a scan against the clock, 2,000 ticks a step, where it came to rest (over 95 %): at most 1e-6 apart",
    broken_by=[exact_scan_forgets, nan_from(hysteresis, "hysteresis_scan")],
)
def test_exact_unit_in_parallel() -> Finding:
    x, beta = 1.5 * gaussian(300, 10, 1), 1.5 * gaussian(300, 10, 1, seed=1).tanh()
    states = hysteresis.hysteresis_scan(x, beta, torch.full((300, 1), 0.5, dtype=torch.float64))
    return against_clock(dynamics.simplified_brc(0.2), 2000, states, x, beta)


@claim(
    "any-dynamics",
    "A memory unit can be built from any nonlinear dynamics by its bifurcation diagram",
    "sec. 3",
    "a field of three stable states: branches by a scan against the clock; at most 1e-6 apart, all three used",
    broken_by=[other_branches, nan_from(branches, "branch_scan")],
)
def test_any_dynamics() -> Finding:
    field = Field(lambda h, x: 0.5 * h + 0.25 * (torch.tanh(6 * (h + x) - 3) + torch.tanh(6 * (h + x) + 3)))
    x = 0.4 * gaussian(300, 10, 1)
    states = branches.branch_scan(field, [x], torch.full((300, 1), 0.5, dtype=torch.float64), max_branches=3)
    found = against_clock(field, 500, states, x)
    used = len(states.round().unique())
    return Finding(found.held and used == 3, f"{found.measured}; {used} branches used")


def against_clock(field: Field, ticks: int, states: Tensor, *args: Tensor) -> Finding:
    """Compare states ``[B, T, N]`` with iterating a field at each step, from h_0 = 0.5."""
    h, apart, rested = torch.full_like(states[:, 0], 0.5), [], 0
    good = torch.ones_like(h, dtype=torch.bool)
    for t in range(states.shape[1]):
        here = [x[:, t] for x in args]
        h = theory_claims.settle(field, h, *here, ticks=ticks)
        good &= (field(h, *here) - h).abs() < 1e-10  # after a step that did not converge, later states are guesses
        rested += int(good.sum())
        apart.append(torch.where(good, (states[:, t] - h).abs(), 0.0))
    worst, share = largest(apart), rested / states.numel()
    seen = "" if share > 0.95 else f", but only {share:.0%} of the steps came to rest"
    return Finding(worst <= 1e-6 and share > 0.95, f"{within(worst, 1e-6)}{seen}")


@claim(
    "newton",
    "Newton's method finds the state in the memory region",
    "sec. 3",
    "10,000 random inputs and beta in [-1.8, 2]: three roots in the memory region and one outside, residuals of all "
    "below 1e-12",
    broken_by=[sloppy_roots, nan_residuals, missing_roots],
)
def test_newton() -> Finding:
    x, beta = 2 * gaussian(10_000), 1.9 * gaussian(10_000, seed=1).tanh() + 0.1
    found = dynamics.equilibria(dynamics.simplified_brc(), x, beta, strict=False)
    wrong = int((found.count != torch.where(x.abs() < hysteresis.folds(beta)[1], 3, 1)).sum())
    worst = largest([found.residual[~found.h.isnan()]])
    text = f"{within(worst, 1e-12).replace('apart', 'left')}; {wrong} of 10,000 inputs have another number of roots"
    return Finding(worst <= 1e-12 and wrong == 0, text)


@claim(
    "implicit-gradient",
    "Implicit differentiation gives the exact gradient",
    "sec. 3",
    "gradient of the exact unit's states against central differences; 0.1 and more from a fold: within 1e-6",
    broken_by=[implicit_gradient_off],
)
def test_implicit_gradient() -> Finding:
    beta = torch.full((1, 1, 200), 1.5, dtype=torch.float64)
    x_c = float(hysteresis.folds(beta)[1][0, 0, 0])
    x = torch.linspace(-2, 2, 200).double().reshape(1, 1, 200)
    x = x[(x.abs() - x_c).abs() > 0.1][None, None].requires_grad_()
    beta, h0 = beta[..., : x.shape[-1]], torch.ones(1, x.shape[-1], dtype=torch.float64)

    def states(x: Tensor) -> Tensor:
        return hysteresis.hysteresis_scan(x, beta, h0, alpha_surr=None, max_gain=math.inf)

    (grad,) = torch.autograd.grad(states(x).sum(), x)
    with torch.no_grad():
        difference = (states(x + 1e-5) - states(x - 1e-5)) / 2e-5
    worst = float((grad - difference).abs().max())
    return Finding(worst <= 1e-6, within(worst, 1e-6))


@claim(
    "iterating-is-slower",
    "Solving for the exact state is slower than the BMRU's approximation of it",
    "sec. 3",
    "forward time of HysteresisMRU over BMRU, [8, 256, 64] on the CPU, one thread, fastest of 10: over 1.5",
    broken_by=[fast_exact_unit],
)
def test_iterating_is_slower() -> Finding:
    x = gaussian(8, 256, 64).float()
    with seeded(), torch.no_grad():
        exact, flat = (fastest(layer(64, 64, batch_first=True), x) for layer in (HysteresisMRU, BMRU))
    ok = exact > 1.5 * flat
    return Finding(ok, "over 1.5 times as long" if ok else f"{exact / flat:.2f} times as long")


def fastest(layer: Callable[[Tensor], object], x: Tensor) -> float:
    times = []
    with one_thread():
        for _ in range(11):  # the first call compiles
            start = time.perf_counter()
            layer(x)
            times.append(time.perf_counter() - start)
    return min(times[1:])
