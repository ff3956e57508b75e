"""Scans over a cut sequence, given candidates and thresholds: bits, gradients, and the bytes of their messages."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from cut_pieces import RESET, B, D, T, part, total
from multistable import BMRU, LRU, Counter, HysteresisMRU, MinGRU, dynamics, ops
from multistable.distributed import sequence_parallel
from multistable.ops.layer_scans import bmru_layer
from tolerances import RELATIVE, assert_close, assert_same_bits


def candidates(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Some units never write, some always, one writes NaN, one on a tie."""
    generator = torch.Generator().manual_seed(1)
    cand, beta = (torch.randn(B, T, 7, generator=generator).to(dtype) for _ in range(2))
    beta[:, :, 0], beta[:, :, 1], beta[:, 8:, 2], cand[0, 12, 3] = 1e4, 0, 1e4, torch.nan
    beta[:, ::3, 4] = cand[:, ::3, 4]
    return cand, beta, torch.linspace(-1, 1, 7).to(dtype), torch.randn(B, 7, generator=generator).to(dtype)


def scans(reset: Tensor | None, dtype: torch.dtype) -> dict[str, tuple[Callable, dict[str, Tensor | None]]]:
    cand, beta, alpha, h0 = candidates(dtype)
    write = cand.abs() >= beta.abs()
    generator = torch.Generator().manual_seed(2)
    maps = torch.randint(0, 5, (B, T, 7, 5), generator=generator, dtype=torch.uint8)
    maps[:, :, 0], maps[:, :, 1, :] = torch.arange(5, dtype=torch.uint8), 3
    s0 = torch.randint(0, 5, (B, 7), generator=generator, dtype=torch.uint8)
    layer = partial(bmru_layer, alpha=alpha, h0=h0, alpha_surr=1.0, reverse=True, time_major=False, backend="auto")
    back = (
        lambda proj, reset: layer(proj, reset=reset)[0],
        {"proj": torch.cat([cand, beta], dim=-1), "reset": reset},
    )
    return {
        "bmru": (lambda **x: ops.bmru_scan(**x, alpha=alpha, h0=h0), {"cand": cand, "beta": beta, "reset": reset}),
        "bmru back": back,
        "hysteresis": (
            lambda **x: dynamics.hysteresis.hysteresis_scan(**x, h0=h0),
            {"x": cand, "beta": beta, "reset": reset},
        ),
        "mru": (
            lambda x, beta, reset: dynamics.branches.branch_scan(
                dynamics.simplified_brc(c=0.1), [x, beta], h0, reset=reset, alpha_surr=1.0
            ),
            {"x": cand, "beta": torch.where(beta > 100, 1.0, beta), "reset": reset},
        ),
        "latch": (lambda **x: ops.latch_scan(**x, h0=h0), {"write": write, "value": cand, "reset": reset}),
        "map": (lambda **x: ops.map_scan(**x, s0=s0), {"maps": maps, "reset": reset}),
        "map back": (lambda **x: ops.map_scan(**x, s0=s0, reverse=True), {"maps": maps, "reset": reset}),
    }


def check_bits(cuts: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for reset in (None, RESET):
            for name, (scan, inputs) in scans(reset, dtype).items():
                whole = scan(**inputs)
                with sequence_parallel():
                    states = scan(**{key: part(x, cuts) for key, x in inputs.items()})
                assert_same_bits(states, part(whole, cuts), f"{name} {dtype} {cuts}")


def check_gradients(cuts: tuple[int, ...]) -> None:
    """Of scans in float32 and bfloat16, by the table of tolerances."""
    for dtype in (torch.float32, torch.bfloat16):
        cand, beta, alpha, h0 = (x.nan_to_num() for x in candidates(dtype))
        rate, weights = torch.sigmoid(beta), torch.randn(B, T, 7, generator=torch.Generator().manual_seed(3)).to(dtype)
        scans = {
            "bmru": (lambda h0, alpha, x, y, reset: ops.bmru_scan(x, y, alpha, h0, reset=reset), cand, beta),
            "linear": (lambda h0, _, x, y, reset: ops.linear_scan(x, y, h0, reset=reset), rate, cand),
            "constant": (lambda h0, a, _, y, reset: ops.linear_scan(a, y, h0, reset=reset), rate, cand),
        }
        for name, (scan, *inputs) in scans.items():
            wholes = [x.clone().requires_grad_() for x in (h0, alpha / 2, *inputs)]
            expected = scan(*wholes, RESET)
            grads = torch.autograd.grad(expected, wholes, weights, allow_unused=True)
            parts = [x.clone().requires_grad_() for x in (h0, alpha / 2, *(part(x, cuts) for x in inputs))]
            with sequence_parallel():
                states = scan(*parts, part(RESET, cuts))
            found = torch.autograd.grad(states, parts, part(weights, cuts), allow_unused=True)
            assert_close(states, part(expected, cuts), f"{name} {dtype} {cuts}")
            for i, (a, b) in enumerate(zip(found, grads, strict=True)):
                if b is None:
                    continue
                if i < 2:  # of the whole: the sum
                    assert_close(total(a, b), b, f"gradient {i} of {name} {dtype} {cuts}")
                else:
                    bound = RELATIVE[dtype] * b.double().norm()
                    assert (a.double() - part(b, cuts).double()).norm() <= bound, (
                        f"gradient {i} of {name} {dtype} {cuts}"
                    )


def check_bytes(cuts: tuple[int, ...]) -> None:
    """Two bits per unit and one per sequence forwards, one number per unit backwards, one more for the last state."""
    rnn, x = BMRU(D, 16, batch_first=True), torch.randn(B, T, D)
    for through_last in (False, True):
        with sequence_parallel() as pieces:
            output, h_n = rnn(part(x, cuts))
            assert pieces.exchange.bytes_sent == 2 * (B * 16 // 8) + 1, pieces.exchange.bytes_sent
            (output.sum() + (h_n.sum() if through_last else 0)).backward()
        sent = pieces.exchange.bytes_sent - 2 * (B * 16 // 8) - 1
        assert sent == B * 16 * 4 * (1 + through_last), sent
        assert pieces.exchange.count == 2 + through_last


def check_bytes_of_others(cuts: tuple[int, ...]) -> None:
    """What docs/scale.md says of other layers: bytes of forward and backward without the last state, N = 16."""
    number, bits, flag = 4 * B * 16, B * 16 // 8, 1  # of all units; a flag per sequence fits into a byte
    expected = {
        "lru": (LRU(D, 16, batch_first=True), number + 8 + flag, number),  # 16 numbers are 8 complex units
        "mingru": (MinGRU(D, 16, batch_first=True), 2 * number + flag, number),
        "counter": (Counter(D, 16, batch_first=True), number + 8 + flag, number),
        # Branches before the piece, a latch, the last state:
        "hysteresis": (
            HysteresisMRU(D, 16, batch_first=True),
            2 * number + flag + bits + number + number + flag,
            number,
        ),
    }
    for name, (rnn, forwards, backwards) in expected.items():
        with sequence_parallel() as pieces:
            output = rnn(part(torch.randn(B, T, D), cuts))[0]
            sent = pieces.exchange.bytes_sent
            output.sum().backward()
        found = sent, pieces.exchange.bytes_sent - sent
        assert found == (forwards, backwards), f"{name}: {found}, expected {(forwards, backwards)}"
