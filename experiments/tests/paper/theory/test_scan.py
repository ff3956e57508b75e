"""Claims on parallel scans and on cost (sections 1, 4.3, 5.3, appendix B)."""

import math

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import parallel_scan
from multistable import BMRU, LRU, Hybrid, ops
from multistable_experiments.paper.claims import Finding
from theory_claims import (
    Patch,
    claim,
    differing,
    eternal_lru,
    fading_layer,
    fading_scan,
    gaussian,
    largest,
    nan_from,
    random_input,
    seeded,
    within,
)

# --- what breaks the claims -------------------------------------------------------------------------------------------


def wrong_operator(patch: Patch) -> None:
    """The paper's misprint."""
    patch.setitem(globals(), "then", printed)


def wrong_products(patch: Patch) -> None:
    """Wrong products with correct states: theorem 2 is about both components."""
    plain = parallel_scan.associative_scan

    def broken(combine, elements):
        first, *rest = plain(combine, elements)
        return first + 1, *rest

    patch.setattr(parallel_scan, "associative_scan", broken)


def linear_scan_off(patch: Patch) -> None:
    plain = ops.linear_scan

    def broken(*args, **options):
        h = plain(*args, **options)
        return h if options.get("backend") == "reference" else h + 1e-9

    patch.setattr(ops, "linear_scan", broken)


def sequential_scan(patch: Patch) -> None:
    """Correct states, with as many operator calls as a loop."""
    plain = parallel_scan.associative_scan

    def broken(combine, elements):
        first = tuple(x[0, 0] for x in elements)
        for _ in range(elements[0].shape[1] - 1):
            combine(first, first)
        return plain(combine, elements)

    patch.setattr(parallel_scan, "associative_scan", broken)


def rereading_step(patch: Patch) -> None:
    """Make each step cost more than the last."""
    plain, calls = BMRU.step, []

    def broken(self, x, state):
        calls.append(1)
        for _ in calls:
            found = plain(self, x, state)
        return found

    patch.setattr(BMRU, "step", broken)


def unequal_halves(patch: Patch) -> None:
    patch.setattr(Hybrid, "cells_of", lambda self, layer: (BMRU(4, 256), LRU(4, 256)))


# --- the claims -------------------------------------------------------------------------------------------------------

Pair = tuple[Tensor, Tensor]


def then(first: Pair, second: Pair) -> Pair:
    """Two steps ``[a, b]`` of a linear recurrence composed into one."""
    return first[0] * second[0], second[0] * first[1] + second[1]


def printed(first: Pair, second: Pair) -> Pair:
    """The operator as printed in the paper: the last term is the coefficient instead of the input."""
    return first[0] * second[0], second[0] * first[1] + second[0]


def integers(*shape: int, seed: int) -> Tensor:
    """Integers: their sums and products are exact."""
    return (3 * gaussian(*shape, seed=seed)).round()


@claim(
    "operator",
    "Steps of a first-order linear recurrence compose by an associative operator, and its scan gives the states",
    "app. B, theorem 2",
    "(xy)z against x(yz), and scans of 40 steps against products and states of the loop, in whole numbers: exact",
    broken_by=[wrong_operator, wrong_products],
)
def test_operator() -> Finding:
    x, y, z = ((integers(1000, seed=i), integers(1000, seed=i + 10)) for i in range(3))
    wrong = unequal(then(then(x, y), z), then(x, then(y, z)))
    a, b = integers(4, 40, 16, seed=4).sign(), integers(4, 40, 16, seed=5)
    products, states = parallel_scan.associative_scan(then, (a, b))
    wrong += differing(products, a.cumprod(dim=1)) + differing(states, ops.linear_scan(a, b, backend="reference"))
    misprint = unequal(printed(printed(x, y), z), printed(x, printed(y, z)))
    return Finding(
        wrong == 0,
        f"{wrong} of {2 * 1000 + 2 * b.numel():,} differ",
        f"the last term must be c'_b; with the printed c'_a, {misprint:,} of 2,000 differ: a misprint",
    )


def unequal(x: Pair, y: Pair) -> int:
    return sum(differing(a, b) for a, b in zip(x, y, strict=True))


