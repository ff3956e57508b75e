"""Claims on equilibria, fading and persistent memory (section 3)."""

import math

import torch
from torch import Tensor

import theory_claims
from multistable import BMRU, LRU, MinGRU, dynamics
from multistable.dynamics import Field, hysteresis
from multistable_experiments.paper import simulations
from multistable_experiments.paper.claims import Finding
from theory_claims import (
    Patch,
    claim,
    differing,
    eternal_lru,
    fading_layer,
    gaussian,
    largest,
    listed,
    nan_from,
    seeded,
    within,
    wrong_beta,
)

# --- what breaks the claims -------------------------------------------------------------------------------------------


def restless_field(patch: Patch) -> None:
    patch.setattr(dynamics, "simplified_brc", lambda c=1.0: Field(lambda h, x, beta: -h + 0 * x + 0 * beta))


def exact_scan_drifts(patch: Patch) -> None:
    plain = hysteresis.hysteresis_scan

    def broken(x, beta, h0=None, **options):
        return plain(x + 0.01 * torch.arange(x.shape[1], dtype=x.dtype)[:, None], beta, h0, **options)

    patch.setattr(hysteresis, "hysteresis_scan", broken)


def many_ticks_more(patch: Patch) -> None:
    """Run at least 10,000 ticks, so that even a clock of few ticks converges."""
    plain = theory_claims.settle
    patch.setattr(theory_claims, "settle", lambda *args, ticks: plain(*args, ticks=max(ticks, 10_000)))


def trajectories_at_rest(patch: Patch) -> None:
    patch.setattr(simulations, "trajectories", lambda x, beta, starts, steps: starts.double().expand(steps + 1, -1))


def nan_field(patch: Patch) -> None:
    """Make the field NaN where it is iterated, but not where its equilibria are searched."""
    patch.setattr(theory_claims, "settle", lambda field, h, *args, ticks: h * math.nan)


def nan_states(patch: Patch) -> None:
    plain = MinGRU.forward
    patch.setattr(MinGRU, "forward", lambda self, x, h0: tuple(math.nan * found for found in plain(self, x, h0)))


# --- the claims -------------------------------------------------------------------------------------------------------


@claim(
    "convergence",
    "From every state and at every input, the example unit comes to rest",
    "sec. 3",
    "81 inputs in [-2, 2] x 21 starts x beta = -1.5, 1.5: steps below 1e-12 after 5,000 ticks (c = 0.1)",
    broken_by=[restless_field, nan_field],
)
def test_convergence() -> Finding:
    x, start = torch.linspace(-2, 2, 81).double()[:, None], torch.linspace(-1, 1, 21).double()
    field, moving, count = dynamics.simplified_brc(0.1), 0, 0
    for beta in (-1.5, 1.5):
        args = x, torch.tensor(beta, dtype=torch.float64)
        h = theory_claims.settle(field, start.expand(81, 21), *args, ticks=5000)
        moving += int((~((field(h, *args) - h).abs() < 1e-12)).sum())
        count += h.numel()
    return Finding(moving == 0, f"{count - moving:,} of {count:,} at rest")


@claim(
    "convergent-stationary",
    "The output of a unit that converges within each timestep stays, as long as the input does",
    "sec. 3",
    "states of the exact unit when each of 40 inputs comes 7 times in a row, against the states of one each",
    broken_by=[exact_scan_drifts],
)
def test_convergent_stationary() -> Finding:
    x, beta, h0 = 2 * gaussian(8, 40, 32), gaussian(8, 40, 32, seed=1), gaussian(8, 32, seed=2).tanh()
    once = hysteresis.hysteresis_scan(x, beta, h0)
    many = hysteresis.hysteresis_scan(x.repeat_interleave(7, 1), beta.repeat_interleave(7, 1), h0)
    wrong = differing(many, once.repeat_interleave(7, 1))
    return Finding(wrong == 0, f"{wrong:,} of {many.numel():,} states differ")


