"""Claims on internal clocks, equilibria and bistability (sections 2 and 3, appendix A): computed on the spot."""

import itertools
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from multistable import BMRU, LRU, HysteresisMRU, MinGRU, dynamics
from multistable.cells import ClockedRNN
from multistable.dynamics import Field, branches, hysteresis
from multistable.paper import theory
from multistable.paper.claims.claim import Claim, Finding, collector
from multistable.paper.claims.numbers import differing, gaussian, seeded
from multistable.threads import one_thread

__all__ = ["CLAIMS"]

CLAIMS: list[Claim] = []
claim = collector(CLAIMS, trained=False)


def settle(field: Field, h: Tensor, *args: Tensor, ticks: int) -> Tensor:
    """``h`` after that many ticks of the clock."""
    for _ in range(ticks):
        h = field(h, *args)
    return h


# --- section 2 --------------------------------------------------------------------------------------------------------


@claim(
    "clock-of-one",
    "A clock that ticks once per timestep is the plain recurrent unit",
    "sec. 2",
    "states of ClockedRNN with n_clock = 1 against the equation, looped; 50 steps, 64 units",
)
def clock_of_one() -> Finding:
    x, beta, h, c = gaussian(4, 50, 64), gaussian(4, 50, 64, seed=1), gaussian(4, 64, seed=2), 0.3
    states = ClockedRNN(dynamics.simplified_brc(c), 1, 64, n_clock=1).scan([x, beta], h)
    wrong = 0
    for t in range(50):
        h = (1 - c) * h + c * torch.tanh(x[:, t] + (beta[:, t] + 1) * h)
        wrong += differing(states[:, t], h)
    return Finding(wrong == 0, f"{wrong:,} of {states.numel():,} states differ")


@claim(
    "clock-cost",
    "A finite clock of N ticks makes a sequence of T steps N T steps long",
    "sec. 2",
    "evaluations of the field, counted, for N = 1, 3, 10 and T = 20, 50",
)
def clock_cost() -> Finding:
    calls, plain = [0], dynamics.simplified_brc(0.3)

    def function(h: Tensor, x: Tensor, beta: Tensor) -> Tensor:
        calls[0] += 1
        return plain(h, x, beta)

    wrong = []
    for N in (1, 3, 10):
        for T in (20, 50):
            calls[0] = 0
            ClockedRNN(Field(function), 1, 8, n_clock=N).scan([gaussian(2, T, 8), gaussian(2, T, 8, seed=1)], None)
            wrong += [(N, T, calls[0])] if calls[0] != N * T else []
    return Finding(not wrong, "N T evaluations in 6 of 6 cases" if not wrong else f"N, T, evaluations: {wrong}")


@claim(
    "clock-linear",
    "With a linear recurrence, N ticks have a closed form",
    "sec. 2",
    "closed form (a parallel scan) against N T ticks looped, N = 7, float64: at most 1e-12 apart",
)
def clock_linear() -> Finding:
    field, x, a = dynamics.linear(), gaussian(3, 40, 16), 0.98 * gaussian(16, seed=1).tanh()
    states = ClockedRNN(field, 1, 16, n_clock=7).scan([x, a], None)
    h, worst = torch.zeros(3, 16, dtype=torch.float64), 0.0
    for t in range(40):
        h = settle(field, h, x[:, t], a, ticks=7)
        worst = max(worst, float((states[:, t] - h).abs().max()))
    return Finding(worst <= 1e-12, within(worst, 1e-12))


def within(value: float, bound: float) -> str:
    """A rounding error differs between machines: only its bound is said, unless it is broken."""
    return f"at most {bound:g} apart" if value <= bound else f"{value:.2g} apart"


# --- section 3 --------------------------------------------------------------------------------------------------------


@claim(
    "convergence",
    "From every state and at every input, the example unit comes to rest",
    "sec. 3",
    "81 inputs in [-2, 2] x 21 starts x beta = -1.5, 1.5: steps below 1e-12 after 5,000 ticks (c = 0.1)",
)
def convergence() -> Finding:
    x, start = torch.linspace(-2, 2, 81).double()[:, None], torch.linspace(-1, 1, 21).double()
    field, moving, count = dynamics.simplified_brc(0.1), 0, 0
    for beta in (-1.5, 1.5):
        args = x, torch.tensor(beta, dtype=torch.float64)
        h = settle(field, start.expand(81, 21), *args, ticks=5000)
        moving += int(((field(h, *args) - h).abs() >= 1e-12).sum())
        count += h.numel()
    return Finding(moving == 0, f"{count - moving:,} of {count:,} at rest")


