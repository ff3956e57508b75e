"""Layers and models over a cut sequence: outputs, states and all gradients."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from cut_pieces import LENGTHS, ONE_EMPTY, RESET, B, D, T, lengths_of_part, part, total
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
)
from multistable.distributed import sequence_parallel, sum_gradients
from tolerances import assert_close


def staircase(h: Tensor, x: Tensor) -> Tensor:
    """Stable around -1, 0 and 1 for x = 0."""
    return 0.5 * (torch.tanh(8 * (h + x / 3 - 0.5)) + torch.tanh(8 * (h + x / 3 + 0.5)))


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
        "limit": lambda: ClockedRNN(dynamics.simplified_brc(c=0.5), D, 6, n_clock=math.inf, **options),
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
    to_whole, *others = torch.autograd.grad(loss, [whole, *leaves], materialize_grads=True)

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
    given = [{}, {"h0": True, "reset": RESET}, {"h0": True, "lengths": ONE_EMPTY}, {"reset": RESET, "lengths": LENGTHS}]
    for both in (False, True):
        for name, make in make_layers(both).items():
            for case in given if thorough else given[-1:]:
                check_layer(name, make, cuts, **case)


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
        check_model(pooling, cuts, False, None, ONE_EMPTY)
        check_model(pooling, cuts, True, RESET, LENGTHS)