@claim(
    "finite-clock",
    "No finite number of ticks guarantees convergence",
    "sec. 3",
    "beta = 1.5, c = 0.01, N = 100, 1,000 and 10,000 ticks from -1 at x_c + 1,000 / N^2, just beyond the fold: "
    "the limit is over 0.9, the state still below -0.5",
    broken_by=[many_ticks_more],
)
def test_finite_clock() -> Finding:
    beta, lower = torch.tensor(1.5).double(), torch.tensor(-1.0).double()
    ends = {}
    for ticks in (100, 1_000, 10_000):
        x = hysteresis.folds(beta)[1] + 1000 / ticks**2
        limit = hysteresis.hysteresis_scan(x.reshape(1, 1, 1), beta.reshape(1, 1, 1), lower.reshape(1, 1))
        ends[ticks] = (
            float(theory_claims.settle(dynamics.simplified_brc(0.01), lower, x, beta, ticks=ticks)),
            float(limit),
        )
    ok = all(state < -0.5 and limit > 0.9 for state, limit in ends.values())
    text = ", ".join(f"{state:.2f} after {ticks:,}" for ticks, (state, _) in ends.items())
    return Finding(ok, f"{text}; limits {', '.join(f'{limit:.2f}' for _, limit in ends.values())}")


@claim(
    "transients-fade",
    "Trajectories from different states are distinct at first, and meet at a steady state",
    "sec. 3, fig. 1",
    "10 starts, c = 0.01, x = 0: neighbours over 1e-3 apart after 100 ticks, those with one end below it after 5,000",
    broken_by=[trajectories_at_rest, nan_from(simulations, "trajectories")],
)
def test_transients_fade() -> Finding:
    early, late = [], []
    for beta in (-1.5, 1.5):
        states = simulations.trajectories(0.0, beta, torch.linspace(-1, 1, 10), 5000)
        early.append(states[100].diff().abs())
        groups = [states[-1]] if beta < 0 else [states[-1][:5], states[-1][5:]]
        late += [group.max() - group.min() for group in groups]
    least, most = -largest(-gaps for gaps in early), largest(late)
    ok = least > 1e-3 > most
    return Finding(ok, "distinct at 100 ticks, together at 5,000" if ok else f"gaps {least:.1g}, then {most:.1g}")


@claim(
    "one-equilibrium",
    "At beta = -1.5 all states end at the same point, whatever the input: fading memory only",
    "sec. 3, figs. 1 and 2 A",
    "stable equilibria at 401 inputs in [-2, 2]; ends of 10 trajectories at x = 0 within 1e-10",
    broken_by=[wrong_beta],
)
def test_one_equilibrium() -> Finding:
    counts = stable_counts(-1.5)
    ends = simulations.trajectories(0.0, -1.5, torch.linspace(-1, 1, 10), 5000)[-1]
    ok = set(counts) == {1} and float(ends.max() - ends.min()) < 1e-10
    return Finding(ok, f"{listed(counts)} stable at each input" if ok else f"{listed(counts)} stable equilibria")


@claim(
    "static-layer",
    "At beta = -1.5 the convergent unit is a static function of its input",
    "sec. 3, fig. 2 A",
    "32 units, 40 random inputs, 500 ticks each (c = 0.1), from the state before and from random ones: within 1e-10",
    broken_by=[wrong_beta],
)
def test_static_layer() -> Finding:
    x, beta, others = 2 * gaussian(40, 32), torch.tensor(-1.5).double(), gaussian(40, 32, seed=1).tanh()
    field, h, apart = dynamics.simplified_brc(0.1), gaussian(32, seed=2).tanh(), []
    for t in range(40):
        h = theory_claims.settle(field, h, x[t], beta, ticks=500)
        apart.append((h - theory_claims.settle(field, others[t], x[t], beta, ticks=500)).abs())
    worst = largest(apart)
    return Finding(worst <= 1e-10, within(worst, 1e-10))


