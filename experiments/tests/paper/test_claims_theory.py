"""Claims on the unit and its theory hold, and each of them fails when what it is about is broken on purpose."""

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multistable import BMRU, LRU, Hybrid, MinGRU, dynamics, ops, surrogate
from multistable.dynamics import Field, Linear, branches, hysteresis
from multistable.layers import ClockedRNN
from multistable_experiments.paper import theory
from multistable_experiments.paper.claims import CLAIMS, clock, equilibria, exact
from sources import environment

THEORY = {claim.id: claim for claim in CLAIMS if not claim.trained}

Patch = pytest.MonkeyPatch


def fading_scan(patch: Patch) -> None:
    """A state that loses a millionth at every step, in every backend but the loop."""
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
    patch.setattr(bmru, "can_project_and_scan", lambda *_: False)


def fading_gradient(patch: Patch) -> None:
    """The right states, with gradients that lose a hundredth at every step."""
    plain = ops.bmru_scan

    def broken(cand, *args, **options):
        h = plain(cand, *args, **options)
        return h.detach() + 0.99 ** cand.shape[1] * (h - h.detach())

    patch.setattr(ops, "bmru_scan", broken)


def exact_scan_drifts(patch: Patch) -> None:
    plain = hysteresis.hysteresis_scan

    def broken(x, beta, h0=None, **options):
        return plain(x + 0.01 * torch.arange(x.shape[1], dtype=x.dtype)[:, None], beta, h0, **options)

    patch.setattr(hysteresis, "hysteresis_scan", broken)


def exact_scan_forgets(patch: Patch) -> None:
    plain = hysteresis.hysteresis_scan
    patch.setattr(hysteresis, "hysteresis_scan", lambda x, beta, h0=None, **options: plain(x, -beta, h0, **options))


def wrong_beta(patch: Patch) -> None:
    """The sign of beta turned around."""
    plain = dynamics.simplified_brc

    def broken(c: float = 1.0) -> Field:
        field = plain(c)
        return Field(lambda h, x, beta: field(h, x, -beta))

    patch.setattr(dynamics, "simplified_brc", broken)
    patch.setattr(theory, "simplified_brc", broken)


def restless_field(patch: Patch) -> None:
    patch.setattr(dynamics, "simplified_brc", lambda c=1.0: Field(lambda h, x, beta: -h + 0 * x + 0 * beta))


def wrong_brc(patch: Patch) -> None:
    def function(h, u_h, u_a, u_c, w_a, w_c):
        return torch.tanh(u_h + (1 - torch.tanh(u_a + w_a * h)) * h) + 0 * (u_c + w_c)

    patch.setattr(dynamics, "brc", lambda: Field(function))


def two_ticks_more(patch: Patch) -> None:
    plain = ClockedRNN.tick
    patch.setattr(ClockedRNN, "tick", lambda self, h, *args: plain(self, plain(self, h, *args), *args))


def many_ticks_more(patch: Patch) -> None:
    """A clock that is always fast enough."""
    plain = clock.settle
    patch.setattr(equilibria, "settle", lambda *args, ticks: plain(*args, ticks=10 * ticks))


def sloppy_roots(patch: Patch) -> None:
    plain = dynamics.equilibria

    def broken(*args, **options):
        found = plain(*args, **options)
        return replace(found, residual=found.residual + 1e-9)

    patch.setattr(dynamics, "equilibria", broken)


def pairs_of_roots_missed(patch: Patch) -> None:
    """One root of each element only, and a good one."""
    plain = dynamics.equilibria

    def broken(*args, **options):
        found = plain(*args, **options)
        first = {name: getattr(found, name)[..., :1] for name in ("h", "slope", "stable", "residual", "converged")}
        return replace(found, **first, count=torch.ones_like(found.count))

    patch.setattr(dynamics, "equilibria", broken)


def sequential_scan(patch: Patch) -> None:
    def broken(combine, elements, reverse=False):
        steps = [tuple(x[:, t : t + 1] for x in elements) for t in range(elements[0].shape[1])]
        found = steps[:1]
        for step in steps[1:]:
            found.append(combine(found[-1], step))
        return tuple(torch.cat(parts, dim=1) for parts in zip(*found, strict=True))

    patch.setattr(branches, "associative_scan", broken)


def wrong_operator(patch: Patch) -> None:
    """The paper's misprint."""
    from multistable_experiments.paper.claims import scan

    patch.setattr(scan, "then", scan.printed)


def rereading_step(patch: Patch) -> None:
    """A step that costs more each time."""
    plain, calls = BMRU.step, []

    def broken(self, x, state):
        calls.append(1)
        for _ in calls:
            found = plain(self, x, state)
        return found

    patch.setattr(BMRU, "step", broken)


