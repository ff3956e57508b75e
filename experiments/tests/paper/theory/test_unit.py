"""Claims on the BMRU itself (section 4): what it approximates, its states, its gradients."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from multistable import dynamics, ops, surrogate
from multistable.dynamics import hysteresis
from multistable_experiments.paper import simulations
from multistable_experiments.paper.claims import Finding
from theory_claims import (
    Patch,
    claim,
    differing,
    fading_layer,
    fading_scan,
    gaussian,
    largest,
    nan_from,
    random_input,
    within,
    wrong_beta,
)

# --- what breaks the claims -------------------------------------------------------------------------------------------


def writes_always(patch: Patch) -> None:
    plain = ops.bmru_scan
    patch.setattr(ops, "bmru_scan", lambda cand, beta, *args, **options: plain(cand, 0 * beta, *args, **options))


def fading_gradient(patch: Patch) -> None:
    """Correct states with gradients that lose a hundredth at every step."""
    plain = ops.bmru_scan

    def broken(cand, *args, **options):
        h = plain(cand, *args, **options)
        return h.detach() + 0.99 ** cand.shape[1] * (h - h.detach())

    patch.setattr(ops, "bmru_scan", broken)


def smooth_gate(patch: Patch) -> None:
    patch.setattr(surrogate, "heaviside", torch.sigmoid)


def derivative_without_pi(patch: Patch) -> None:
    patch.setattr(surrogate, "derivative", lambda x, alpha_surr: 1 / (1 + (alpha_surr * x) ** 2))


def straight_through(patch: Patch) -> None:
    patch.setattr(surrogate, "derivative", lambda x, alpha_surr: torch.ones_like(x))


def sign_like_heaviside(patch: Patch) -> None:
    plain = surrogate.heaviside
    patch.setattr(surrogate, "sign", lambda x, alpha_surr=1.0: plain(x, alpha_surr))


# --- the claims -------------------------------------------------------------------------------------------------------

POINTS = torch.arange(-300, 301).double() / 100
"""Points at which surrogates are evaluated: -3 to 3, including 0."""


# --- section 4.1: the approximation -----------------------------------------------------------------------------------


@claim(
    "beta-decides",
    "For beta > 0 the implicit function is multistable, for beta <= 0 it has no memory",
    "sec. 4.1",
    "stable equilibria at 201 inputs in [-2, 2] for 81 beta in [-2, 2]",
    broken_by=[wrong_beta],
)
def test_beta_decides() -> Finding:
    beta, x = torch.arange(-40, 41).double() / 20, torch.arange(-100, 101).double() / 50
    stable = dynamics.equilibria(dynamics.simplified_brc(0.1), x, beta[:, None], n_grid=256).stable.sum(-1)
    most = stable.amax(dim=1)  # [81]
    right = int((most == torch.where(beta > 0, 2, 1)).sum())
    return Finding(right == 81, f"as said for {right} of 81 values of beta")


@claim(
    "boundary-slope",
    "At the origin the unstable branch has the slope -1 / beta",
    "sec. 4.1",
    "unstable roots at x = +-1e-4 for beta = 0.5, 1, 1.5, 3: within 1e-4",
    broken_by=[wrong_beta],
)
def test_boundary_slope() -> Finding:
    beta = torch.tensor([0.5, 1.0, 1.5, 3.0]).double()
    found = dynamics.equilibria(dynamics.simplified_brc(), torch.tensor([-1e-4, 1e-4]).double(), beta[:, None])
    if found.h.shape[-1] != 3:
        return Finding(False, f"{found.h.shape[-1]} equilibria instead of 3")
    worst = float((found.h[..., 1].diff()[:, 0] / 2e-4 + 1 / beta).abs().max())
    return Finding(worst <= 1e-4, within(worst, 1e-4))


@claim(
    "approximation-keeps-quality",
    "The approximation keeps the qualities of the implicit function: a large input sets the state whatever it was, "
    "a small one leaves the choice to the state before",
    "sec. 4.1, fig. 3",
    "signs of the exact and the approximate state from both branches, beta = 1.5, 401 inputs in [-3, 3]",
    broken_by=[writes_always],
)
def test_approximation_keeps_quality() -> Finding:
    x, beta = torch.linspace(-3, 3, 401).double().reshape(1, 1, -1), torch.full((1, 1, 401), 1.5).double()
    x_c, signs = float(hysteresis.folds(beta)[1].max()), {}
    for start in (-1.0, 1.0):
        h0 = torch.full((1, 401), start).double()
        exact = hysteresis.hysteresis_scan(x, beta, h0)
        flat = ops.bmru_scan(x, beta, torch.ones(401).double(), h0)
        signs[start] = exact.sign(), flat.sign()
    between = (x.abs() >= x_c) & (x.abs() < 1.5)  # where their folds differ
    unequal = sum(int(((exact != flat) & ~between).sum()) for exact, flat in signs.values())
    (exact_low, flat_low), (exact_high, flat_high) = signs[-1.0], signs[1.0]
    free = int(((flat_low != flat_high) & (x.abs() >= 1.5)).sum() + ((flat_low == flat_high) & (x.abs() < 1.5)).sum())
    free += int(((exact_low == exact_high) & (x.abs() < x_c)).sum())
    return Finding(
        unequal == free == 0,
        f"{unequal} signs differ, {free} exceptions",
        f"between x_c = {x_c:.3f} and beta = 1.5 the exact unit is set and the approximation keeps: the regions differ",
    )


@claim(
    "simplification",
    "On a branch, the approximation with its linear boundary keeps the state inside the bistable region",
    "sec. 4.1, eq. 9",
    "states of eq. 8 against those of eq. 9, alpha = 1, 8 x 60 steps of 32 units",
    broken_by=[fading_scan],
)
def test_simplification() -> Finding:
    cand, beta, _, h0 = random_input()
    wrong = {}
    for alpha in (1.0, 0.5):
        h, wrong[alpha] = alpha * h0.sign(), 0
        kept = ops.bmru_scan(cand, beta, torch.full((32,), alpha).double(), h)
        for t in range(cand.shape[1]):
            x, b = cand[:, t], beta[:, t].abs()
            h = alpha * surrogate.sign(torch.where(x.abs() >= b, x, h + x / b))
            wrong[alpha] += differing(h, kept[:, t])
    share = wrong[0.5] / cand.numel()
    return Finding(
        wrong[1.0] == 0,
        f"{wrong[1.0]:,} of {cand.numel():,} states differ",
        f"it needs |alpha| >= 1: with alpha = 0.5, {share:.0%} of the states differ",
    )


@claim(
    "writes-outside-only",
    "The state changes only where the input leaves the bistable region",
    "sec. 4.1, fig. 4",
    "changes of the state at steps with |candidate| < beta; 8 x 60 steps of 32 units",
    broken_by=[fading_scan],
)
def test_writes_outside_only() -> Finding:
    cand, beta, alpha, h0 = random_input()
    h = ops.bmru_scan(cand, beta, alpha, h0)
    before = torch.cat([h0[:, None], h[:, :-1]], dim=1)
    inside = cand.abs() < beta.abs()
    wrong, changed = int(((h != before) & inside).sum()), int((h != before).sum())
    return Finding(wrong == 0 and changed > 0, f"{wrong} of {changed:,} changes are inside the region")


# --- section 4.2: the unit that learns --------------------------------------------------------------------------------


@claim(
    "gated-form",
    "The unit is a gated one: h = z S(cand) alpha + (1 - z) h_prev with z = H(|cand| - beta)",
    "sec. 4.2",
    "states of the scan against this equation with its products, looped",
    broken_by=[fading_scan],
)
def test_gated_form() -> Finding:
    cand, beta, alpha, h0 = random_input()
    states, h, wrong = ops.bmru_scan(cand, beta, alpha, h0), h0, 0
    for t in range(cand.shape[1]):
        z = surrogate.heaviside(cand[:, t].abs() - beta[:, t].abs())
        h = z * surrogate.sign(cand[:, t]) * alpha + (1 - z) * h
        wrong += differing(h, states[:, t])
    return Finding(wrong == 0, f"{wrong:,} of {states.numel():,} states differ")


@claim(
    "steps-are-flat",
    "The gate and the sign are steps, whose true gradient is 0 everywhere but at 0",
    "sec. 4.2",
    "differences of H and S over a width of 0.002 around 600 points of [-3, 3], 0 left out",
    broken_by=[smooth_gate],
)
def test_steps_are_flat() -> Finding:
    x = POINTS[POINTS != 0]
    wrong = sum(differing(step(x - 0.001), step(x + 0.001)) for step in (surrogate.heaviside, surrogate.sign))
    return Finding(wrong == 0, f"{wrong} of {2 * len(x):,} differences are not 0")


@claim(
    "surrogate-derivative",
    "The surrogate 1 / (1 + (alpha_surr pi x)^2) is the derivative of atan(alpha_surr pi x) / (pi alpha_surr) + 1/2",
    "sec. 4.2, eq. 12, fig. 5",
    "gradient that the step receives against autograd of that function, alpha_surr = 0.5, 1, 3: within 1e-12",
    broken_by=[derivative_without_pi, nan_from(surrogate, "derivative")],
)
def test_surrogate_derivative() -> Finding:
    apart = []
    for alpha_surr in (0.5, 1.0, 3.0):
        x = POINTS.clone().requires_grad_()
        smooth = torch.atan(alpha_surr * torch.pi * x) / (torch.pi * alpha_surr) + 0.5
        (expected,) = torch.autograd.grad(smooth.sum(), x)
        apart.append((step_gradient(x, alpha_surr) - expected).abs())
    worst = largest(apart)
    return Finding(worst <= 1e-12, within(worst, 1e-12))


@claim(
    "surrogate-width",
    "The surrogate peaks at 0, more narrowly for a larger alpha_surr, and is 1 everywhere for alpha_surr = 0",
    "sec. 4.2, fig. 5",
    "highest point, and number of points of [-3, 3] above one half, for alpha_surr = 0, 0.5, 1, 3",
    broken_by=[straight_through],
)
def test_surrogate_width() -> Finding:
    x = POINTS.clone().requires_grad_()
    slopes = [step_gradient(x, alpha_surr) for alpha_surr in (0.0, 0.5, 1.0, 3.0)]
    widths = [int((slope > 0.5).sum()) for slope in slopes]
    peaks = all(int(slope.argmax()) == 300 and float(slope[300].detach()) == 1.0 for slope in slopes[1:])
    ok = peaks and bool((slopes[0] == 1).all()) and sorted(set(widths), reverse=True) == widths
    return Finding(ok, f"widths {', '.join(map(str, widths))} of 601 points")


@claim(
    "surrogate-of-sign",
    "The surrogate of the sign function is twice that of the Heaviside function",
    "sec. 4.2",
    "gradients of both at 601 points",
    broken_by=[sign_like_heaviside],
)
def test_surrogate_of_sign() -> Finding:
    x = POINTS.clone().requires_grad_()
    (of_sign,) = torch.autograd.grad(surrogate.sign(x, 1.0).sum(), x)
    wrong = differing(of_sign, 2 * step_gradient(x, 1.0))
    return Finding(wrong == 0, f"{wrong} of 601 differ")


def step_gradient(x: Tensor, alpha_surr: float) -> Tensor:
    return torch.autograd.grad(surrogate.heaviside(x, alpha_surr).sum(), x)[0]


# --- section 4.3: properties ------------------------------------------------------------------------------------------


@claim(
    "two-values",
    "A unit takes two values only, +alpha and -alpha",
    "sec. 4.1, sec. 5.4",
    "states elsewhere, in 8 x 60 steps of 32 units that start on a branch",
    broken_by=[fading_scan],
)
def test_two_values() -> Finding:
    cand, beta, alpha, h0 = random_input()
    h = ops.bmru_scan(cand, beta, alpha, h0)
    wrong = int((h.abs() != alpha).sum())
    return Finding(
        wrong == 0, f"{wrong:,} of {h.numel():,} states are elsewhere", "h_0 = 0 is a third value until the first write"
    )


@claim(
    "stationary",
    "Repeating an input any number of times does not change the state",
    "sec. 4.3, stationarity",
    "states when each of 60 inputs comes 2, 7 and 100 times in a row, against the states of one each",
    broken_by=[fading_scan],
)
def test_stationary() -> Finding:
    cand, beta, alpha, h0 = random_input()
    once, wrong, count = ops.bmru_scan(cand, beta, alpha, h0), 0, 0
    for k in (2, 7, 100):
        many = ops.bmru_scan(cand.repeat_interleave(k, 1), beta.repeat_interleave(k, 1), alpha, h0)
        wrong += differing(many, once.repeat_interleave(k, 1))
        count += many.numel()
    return Finding(wrong == 0, f"{wrong:,} of {count:,} states differ")


@pytest.mark.extra
@claim(
    "held-bit",
    "One unit of each kind learns to hold a bit; the BMRU's error does not depend on the length, the LRU's grows",
    "sec. 4.3, fig. 6",
    "trained on the last of 50 steps (error below 0.05), tested at 10 to 100,000: BMRU the same to the last bit, LRU "
    "over 0.9 from 1,000 on",
    broken_by=[fading_layer],
)
def test_held_bit() -> Finding:
    return held_bit()


def held_bit() -> Finding:
    errors = simulations.hold_one_bit((10, 50, 1000, 100_000)).errors
    bmru, lru = errors["BMRU"], errors["LRU"]
    learned = all(error < 0.05 for error in (bmru[1], lru[1]))
    ok = learned and len(set(bmru)) == 1 and all(error > 0.9 for error in lru[2:])
    text = "BMRU: one error for all lengths; LRU: below 0.05 at 50 steps, over 0.9 at 1,000 and 100,000"
    return Finding(ok, text if ok else f"BMRU {bmru}, LRU {lru}")


@pytest.mark.parametrize(("layer", "place"), [("BMRU", 0), ("LRU", 1), ("LRU", 2), ("LRU", 3)])
def test_held_bit_fails_if_an_error_is_nan(layer, place, monkeypatch):
    errors = {"BMRU": [0.001] * 4, "LRU": [5.0, 0.01, 0.95, 1.0]}
    monkeypatch.setattr(simulations, "hold_one_bit", lambda lengths: SimpleNamespace(errors=errors))
    assert held_bit().held
    errors[layer][place] = math.nan
    assert not held_bit().held


@claim(
    "gradient-one-or-zero",
    "The derivative of a state by the one before is 1 where it is kept and 0 where it is written",
    "sec. 4.3, gradients",
    "gradient of one step by its h_0, 8 x 60 steps of 32 units",
    broken_by=[fading_gradient],
)
def test_gradient_one_or_zero() -> Finding:
    cand, beta, alpha, _ = random_input()
    cand, beta = cand.reshape(-1, 1, 32), beta.reshape(-1, 1, 32)
    h0 = gaussian(len(cand), 32, seed=9).requires_grad_()
    (grad,) = torch.autograd.grad(ops.bmru_scan(cand, beta, alpha, h0).sum(), h0)
    wrong = differing(grad, (cand.abs() < beta.abs())[:, 0].double())
    return Finding(wrong == 0, f"{wrong:,} of {grad.numel():,} differ from 1 - z")


@claim(
    "gradient-and-length",
    "The gradient of the last state by the first candidate and threshold does not depend on the length, "
    "and is 0 if a later step writes",
    "sec. 4.3, fig. 7",
    "lengths 2 to 10,000: the same to the last bit",
    broken_by=[fading_gradient],
)
def test_gradient_and_length() -> Finding:
    lengths = (2, 5, 30, 1000, 10_000)
    kept = [set(values) for values in simulations.first_gradients(lengths, writes_later=False)]
    lost = [set(values) for values in simulations.first_gradients(lengths, writes_later=True)]
    ok = all(len(values) == 1 and 0.0 not in values for values in kept) and lost == [{0.0}, {0.0}]
    different = max(len(values) for values in kept)
    return Finding(ok, f"{different} value at {len(lengths)} lengths; {'0' if ok else lost} after a later write")