@claim(
    "convergent-stationary",
    "The output of a unit that converges within each timestep stays, as long as the input does",
    "sec. 3",
    "states of the exact unit when each of 40 inputs comes 7 times in a row, against the states of one each",
)
def convergent_stationary() -> Finding:
    x, beta, h0 = 2 * gaussian(8, 40, 32), gaussian(8, 40, 32, seed=1), gaussian(8, 32, seed=2).tanh()
    once = hysteresis.hysteresis_scan(x, beta, h0)
    many = hysteresis.hysteresis_scan(x.repeat_interleave(7, 1), beta.repeat_interleave(7, 1), h0)
    wrong = differing(many, once.repeat_interleave(7, 1))
    return Finding(wrong == 0, f"{wrong:,} of {many.numel():,} states differ")


@claim(
    "transients-fade",
    "Trajectories from different states are distinct at first, and meet at a steady state",
    "sec. 3, fig. 1",
    "10 starts, c = 0.01, x = 0: neighbours over 1e-3 apart after 100 ticks, those with one end below it after 5,000",
)
def transients_fade() -> Finding:
    early, late = math.inf, 0.0
    for beta in (-1.5, 1.5):
        states = theory.trajectories(0.0, beta, torch.linspace(-1, 1, 10), 5000)
        early = min(early, float(states[100].diff().abs().min()))
        groups = [states[-1]] if beta < 0 else [states[-1][:5], states[-1][5:]]
        late = max(late, *(float(group.max() - group.min()) for group in groups))
    ok = early > 1e-3 > late
    return Finding(ok, "distinct at 100 ticks, together at 5,000" if ok else f"gaps {early:.1g}, then {late:.1g}")


@claim(
    "one-equilibrium",
    "At beta = -1.5 all states end at the same point, whatever the input: fading memory only",
    "sec. 3, figs. 1 and 2 A",
    "stable equilibria at 401 inputs in [-2, 2]; ends of 10 trajectories at x = 0 within 1e-10",
)
def one_equilibrium() -> Finding:
    counts = stable_counts(-1.5)
    ends = theory.trajectories(0.0, -1.5, torch.linspace(-1, 1, 10), 5000)[-1]
    ok = set(counts) == {1} and float(ends.max() - ends.min()) < 1e-10
    return Finding(ok, f"{listed(counts)} stable at each input" if ok else f"{listed(counts)} stable equilibria")


@claim(
    "two-equilibria",
    "At beta = 1.5 positive states end near +1 and negative ones near -1",
    "sec. 3, figs. 1 and 2 B",
    "10 starts at x = 0, 5,000 ticks: sign kept, end within 0.05 of +-1; two equilibria are stable at x = 0",
)
def two_equilibria() -> Finding:
    starts = torch.linspace(-1, 1, 10)
    ends = theory.trajectories(0.0, 1.5, starts, 5000)[-1]
    wrong = int((ends.sign() != starts.sign()).sum())
    far = float((ends.abs() - 1).abs().max())
    ok = wrong == 0 and far < 0.05 and stable_counts(1.5)[200] == 2
    return Finding(ok, f"ends at +-{float(ends.abs().mean()):.3f}, {wrong} of 10 signs lost")


@claim(
    "memory-region",
    "At beta = 1.5 there is a region of inputs with two solutions, and one outside of it",
    "sec. 3, fig. 2 B",
    "stable equilibria at 401 inputs in [-2, 2]: 1, then 2, then 1 of them as the input grows",
)
def memory_region() -> Finding:
    xs = torch.linspace(-2, 2, 401)
    regimes = dynamics.bifurcation_diagram(dynamics.simplified_brc(), xs, 1.5).regimes
    ok = [count for _, _, count in regimes] == [1, 2, 1]
    text = f"two for |x| up to {regimes[1][1]:.2f}" if ok else f"numbers of solutions {[c for *_, c in regimes]}"
    return Finding(ok, text, "the fold is at x_c = 0.905, not at beta = 1.5: see docs/theory.md")


@claim(
    "basins",
    "The previous state decides: it flows to the stable solution on its side of the unstable one",
    "sec. 3",
    "beta = 1.5, 37 inputs: slopes below 1 at stable roots, above at the unstable one; ends of starts 0.01 beside it",
)
def basins() -> Finding:
    x, beta, field = torch.linspace(-0.9, 0.9, 37).double(), torch.tensor(1.5).double(), dynamics.simplified_brc(0.1)
    found = dynamics.equilibria(field, x, beta)
    if found.h.shape[-1] != 3:
        return Finding(False, f"{found.h.shape[-1]} equilibria instead of 3")
    low, middle, high = found.h.unbind(-1)
    wrong = int((found.slope[:, [0, 2]] >= 1).sum() + (found.slope[:, 1] <= 1).sum())
    for side, target in ((-0.01, low), (0.01, high)):
        end = settle(field, middle + side, x, beta, ticks=5000)
        wrong += int(((end - target).abs() > 1e-6).sum())
    return Finding(wrong == 0, f"{wrong} exceptions in {5 * len(x)}")


