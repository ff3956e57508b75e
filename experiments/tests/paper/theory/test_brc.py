"""Claims on the bistable recurrent cell (appendix A)."""

import itertools

import torch

from multistable import dynamics
from multistable.dynamics import Field
from multistable_experiments.paper.claims import Finding
from theory_claims import Patch, claim, listed

# --- what breaks the claims -------------------------------------------------------------------------------------------


def wrong_brc(patch: Patch) -> None:
    def function(h, u_h, u_a, u_c, w_a, w_c):
        return torch.tanh(u_h + (1 - torch.tanh(u_a + w_a * h)) * h) + 0 * (u_c + w_c)

    patch.setattr(dynamics, "brc", lambda: Field(function))


# --- the claims -------------------------------------------------------------------------------------------------------


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
    broken_by=[wrong_brc],
)
def test_brc_hysteresis() -> Finding:
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
    broken_by=[wrong_brc],
)
def test_brc_deformed() -> Finding:
    sets = list(itertools.product((0.5, -2), (-0.3, 0.3), (-0.5, 0.5), (-0.5, 0.5)))
    kept = sum(max(brc_counts(-2.0, *values)) == 1 and max(brc_counts(1.5, *values)) == 2 for values in sets)
    return Finding(kept == len(sets), f"in {kept} of {len(sets)} sets of parameters")