@claim(
    "bmru-is-linear-recurrence",
    "The BMRU is a first-order linear recurrence: a = 1 - z and b = z S(cand) alpha do not depend on the state",
    "app. B, theorem 3",
    "linear scan of a and b against the BMRU's scan, 8 x 60 steps of 32 units",
    broken_by=[fading_scan],
)
def test_bmru_is_linear_recurrence() -> Finding:
    cand, beta, alpha, h0 = random_input()
    z = (cand.abs() >= beta.abs()).double()
    linear = ops.linear_scan(1 - z, z * torch.where(cand >= 0, 1.0, -1.0) * alpha, h0)
    wrong = differing(linear, ops.bmru_scan(cand, beta, alpha, h0))
    return Finding(wrong == 0, f"{wrong:,} of {linear.numel():,} states differ")


@claim(
    "scan-is-loop",
    "The BMRU is compatible with the parallel scan: it gives the states of the loop",
    "sec. 4.3, app. B",
    "scans of every backend at hand and single steps against the loop, 8 x 60 steps of 32 units: the same bits",
    broken_by=[fading_scan],
)
def test_scan_is_loop() -> Finding:
    cand, beta, alpha, h0 = random_input()
    loop = ops.bmru_scan(cand, beta, alpha, h0, backend="reference")
    scans = [ops.bmru_scan(cand, beta, alpha, h0, backend=name) for name in ("auto", "portable")]
    h, steps = h0, []
    for t in range(cand.shape[1]):
        h = ops.bmru_step(cand[:, t], beta[:, t], alpha, h)
        steps.append(h)
    wrong = sum(differing(states, loop) for states in (*scans, torch.stack(steps, dim=1)))
    return Finding(wrong == 0, f"{wrong:,} of {3 * loop.numel():,} states differ")


@claim(
    "linear-scan-is-loop",
    "Linear dynamics, too, are computed in parallel",
    "sec. 1, app. B",
    "linear scan, real and complex, against the loop, 1,000 steps, float64: within 1e-12",
    broken_by=[linear_scan_off, nan_from(ops, "linear_scan")],
)
def test_linear_scan_is_loop() -> Finding:
    a, b = 0.99 * gaussian(2, 1000, 8).tanh(), gaussian(2, 1000, 8, seed=1)
    turn = torch.polar(a.abs(), gaussian(2, 1000, 8, seed=2))
    apart = []
    for factor, x in ((a, b), (turn, torch.complex(b, b.flip(0)))):
        difference = ops.linear_scan(factor, x) - ops.linear_scan(factor, x, backend="reference")
        apart.append(difference.abs())
    worst = largest(apart)
    return Finding(worst <= 1e-12, within(worst, 1e-12))


@claim(
    "depth",
    "With enough processors the scan takes O(log T) steps instead of the loop's O(T)",
    "sec. 4.3, app. B",
    "calls of the operator, in sequence, in a scan over T = 16 to 65,536 steps (write, value): at most 2 log2 T; "
    "states against the loop's",
    broken_by=[sequential_scan],
)
def test_depth() -> Finding:
    calls, depths, wrong = [0], {}, 0

    def latch(first: Pair, second: Pair) -> Pair:
        calls[0] += 1
        return first[0] | second[0], torch.where(second[0], second[1], first[1])

    for T in (16, 256, 4096, 65_536):
        cand, beta, alpha = gaussian(1, T, 2), 3 * gaussian(1, T, 2, seed=1), torch.ones(2).double()
        calls[0] = 0
        write, value = cand.abs() >= beta.abs(), torch.where(cand >= 0, alpha, -alpha)
        written, last = parallel_scan.associative_scan(latch, (write, value))
        depths[T] = calls[0]
        wrong += differing(torch.where(written, last, 0.0), ops.bmru_scan(cand, beta, alpha))
    ok = wrong == 0 and all(count <= 2 * math.log2(T) for T, count in depths.items())
    text = ", ".join(f"{count} for T = {T:,}" for T, count in depths.items())
    return Finding(
        ok,
        f"depth {text}; {wrong} states differ",
        "this counts the algorithm, not a clock: on real devices scans are bound by memory (docs/kernels.md)",
    )