@claim(
    "monostable",
    "Linear recurrences and gates that ignore the state are monostable: LRU and minGRU forget where they started",
    "sec. 3",
    "16 random h_0, the same random input: after 5,000 steps the largest distance is below 1e-9 of the first one",
)
def monostable() -> Finding:
    left = {}
    with seeded(), torch.no_grad():
        for layer in (LRU, MinGRU):
            rnn = layer(4, 32, batch_first=True, dtype=torch.float64)
            h0 = gaussian(1, 16, rnn.state_size)
            last = rnn(gaussian(1, 5000, 4, seed=1).expand(16, -1, -1), h0)[1]
            left[layer.__name__] = float(spread(last) / spread(h0))
    ok = max(left.values()) < 1e-9
    return Finding(ok, "both below 1e-9" if ok else ", ".join(f"{name} {value:.1g}" for name, value in left.items()))


@claim(
    "bmru-keeps-its-start",
    "The BMRU, whose gate can be exactly 0, does not forget where it started",
    "sec. 3, sec. 6",
    "16 random h_0, input inside the bistable region for 5,000 steps: states that differ from h_0",
)
def bmru_keeps_its_start() -> Finding:
    with seeded():
        rnn = BMRU(4, 32, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        rnn.get_parameter("bias_ih_l0")[32:] = 100.0  # thresholds no candidate reaches
        h0 = gaussian(1, 16, 32)
        last = rnn(gaussian(1, 5000, 4, seed=1).expand(16, -1, -1), h0)[1]
    wrong = differing(last, h0)
    return Finding(wrong == 0, f"{wrong} of {h0.numel()} states differ")


@claim(
    "exact-unit-in-parallel",
    "The solutions of all timesteps are found in parallel; the previous state only selects",
    "sec. 3",
    "exact unit by a scan against the clock, 2,000 ticks a step, where it came to rest (over 95 %): at most 1e-6 apart",
)
def exact_unit_in_parallel() -> Finding:
    x, beta = 1.5 * gaussian(300, 10, 1), 1.5 * gaussian(300, 10, 1, seed=1).tanh()
    states = hysteresis.hysteresis_scan(x, beta, torch.full((300, 1), 0.5, dtype=torch.float64))
    return against_clock(dynamics.simplified_brc(0.2), 2000, states, x, beta)


@claim(
    "any-dynamics",
    "A memory unit can be built from any nonlinear dynamics by its bifurcation diagram",
    "sec. 3",
    "a field of three stable states: branches by a scan against the clock; at most 1e-6 apart, all three used",
)
def any_dynamics() -> Finding:
    field = Field(lambda h, x: 0.5 * h + 0.25 * (torch.tanh(6 * (h + x) - 3) + torch.tanh(6 * (h + x) + 3)))
    x = 0.4 * gaussian(300, 10, 1)
    states = branches.branch_scan(field, [x], torch.full((300, 1), 0.5, dtype=torch.float64), max_branches=3)
    found = against_clock(field, 500, states, x)
    used = len(states.round().unique())
    return Finding(found.held and used == 3, f"{found.measured}; {used} branches used")


def against_clock(field: Field, ticks: int, states: Tensor, *args: Tensor) -> Finding:
    """Compare states ``[B, T, N]`` with iterating a field at each step, from h_0 = 0.5."""
    h, worst, rested = torch.full_like(states[:, 0], 0.5), 0.0, 0
    good = torch.ones_like(h, dtype=torch.bool)
    for t in range(states.shape[1]):
        here = [x[:, t] for x in args]
        h = settle(field, h, *here, ticks=ticks)
        good &= (field(h, *here) - h).abs() < 1e-10  # once it has not come to rest, later states are its guess
        rested += int(good.sum())
        worst = max(worst, float(((states[:, t] - h).abs() * good).max()))
    share = rested / states.numel()
    seen = "" if share > 0.95 else f", but only {share:.0%} of the steps came to rest"
    return Finding(worst <= 1e-6 and share > 0.95, f"{within(worst, 1e-6)}{seen}")


@claim(
    "newton",
    "Newton's method finds the state in the memory region",
    "sec. 3",
    "10,000 random inputs and beta in [-1.8, 2]: residuals of all roots below 1e-12",
)
def newton() -> Finding:
    x, beta = 2 * gaussian(10_000), 1.9 * gaussian(10_000, seed=1).tanh() + 0.1
    found = dynamics.equilibria(dynamics.simplified_brc(), x, beta, strict=False)
    worst = float(found.residual.nan_to_num(0.0).max())
    return Finding(worst <= 1e-12, within(worst, 1e-12).replace("apart", "left"))


@claim(
    "implicit-gradient",
    "Implicit differentiation gives the exact gradient",
    "sec. 3",
    "gradient of the exact unit's states against central differences; 0.1 and more from a fold: within 1e-6",
)
def implicit_gradient() -> Finding:
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
)
def iterating_is_slower() -> Finding:
    x = gaussian(8, 256, 64).float()
    with seeded(), torch.no_grad():
        exact, flat = (fastest(layer(64, 64, batch_first=True), x) for layer in (HysteresisMRU, BMRU))
    ok = exact > 1.5 * flat
    return Finding(ok, "over 1.5 times as long" if ok else f"{exact / flat:.2f} times as long")


