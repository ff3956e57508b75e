"""Claims on internal clocks (section 2)."""

import torch
from torch import Tensor

import theory_claims
from multistable import dynamics
from multistable.dynamics import Field, Linear
from multistable.layers import ClockedRNN
from multistable_experiments.paper.claims import Finding
from theory_claims import Patch, claim, differing, gaussian, largest, nan_from, within

# --- what breaks the claims -------------------------------------------------------------------------------------------


def two_ticks_more(patch: Patch) -> None:
    plain = ClockedRNN.tick
    patch.setattr(ClockedRNN, "tick", lambda self, h, *args: plain(self, plain(self, h, *args), *args))


def wrong_closed_form(patch: Patch) -> None:
    plain = Linear.iterated
    patch.setattr(Linear, "iterated", staticmethod(lambda n, a: plain(n - 1, a)))


# --- the claims -------------------------------------------------------------------------------------------------------


@claim(
    "clock-of-one",
    "A clock that ticks once per timestep is the plain recurrent unit",
    "sec. 2",
    "states of ClockedRNN with n_clock = 1 against the equation, looped; 50 steps, 64 units",
    broken_by=[two_ticks_more],
)
def test_clock_of_one() -> Finding:
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
    broken_by=[two_ticks_more],
)
def test_clock_cost() -> Finding:
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
    broken_by=[wrong_closed_form, nan_from(ClockedRNN, "scan")],
)
def test_clock_linear() -> Finding:
    field, x, a = dynamics.linear(), gaussian(3, 40, 16), 0.98 * gaussian(16, seed=1).tanh()
    states = ClockedRNN(field, 1, 16, n_clock=7).scan([x, a], None)
    h, apart = torch.zeros(3, 16, dtype=torch.float64), []
    for t in range(40):
        h = theory_claims.settle(field, h, x[:, t], a, ticks=7)
        apart.append((states[:, t] - h).abs())
    worst = largest(apart)
    return Finding(worst <= 1e-12, within(worst, 1e-12))