def linear_scan_off(patch: Patch) -> None:
    plain = ops.linear_scan

    def broken(*args, **options):
        h = plain(*args, **options)
        return h if options.get("backend") == "reference" else h + 1e-9

    patch.setattr(ops, "linear_scan", broken)


def smooth_gate(patch: Patch) -> None:
    patch.setattr(surrogate, "heaviside", torch.sigmoid)


def derivative_without_pi(patch: Patch) -> None:
    patch.setattr(surrogate, "derivative", lambda x, alpha_surr: 1 / (1 + (alpha_surr * x) ** 2))


def straight_through(patch: Patch) -> None:
    patch.setattr(surrogate, "derivative", lambda x, alpha_surr: torch.ones_like(x))


def sign_like_heaviside(patch: Patch) -> None:
    plain = surrogate.heaviside
    patch.setattr(surrogate, "sign", lambda x, alpha_surr=1.0: plain(x, alpha_surr))


def eternal_lru(patch: Patch) -> None:
    def ones(self, layer=0, suffix=""):
        N = self.hidden_size
        return torch.cat([torch.ones(N), torch.zeros(N)]).double()

    patch.setattr(LRU, "eigenvalues", ones)


def trajectories_at_rest(patch: Patch) -> None:
    patch.setattr(theory, "trajectories", lambda x, beta, starts, steps: starts.double().expand(steps + 1, -1))


def other_branches(patch: Patch) -> None:
    plain = branches.branch_scan
    patch.setattr(branches, "branch_scan", lambda *args, **options: -plain(*args, **options))


def implicit_gradient_off(patch: Patch) -> None:
    plain = hysteresis.hysteresis_scan

    def broken(*args, **options):
        h = plain(*args, **options)
        return h.detach() + 1.01 * (h - h.detach())

    patch.setattr(hysteresis, "hysteresis_scan", broken)


def fast_exact_unit(patch: Patch) -> None:
    patch.setattr(exact, "HysteresisMRU", BMRU)


def wrong_closed_form(patch: Patch) -> None:
    plain = Linear.iterated
    patch.setattr(Linear, "iterated", staticmethod(lambda n, a: plain(n - 1, a)))


def writes_always(patch: Patch) -> None:
    plain = ops.bmru_scan
    patch.setattr(ops, "bmru_scan", lambda cand, beta, *args, **options: plain(cand, 0 * beta, *args, **options))


def unequal_halves(patch: Patch) -> None:
    patch.setattr(Hybrid, "cells_of", lambda self, layer: (BMRU(4, 256), LRU(4, 256)))


BREAKS: dict[str, Callable[[Patch], None]] = {
    "clock-of-one": two_ticks_more,
    "clock-cost": two_ticks_more,
    "clock-linear": wrong_closed_form,
    "convergence": restless_field,
    "convergent-stationary": exact_scan_drifts,
    "finite-clock": many_ticks_more,
    "transients-fade": trajectories_at_rest,
    "one-equilibrium": wrong_beta,
    "static-layer": wrong_beta,
    "two-equilibria": wrong_beta,
    "memory-region": wrong_beta,
    "basins": wrong_beta,
    "monostable": eternal_lru,
    "bmru-keeps-its-start": fading_layer,
    "exact-unit-in-parallel": exact_scan_forgets,
    "any-dynamics": other_branches,
    "newton": sloppy_roots,
    "implicit-gradient": implicit_gradient_off,
    "iterating-is-slower": fast_exact_unit,
    "brc-hysteresis": wrong_brc,
    "brc-deformed": wrong_brc,
    "beta-decides": wrong_beta,
    "boundary-slope": wrong_beta,
    "approximation-keeps-quality": writes_always,
    "simplification": fading_scan,
    "writes-outside-only": fading_scan,
    "gated-form": fading_scan,
    "steps-are-flat": smooth_gate,
    "surrogate-derivative": derivative_without_pi,
    "surrogate-width": straight_through,
    "surrogate-of-sign": sign_like_heaviside,
    "two-values": fading_scan,
    "stationary": fading_scan,
    "held-bit": fading_layer,
    "gradient-one-or-zero": fading_gradient,
    "gradient-and-length": fading_gradient,
    "operator": wrong_operator,
    "bmru-is-linear-recurrence": fading_scan,
    "scan-is-loop": fading_scan,
    "linear-scan-is-loop": linear_scan_off,
    "depth": sequential_scan,
    "generation-cost": rereading_step,
    "hybrid-is-parallel": fading_layer,
    "hybrid-has-both": eternal_lru,
    "hybrid-size": unequal_halves,
}