@claim(
    "generation-cost",
    "A step of generation costs a recurrent unit the same at every length, and a Transformer more and more",
    "abstract, sec. 1",
    "floating-point operations of BMRU.step and of attention to T past steps, T = 1, 100, 10,000",
    broken_by=[rereading_step],
)
def test_generation_cost() -> Finding:
    with seeded(), torch.no_grad():
        rnn, attention = BMRU(32, 32), nn.MultiheadAttention(32, 4, batch_first=True)
        h, costs = torch.zeros(1, 1, 32), {}
        for T in (1, 100, 10_000):
            past = gaussian(1, T, 32).float()
            _, h = rnn(past.transpose(0, 1))
            costs[T] = (
                operations(lambda past=past, h=h: rnn.step(past[:, -1], h)),
                operations(lambda past=past: attention(past[:, -1:], past, past, need_weights=False)),
            )
    constant = len({own for own, _ in costs.values()}) == 1
    growing = costs[1][1] < costs[100][1] < costs[10_000][1]
    text = "BMRU and attention: " + ", ".join(
        f"{own:,} and {other:,} at T = {T:,}" for T, (own, other) in costs.items()
    )
    return Finding(constant and growing, text)


def operations(call) -> int:
    """Floating-point operations of the matrix products and attentions in a call."""
    counter = FlopCounterMode(display=False)
    with counter:
        call()
    return counter.get_total_flops()


@claim(
    "hybrid-is-parallel",
    "BMRU and LRU side by side are still computed in parallel",
    "sec. 5.3, sec. 7",
    "Hybrid layer: whole sequence against single steps, 200 steps, float64: within 1e-12",
    broken_by=[fading_layer],
)
def test_hybrid_is_parallel() -> Finding:
    with seeded(), torch.no_grad():
        rnn = Hybrid(4, 16, batch_first=True, dtype=torch.float64)
        x, state, steps = gaussian(3, 200, 4), torch.zeros(1, 3, rnn.state_size).double(), []
        for t in range(200):
            y, state = rnn.step(x[:, t], state)
            steps.append(y)
        worst = float((rnn(x)[0] - torch.stack(steps, dim=1)).abs().max())
    return Finding(worst <= 1e-12, within(worst, 1e-12))


@claim(
    "hybrid-has-both",
    "The combination has transient dynamics and persistent memory",
    "abstract, sec. 7",
    "Hybrid layer, 16 random h_0, thresholds out of reach: after 5,000 steps the linear half meets (below 1e-9), the "
    "bistable half is h_0",
    broken_by=[eternal_lru],
)
def test_hybrid_has_both() -> Finding:
    with seeded(), torch.no_grad():
        rnn = Hybrid(4, 16, batch_first=True, dtype=torch.float64)
        bmru, _ = rnn.cells_of(0)
        bmru.get_parameter("bias_ih_l0")[8:] = 100.0
        h0 = gaussian(1, 16, rnn.state_size)
        last = rnn(gaussian(1, 5000, 4, seed=1).expand(16, -1, -1), h0)[1]
        (kept, faded), (start, _) = rnn.split(last), rnn.split(h0)
    wrong, left = differing(kept, start), float((faded[0] - faded[0, :1]).abs().max())
    met = "meets" if left < 1e-9 else f"is {left:.1g} apart"
    return Finding(wrong == 0 and left < 1e-9, f"linear half {met}; {wrong} of {start.numel()} bistable states differ")


@claim(
    "hybrid-size",
    "The combination has as many neurons as either cell alone: half of each kind",
    "sec. 5.3",
    "units of a Hybrid of 256",
    broken_by=[unequal_halves],
)
def test_hybrid_size() -> Finding:
    bmru, lru = Hybrid(4, **Hybrid.size_options(256)).cells_of(0)
    return Finding(
        (bmru.hidden_size, lru.hidden_size // 2) == (128, 128),
        f"{bmru.hidden_size} + {lru.hidden_size // 2}",
        "a linear unit is complex: the state of 128 of them is 256 numbers",
    )
