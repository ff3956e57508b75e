"""Started once per rank by test_context.py: a sequence cut over ranks gives what one process computes.

Every rank computes the whole by itself and compares its piece. Whatever is wrong raises and ends the process.
"""

import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from multistable import (
    BMRU,
    BRC,
    FSM,
    LRU,
    MRU,
    ClockedRNN,
    Counter,
    HysteresisMRU,
    MinGRU,
    ModelConfig,
    PositionConfig,
    Stack,
    build_model,
    dynamics,
    ops,
)
from multistable.distributed import piece, sequence_parallel, sum_gradients
from multistable.streamed import streamed
from ranks import join
from tolerances import RELATIVE, assert_close, assert_same_bits

B, T, D = 3, 40, 4
CUTS = {2: [(0, 13, 40), (0, 0, 40), (0, 40, 40)], 4: [(0, 5, 5, 30, 40), (0, 10, 20, 30, 40), (0, 0, 1, 40, 40)]}
RESET = torch.zeros(B, T, dtype=torch.bool)
RESET[0, [5, 13]] = RESET[1, 30] = RESET[2, 0] = True  # at borders, and at the first step
LENGTHS = torch.tensor([40, 12, 31])


def staircase(h: Tensor, x: Tensor) -> Tensor:
    """Stable around -1, 0 and 1 for x = 0."""
    return 0.5 * (torch.tanh(8 * (h + x / 3 - 0.5)) + torch.tanh(8 * (h + x / 3 + 0.5)))


def part(x: Tensor | None, cuts: tuple[int, ...]) -> Tensor | None:
    rank = dist.get_rank()
    return None if x is None else x[:, cuts[rank] : cuts[rank + 1]]


def lengths_of_part(lengths: Tensor | None, cuts: tuple[int, ...]) -> Tensor | None:
    start, end = cuts[dist.get_rank() :][:2]
    return None if lengths is None else (lengths - start).clamp(0, end - start)


def total(x: Tensor | None, like: Tensor) -> Tensor:
    """The sum over the ranks."""
    x = torch.zeros_like(like) if x is None else x.clone()
    dist.all_reduce(x)
    return x


# Scans, given candidates and thresholds


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
    layer = partial(ops.bmru_layer, alpha=alpha, h0=h0, alpha_surr=1.0, reverse=True, time_major=False, backend="auto")
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


# Layers