def fastest(layer: Callable[[Tensor], object], x: Tensor) -> float:
    times = []
    with one_thread():
        for _ in range(11):  # the first one compiles
            start = time.perf_counter()
            layer(x)
            times.append(time.perf_counter() - start)
    return min(times[1:])


def stable_counts(beta: float) -> list[int]:
    """Stable equilibria of the example unit at 401 inputs from -2 to 2."""
    diagram = dynamics.bifurcation_diagram(dynamics.simplified_brc(0.1), torch.linspace(-2, 2, 401), beta)
    return diagram.stable.sum(dim=1).tolist()


def listed(counts: list[int]) -> str:
    return ", ".join(map(str, sorted(set(counts))))


def spread(h: Tensor) -> Tensor:
    """The largest distance between the states of two sequences, ``h [1, B, S]``."""
    return (h[0].amax(dim=0) - h[0].amin(dim=0)).max()


# --- appendix A -------------------------------------------------------------------------------------------------------


def brc_counts(b_a: float, U_h: float = 1.0, U_a: float = 0.0, w_a: float = 0.0, b_h: float = 0.0) -> list[int]:
    """Stable steady states of the bistable recurrent cell at 201 inputs from -3 to 3."""
    x = torch.arange(-100, 101).double() * 0.03
    zero = torch.zeros_like(x)
    args = U_h * x + b_h, U_a * x + b_a, zero, zero + w_a, zero
    return dynamics.equilibria(dynamics.brc(), *args, n_grid=128).stable.sum(dim=-1).tolist()


@claim(
    "brc-hysteresis",
    "The bistable recurrent cell is monostable at b_a = -1, singular at 0, bistable at 1",
    "app. A, fig. 12",
    "stable steady states at 200 inputs other than 0; at b_a = 0 the slope at the origin is 1 to 1e-12",
)
def brc_hysteresis() -> Finding:
    counts = {b_a: brc_counts(b_a) for b_a in (-1.0, 0.0, 1.0)}
    for values in counts.values():
        del values[100]  # x = 0, where the middle case is singular
    zero = torch.zeros((), dtype=torch.float64)
    critical = abs(float(dynamics.brc().slope(zero, zero, zero, zero, zero, zero)) - 1) < 1e-12
    ok = set(counts[-1.0]) == {1} and set(counts[0.0]) == {1} and critical and set(counts[1.0]) == {1, 2}
    text = "; ".join(f"b_a = {b_a:g}: {listed(values)} stable" for b_a, values in counts.items())
    return Finding(ok, f"{text}; slope at 0 {'is' if critical else 'is not'} 1")


@claim(
    "brc-deformed",
    "Other parameters of that cell move and deform the curve, and keep the hysteresis",
    "app. A",
    "U_h = 0.5, -2; U_a = -0.3, 0.3; w_a = -0.5, 0.5; b_h = -0.5, 0.5: as b_a goes from -2 to 1.5, one solution "
    "everywhere becomes two somewhere",
)
def brc_deformed() -> Finding:
    sets = list(itertools.product((0.5, -2), (-0.3, 0.3), (-0.5, 0.5), (-0.5, 0.5)))
    kept = sum(max(brc_counts(-2.0, *values)) == 1 and max(brc_counts(1.5, *values)) == 2 for values in sets)
    return Finding(kept == len(sets), f"in {kept} of {len(sets)} sets of parameters")