def test_every_theory_claim_is_broken_below():
    assert set(BREAKS) == set(THEORY)


@pytest.mark.parametrize("id", THEORY)
def test_the_claim_holds(id):
    measured = THEORY[id].measure([])
    assert measured.verdict == "held", measured.finding.measured


@pytest.mark.parametrize("id", THEORY)
def test_the_claim_fails_when_its_subject_is_broken(id, monkeypatch):
    BREAKS[id](monkeypatch)
    measured = THEORY[id].measure([])
    assert measured.verdict == "not held", measured.finding.measured


def nan_behind(owner: Any, name: str) -> Callable[[Patch], None]:
    """What a function returns, all of it NaN."""

    def patch_it(patch: Patch) -> None:
        plain = getattr(owner, name)
        patch.setattr(owner, name, lambda *args, **options: plain(*args, **options) * math.nan)

    return patch_it


def nan_field(patch: Patch) -> None:
    """A field that is right where its equilibria are looked for, and NaN where it is iterated."""
    patch.setattr(clock, "settle", lambda field, h, *args, ticks: h * math.nan)
    patch.setattr(equilibria, "settle", lambda field, h, *args, ticks: h * math.nan)


def nan_states(patch: Patch) -> None:
    plain = MinGRU.forward
    patch.setattr(MinGRU, "forward", lambda self, x, h0: tuple(math.nan * found for found in plain(self, x, h0)))


def nan_residuals(patch: Patch) -> None:
    plain = dynamics.equilibria

    def broken(*args, **options):
        found = plain(*args, **options)
        return replace(found, residual=found.residual * math.nan)

    patch.setattr(dynamics, "equilibria", broken)


NAN: dict[str, Callable[[Patch], None]] = {
    "clock-linear": nan_behind(ClockedRNN, "scan"),
    "convergence": nan_field,
    "transients-fade": nan_behind(theory, "trajectories"),
    "basins": nan_field,
    "monostable": nan_states,
    "exact-unit-in-parallel": nan_behind(hysteresis, "hysteresis_scan"),
    "any-dynamics": nan_behind(branches, "branch_scan"),
    "newton": nan_residuals,
    "surrogate-derivative": nan_behind(surrogate, "derivative"),
    "linear-scan-is-loop": nan_behind(ops, "linear_scan"),
}


@pytest.mark.parametrize("id", NAN)
def test_the_claim_fails_where_nan_comes_out(id, monkeypatch):
    NAN[id](monkeypatch)
    measured = THEORY[id].measure([])
    assert measured.verdict == "not held", measured.finding.measured


def test_a_root_finder_that_misses_roots_is_found_out(monkeypatch):
    pairs_of_roots_missed(monkeypatch)
    measured = THEORY["newton"].measure([])
    assert measured.verdict == "not held", measured.finding.measured


def test_the_scan_of_the_operator_must_give_the_products_too(monkeypatch):
    """Theorem 2 says so of both components."""
    plain = branches.associative_scan

    def broken(combine, elements, reverse=False):
        first, *rest = plain(combine, elements, reverse)
        return first + 1, *rest

    monkeypatch.setattr(branches, "associative_scan", broken)
    assert THEORY["operator"].measure([]).verdict == "not held"


@pytest.mark.parametrize(("cell", "place"), [("BMRU", 0), ("LRU", 0), ("LRU", 1), ("LRU", 3)])
def test_an_error_that_is_nan_is_below_no_bound(cell, place, monkeypatch):
    errors = {"BMRU": [0.001] * 4, "LRU": [0.001, 0.01, 0.9, 1.0]}
    monkeypatch.setattr(theory, "stationary_memory", lambda lengths: SimpleNamespace(errors=errors))
    assert THEORY["held-bit"].measure([]).verdict == "held"
    errors[cell][place] = math.nan
    assert THEORY["held-bit"].measure([]).verdict == "not held"


@pytest.mark.parametrize("id", ["held-bit", "implicit-gradient", "monostable", "depth"])
def test_a_measurement_says_the_same_twice(id):
    assert THEORY[id].measure([]) == THEORY[id].measure([])


def test_ids_are_unique_and_every_claim_says_where_and_how():
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert claim.where.startswith(("sec.", "app.", "abstract"))
        assert claim.how
        assert not claim.sentence.endswith(".")


def test_claims_and_report_need_no_typer():
    code = (
        "import sys; sys.modules['typer'] = None;"
        "import multistable_experiments.paper.claims.table, multistable_experiments.paper.report;"
        "print(len(multistable_experiments.paper.claims.CLAIMS))"
    )
    env = environment()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout.strip() == str(len(CLAIMS)), done.stderr