@claim(
    "two-equilibria",
    "At beta = 1.5 positive states end near +1 and negative ones near -1",
    "sec. 3, figs. 1 and 2 B",
    "10 starts at x = 0, 5,000 ticks: sign kept, end within 0.05 of +-1; two equilibria are stable at x = 0",
    broken_by=[wrong_beta],
)
def test_two_equilibria() -> Finding:
    starts = torch.linspace(-1, 1, 10)
    ends = simulations.trajectories(0.0, 1.5, starts, 5000)[-1]
    wrong = int((ends.sign() != starts.sign()).sum())
    far = float((ends.abs() - 1).abs().max())
    ok = wrong == 0 and far < 0.05 and stable_counts(1.5)[200] == 2
    return Finding(ok, f"ends at +-{float(ends.abs().mean()):.3f}, {wrong} of 10 signs lost")


@claim(
    "memory-region",
    "At beta = 1.5 there is a region of inputs with two solutions, and one outside of it",
    "sec. 3, fig. 2 B",
    "stable equilibria at 401 inputs in [-2, 2]: 1, then 2, then 1 of them as the input grows",
    broken_by=[wrong_beta],
)
def test_memory_region() -> Finding:
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
    broken_by=[wrong_beta, nan_field],
)
def test_basins() -> Finding:
    x, beta, field = torch.linspace(-0.9, 0.9, 37).double(), torch.tensor(1.5).double(), dynamics.simplified_brc(0.1)
    found = dynamics.equilibria(field, x, beta)
    if found.h.shape[-1] != 3:
        return Finding(False, f"{found.h.shape[-1]} equilibria instead of 3")
    low, middle, high = found.h.unbind(-1)
    wrong = int((~(found.slope[:, [0, 2]] < 1)).sum() + (~(found.slope[:, 1] > 1)).sum())
    for side, target in ((-0.01, low), (0.01, high)):
        end = theory_claims.settle(field, middle + side, x, beta, ticks=5000)
        wrong += int((~((end - target).abs() <= 1e-6)).sum())
    return Finding(wrong == 0, f"{wrong} exceptions in {5 * len(x)}")


@claim(
    "monostable",
    "Linear recurrences and gates that ignore the state are monostable: LRU and minGRU forget where they started",
    "sec. 3",
    "16 random h_0, the same random input: after 5,000 steps the largest distance is below 1e-9 of the first one",
    broken_by=[eternal_lru, nan_states],
)
def test_monostable() -> Finding:
    left = {}
    with seeded(), torch.no_grad():
        for layer in (LRU, MinGRU):
            rnn = layer(4, 32, batch_first=True, dtype=torch.float64)
            h0 = gaussian(1, 16, rnn.state_size)
            last = rnn(gaussian(1, 5000, 4, seed=1).expand(16, -1, -1), h0)[1]
            left[layer.__name__] = float(spread(last) / spread(h0))
    ok = all(value < 1e-9 for value in left.values())
    return Finding(ok, "both below 1e-9" if ok else ", ".join(f"{name} {value:.1g}" for name, value in left.items()))


@claim(
    "bmru-keeps-its-start",
    "The BMRU, whose gate can be exactly 0, does not forget where it started",
    "sec. 3, sec. 6",
    "16 random h_0, input inside the bistable region for 5,000 steps: states that differ from h_0",
    broken_by=[fading_layer],
)
def test_bmru_keeps_its_start() -> Finding:
    with seeded():
        rnn = BMRU(4, 32, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        rnn.get_parameter("bias_ih_l0")[32:] = 100.0  # no candidate reaches these thresholds
        h0 = gaussian(1, 16, 32)
        last = rnn(gaussian(1, 5000, 4, seed=1).expand(16, -1, -1), h0)[1]
    wrong = differing(last, h0)
    return Finding(wrong == 0, f"{wrong} of {h0.numel()} states differ")


def stable_counts(beta: float) -> list[int]:
    """Stable equilibria of the example unit at 401 inputs from -2 to 2."""
    diagram = dynamics.bifurcation_diagram(dynamics.simplified_brc(0.1), torch.linspace(-2, 2, 401), beta)
    return diagram.stable.sum(dim=1).tolist()


def spread(h: Tensor) -> Tensor:
    """The largest distance between the states of two sequences, ``h [1, B, S]``."""
    return (h[0].amax(dim=0) - h[0].amin(dim=0)).max()