def strong(layer: nn.Module) -> nn.Module:
    """With large biases: the drive of padding, a bias alone, removes branches of some units."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.mul_(3 if name.startswith("bias") else 1)
    return layer


def make_layers(both: bool) -> dict[str, Callable[[], nn.Module]]:
    options = {"batch_first": True, "bidirectional": both}
    return {
        "bmru": lambda: BMRU(D, 5, 2, **options),
        "time major": lambda: BMRU(D, 5, bidirectional=both),
        "branch": lambda: BMRU(D, 5, start="branch", **options),
        "lru": lambda: LRU(D, 6, **options),
        "mingru": lambda: MinGRU(D, 6, **options),
        "counter": lambda: Counter(D, 6, **options),
        "fsm": lambda: FSM(D, 6, n_states=3, **options),
        "brc": lambda: BRC(D, 6, **options),
        "clocked": lambda: ClockedRNN(dynamics.simplified_brc(c=0.5), D, 6, n_clock=2, **options),
        "hysteresis": lambda: strong(HysteresisMRU(D, 24, **options)),
        "exact gradient": lambda: HysteresisMRU(D, 6, alpha_surr=None, **options),
        "mru": lambda: strong(MRU(dynamics.simplified_brc(c=0.1), D, 24, **options)),
        "three branches": lambda: strong(
            MRU(dynamics.Field(staircase, bounds=(-1.01, 1.01)), D, 6, max_branches=3, **options)
        ),
        "stack": lambda: Stack("hybrid", D, 6, 2, **options),
        "batch norm": lambda: Stack("bmru", D, 6, 2, norm="batch", **options),
    }


def check_layer(name: str, make: Callable, cuts: tuple[int, ...], **given: Tensor | None) -> None:
    """Output, last state, and the gradients of input, initial state and parameters, in float64."""
    torch.manual_seed(0)
    rnn = make().double()
    swap = (lambda x: x) if rnn.batch_first else (lambda x: x.transpose(0, 1))
    x = torch.randn(B, T, D, dtype=torch.float64)
    hx = torch.randn_like(rnn(swap(x))[1]).requires_grad_() if given.pop("h0", False) else None
    reset, lengths = given.get("reset"), given.get("lengths")

    def run(x: Tensor, reset: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        output, h_n = rnn(swap(x), hx, reset=None if reset is None else swap(reset), lengths=lengths)
        return swap(output), h_n

    whole = x.clone().requires_grad_()
    expected, expected_n = run(whole, reset, lengths)
    weights, weights_n = torch.randn_like(expected), torch.randn_like(expected_n)
    leaves = [*rnn.parameters(), *([] if hx is None else [hx])]
    loss = (expected * weights).sum() + (expected_n * weights_n).sum()
    to_whole, *others = torch.autograd.grad(loss, [whole, *leaves])

    own = part(x, cuts).clone().requires_grad_()
    with sequence_parallel() as pieces:
        output, h_n = run(own, part(reset, cuts), lengths_of_part(lengths, cuts))
    loss = (output * part(weights, cuts)).sum() + (h_n * weights_n).sum() / pieces.size
    to_piece, *found = torch.autograd.grad(loss, [own, *leaves], allow_unused=True)
    where = f"{name} {cuts} {[key for key, x in given.items() if x is not None]}"
    assert_close(output, part(expected, cuts), f"output of {where}")
    assert_close(h_n, expected_n, f"h_n of {where}")
    scale = to_whole.norm()  # a piece may get nothing, to rounding
    assert (to_piece - part(to_whole, cuts)).norm() <= 1e-12 * scale, f"gradient of the input of {where}"
    # All together: a bias before a batch norm has no gradient but rounding.
    found = [total(a, b).flatten() for a, b in zip(found, others, strict=True)]
    assert_close(torch.cat(found), torch.cat([b.flatten() for b in others]), f"gradients of {where}")


def check_layers(cuts: tuple[int, ...], thorough: bool = True) -> None:
    given = [{}, {"h0": True, "reset": RESET}, {"h0": True, "lengths": LENGTHS}, {"reset": RESET, "lengths": LENGTHS}]
    for both in (False, True):
        for name, make in make_layers(both).items():
            for case in given if thorough else given[-1:]:
                check_layer(name, make, cuts, **case)


# Models


def check_model(pooling: str, cuts: tuple[int, ...], both: bool, reset: Tensor | None, lengths: Tensor | None) -> None:
    torch.manual_seed(0)
    sizes = {"d_input": D, "d_output": 2, "d_model": 8, "d_state": 8}
    config = ModelConfig(("hybrid", "bmru"), pooling=pooling, bidirectional=both, position=PositionConfig(T=T), **sizes)
    alone, model = build_model(config).double(), build_model(config).double()
    model.load_state_dict(alone.state_dict())
    x = torch.randn(B, T, D, dtype=torch.float64)
    expected, state = alone(x, reset=reset, lengths=lengths)
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    with sequence_parallel() as pieces:
        output, state_n = model(part(x, cuts), reset=part(reset, cuts), lengths=lengths_of_part(lengths, cuts))
        shared = pooling != "none"
        loss = (output * (weights if shared else part(weights, cuts))).sum() / (pieces.size if shared else 1)
    loss.backward()
    sum_gradients(model)
    where = f"{pooling} both={both} {cuts}"
    assert_close(output, expected if shared else part(expected, cuts), f"output, {where}")
    assert torch.equal(state_n.position, state.position), where
    for a, b in zip(state_n.cells, state.cells, strict=True):
        assert_close(a, b, f"state, {where}")
    grads = [torch.cat([parameter.grad.flatten() for parameter in x.parameters()]) for x in (model, alone)]
    assert_close(*grads, f"gradients, {where}")
    for (key, a), b in zip(model.named_buffers(), alone.buffers(), strict=True):
        assert_close(a, b, f"{key}, {where}")


def check_models(cuts: tuple[int, ...]) -> None:
    for pooling in ("none", "last", "mean"):
        check_model(pooling, cuts, False, None, None)
        check_model(pooling, cuts, True, RESET, LENGTHS)


# Other wrappers


def check_checkpointing(cuts: tuple[int, ...]) -> None:
    """Blocks recomputed inside the context give the same gradients; outside of it they raise."""
    rnn, x = Stack("bmru", D, 6, 2, batch_first=True).double(), torch.randn(B, T, D, dtype=torch.float64)
    results = []
    for again in (False, True):
        rnn.zero_grad()
        with sequence_parallel():
            call = partial(torch.utils.checkpoint.checkpoint, rnn, use_reentrant=False) if again else rnn
            call(part(x, cuts))[0].square().sum().backward()
        results.append([parameter.grad.clone() for parameter in rnn.parameters()])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    with sequence_parallel():
        output = torch.utils.checkpoint.checkpoint(rnn, part(x, cuts), use_reentrant=False)[0]
    with pytest.raises(torch.utils.checkpoint.CheckpointError):  # and not recompute a piece as a whole sequence
        output.sum().backward()


def check_streamed(cuts: tuple[int, ...]) -> None:
    """Pieces in time, each cut over ranks: gradients, loss and last state of the whole sequence."""
    ends, own = (0, 15, 15, T), [[round(cut * share / T) for cut in cuts] for share in (15, 0, T - 15)]
    for make in (lambda: BMRU(D, 5, 2, batch_first=True), lambda: Stack("hybrid", D, 6, 2, batch_first=True)):
        torch.manual_seed(0)
        alone, rnn = make().double(), make().double()
        rnn.load_state_dict(alone.state_dict())
        x = torch.randn(B, T, D, dtype=torch.float64)
        expected, state = alone(x)
        weights = torch.randn_like(expected)
        (expected * weights).sum().backward()
        inputs, scales = (
            [part(y[:, ends[i] : ends[i + 1]], own[i]) for i in range(3)]
            for y in (x, weights)  # of this rank
        )
        with sequence_parallel():
            step = streamed(rnn, inputs.__getitem__, 3, lambda output, i, scales=scales: (output * scales[i]).sum())
        sum_gradients(rnn)
        assert_close(total(step.loss, step.loss), (expected * weights).sum().detach())
        for a, b in zip(tree_leaves(step.state), tree_leaves(state), strict=True):
            assert_close(a, b.detach(), "state")
        for (key, a), b in zip(rnn.named_parameters(), alone.parameters(), strict=True):
            assert_close(a.grad, b.grad, f"streamed {key} {cuts}")


def check_compile(cuts: tuple[int, ...]) -> None:
    """The graph breaks at the exchange; outputs and gradients are the same."""
    x = torch.randn(B, T, D, dtype=torch.float64)
    for rnn in (BMRU(D, 6, batch_first=True).double(), Stack("hybrid", D, 6, batch_first=True).double()):
        found = []
        for call in (rnn, torch.compile(rnn, backend="aot_eager")):
            rnn.zero_grad()
            with sequence_parallel():
                output = call(part(x, cuts))[0]
                output.square().sum().backward()
            found.append([output.detach(), *(parameter.grad for parameter in rnn.parameters())])
        for a, b in zip(*found, strict=True):
            assert_close(a, b, "compiled")


def check_refusals(cuts: tuple[int, ...]) -> None:
    x = torch.randn(B, T, D)
    refused = (Stack("gru", D, 6), BMRU(D, 6, backend="reference"))
    for rnn in refused:
        with sequence_parallel(), pytest.raises((NotImplementedError, ValueError), match="sequence_parallel"):
            rnn(part(x, cuts))


def check_mesh() -> None:
    """DDP or FSDP2 over two halves of the batch, times a sequence over two ranks."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("batch", "sequence"))
    batch, place = (mesh[name].get_local_rank() for name in ("batch", "sequence"))
    for wrap in ("ddp", "fsdp"):
        torch.manual_seed(0)
        alone, model = (Stack("hybrid", D, 8, 2, batch_first=True).double() for _ in range(2))
        model.load_state_dict(alone.state_dict())
        x = torch.randn(4, T, D, dtype=torch.float64)
        weights = torch.randn(4, T, 8, dtype=torch.float64)
        (alone(x)[0] * weights).sum().backward()
        if wrap == "ddp":
            model = nn.parallel.DistributedDataParallel(model, process_group=mesh["batch"].get_group())
        else:
            torch.distributed.fsdp.fully_shard(model, mesh=mesh["batch"])
        own = slice(2 * batch, 2 * batch + 2), [slice(0, 13), slice(13, T)][place]
        with sequence_parallel(mesh["sequence"]):
            (model(x[own])[0] * weights[own]).sum().backward()
        sum_gradients(model, mesh["sequence"])
        for (key, a), b in zip(model.named_parameters(), alone.parameters(), strict=True):
            grad = a.grad.full_tensor() if wrap == "fsdp" else a.grad
            assert_close(2 * grad, b.grad, f"{wrap} {key}")  # both take the mean over the batch's ranks


if __name__ == "__main__":
    rank, size = join(sys.argv[1])
    for i, cuts in enumerate(CUTS[size]):
        piece._BLOCK = (3, 256, 1)[i]  # steps to search at first: less than a piece, more, and one by one
        check_bits(cuts)
        check_gradients(cuts)
        check_bytes(cuts)
        check_bytes_of_others(cuts)
        check_layers(cuts, thorough=i == 0)
        check_models(cuts)
    check_checkpointing(CUTS[size][0])
    check_refusals(CUTS[size][0])
    check_streamed(CUTS[size][0])
    check_compile(CUTS[size][0])
    if size == 4:
        check_mesh()
    dist.barrier()
    dist.destroy_process_group()
    print("all equal")
