"""``BMRU`` as a replacement for ``nn.GRU``, its initial thresholds, tuning, and precision."""

import inspect
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from backends import DTYPES, FAST
from multistable import BMRU, BMRUCell, Hybrid, gate_statistics

LENGTHS = torch.tensor([5, 9, 2, 7])

every_fast_backend = pytest.mark.parametrize("backend", FAST)


def constructors():
    """All combinations of num_layers, bias, batch_first, dropout and bidirectional."""
    for layers, bias, batch_first, both in itertools.product([1, 2], [True, False], [True, False], [True, False]):
        dropout = 0.3 if layers > 1 else 0.0
        yield {
            "num_layers": layers,
            "bias": bias,
            "batch_first": batch_first,
            "dropout": dropout,
            "bidirectional": both,
        }


def option_ids(options):
    return "-".join([f"layers{options['num_layers']}", *(k for k, v in options.items() if v is True)])


every_constructor = pytest.mark.parametrize("options", list(constructors()), ids=option_ids)


class Tagger(nn.Module):
    """An ordinary model around a packed, bidirectional, two-layer RNN of any class."""

    def __init__(self, rnn_class):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.rnn = rnn_class(6, 8, num_layers=2, batch_first=True, dropout=0.1, bidirectional=True)
        self.head = nn.Linear(16, 3)
        self.summary = nn.Linear(8, 2)

    def forward(self, tokens, lengths):
        self.rnn.flatten_parameters()
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        output, h_n = self.rnn(packed)
        output, _ = pad_packed_sequence(output, batch_first=True)
        return self.head(output), self.summary(h_n[-1])


@pytest.mark.parametrize("rnn_class", [nn.GRU, BMRU])
def test_a_model_trains_with_bmru_in_place_of_gru(rnn_class):
    model, tokens = Tagger(rnn_class), torch.randint(0, 11, (4, 9))
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-2)
    losses = []
    for _ in range(25):
        tags, summary = model(tokens, LENGTHS)
        assert tags.shape == (4, 9, 3)
        assert summary.shape == (4, 2)
        loss = nn.functional.cross_entropy(tags.flatten(0, 1), tokens.flatten() % 3)
        loss = loss + nn.functional.cross_entropy(summary, tokens[:, 0] % 2)
        optimiser.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@every_constructor
@pytest.mark.parametrize("with_state", [False, True], ids=["no_h0", "h0"])
def test_shapes_match_gru(options, with_state):
    gru, rnn = nn.GRU(3, 5, **options), BMRU(3, 5, **options)
    count = options["num_layers"] * (2 if options["bidirectional"] else 1)
    packed = {s: pack_sequence([torch.randn(n, 3) for n in sizes], enforce_sorted=s) for s, sizes in
              {True: (9, 7, 2), False: (2, 9, 7)}.items()}  # fmt: skip
    cases = [(torch.randn(7, 4, 3), 7 if options["batch_first"] else 4), (torch.randn(7, 3), None)]
    cases += [(p, 3) for p in packed.values()]
    for x, B in cases:
        h0 = torch.randn(count, *([] if B is None else [B]), 5) if with_state else None
        (expected, expected_n), (output, h_n) = gru(x, h0), rnn(x, h0)
        assert h_n.shape == expected_n.shape
        assert type(output) is type(expected)
        if isinstance(output, PackedSequence):
            assert output.data.shape == expected.data.shape
            for name in ("batch_sizes", "sorted_indices", "unsorted_indices"):
                a, b = getattr(output, name), getattr(expected, name)
                assert (a is None) == (b is None), name
                assert a is None or torch.equal(a, b), name
        else:
            assert output.shape == expected.shape


@every_constructor
def test_last_state_equals_the_last_output(options):
    rnn = BMRU(3, 5, **options).eval()
    output, h_n = rnn(torch.randn(7, 4, 3))
    output = output if options["batch_first"] else output.transpose(0, 1)
    h_n = h_n.unflatten(0, (options["num_layers"], -1))
    assert torch.equal(h_n[-1, 0], output[:, -1, :5])
    if options["bidirectional"]:
        assert torch.equal(h_n[-1, 1], output[:, 0, 5:])


@every_constructor
def test_every_parameter_has_a_gradient(options):
    rnn = BMRU(3, 5, **options)
    output, h_n = rnn(
        torch.randn(7, 4, 3), torch.randn(rnn.num_layers * len(rnn.directions), 4 + 3 * rnn.batch_first, 5)
    )
    (output.sum() + h_n.square().sum()).backward()
    for name, parameter in rnn.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_equals_each_sequence_alone(enforce_sorted, bidirectional):
    rnn = BMRU(3, 5, num_layers=2, bidirectional=bidirectional, dtype=torch.float64)
    lengths = LENGTHS.sort(descending=True)[0] if enforce_sorted else LENGTHS
    xs = [torch.randn(int(n), 3).double() for n in lengths]
    h0 = torch.randn(2 * len(rnn.directions), 4, 5).double()
    output, h_n = rnn(pack_sequence(xs, enforce_sorted=enforce_sorted), h0)
    padded, found = pad_packed_sequence(output)
    assert torch.equal(found, lengths)
    for i, x in enumerate(xs):
        alone, alone_n = rnn(x, h0[:, i])
        torch.testing.assert_close(padded[: len(x), i], alone, rtol=1e-12, atol=0)
        torch.testing.assert_close(h_n[:, i], alone_n, rtol=1e-12, atol=0)


@pytest.mark.parametrize("bias", [True, False])
def test_bmru_cell_in_a_loop_matches_bmru(bias):
    """States, and gradients of the shared parameters."""
    cell, rnn = BMRUCell(3, 5, bias=bias, dtype=torch.float64), BMRU(3, 5, bias=bias, dtype=torch.float64)
    rnn.load_state_dict({f"{name}_l0": value for name, value in cell.state_dict().items()})
    x, h = torch.randn(9, 4, 3).double(), torch.randn(4, 5).double()
    output, h_n = rnn(x, h[None])
    for t in range(9):
        h = cell(x[t], h)
        torch.testing.assert_close(h, output[t], rtol=1e-12, atol=0)
    h.square().sum().backward()
    h_n.square().sum().backward()
    for name, parameter in cell.named_parameters():
        torch.testing.assert_close(parameter.grad, rnn.get_parameter(f"{name}_l0").grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("shape", [(4, 3), (3,)], ids=["batched", "unbatched"])
def test_bmru_cell_shapes_match_gru_cell(shape):
    gru, cell, x = nn.GRUCell(3, 5), BMRUCell(3, 5), torch.randn(shape)
    assert cell(x).shape == gru(x).shape
    assert cell(x, cell(x)).shape == gru(x, gru(x)).shape


def test_alpha_is_learnable_and_starts_at_one():
    rnn = BMRU(3, 5)
    assert torch.equal(rnn.alpha_l0, torch.ones(5))
    assert rnn.alpha_l0.requires_grad
    bound = 3**-0.5
    assert rnn.weight_ih_l0.abs().max() <= bound
    assert rnn.bias_ih_l0.abs().max() <= bound


@pytest.mark.parametrize("make_cell", [BMRU, BMRUCell, Hybrid])
def test_beta_bias_only_moves_the_thresholds(make_cell):
    """Weights and the candidates' biases get the same random numbers as without it."""
    states = []
    for beta_bias in (0.0, 4.0):
        torch.manual_seed(0)
        states.append(make_cell(6, 8, beta_bias=beta_bias, thresholds="paper").state_dict())
    changed = [name for name in states[0] if not torch.equal(states[0][name], states[1][name])]
    assert [name.split(".")[-1].split("_l0")[0] for name in changed] == ["bias_ih"]
    before, after = (state[changed[0]] for state in states)
    n = len(before) // 2
    assert torch.equal(before[:n], after[:n])
    assert torch.equal(before[n:] + 4.0, after[n:])


def thresholds_of(rnn):
    """The names and values of the offsets."""
    return {name.split(".")[-1]: value for name, value in rnn.named_buffers()}


@pytest.mark.parametrize("make_cell", [BMRU, BMRUCell, Hybrid])
def test_spread_thresholds_are_no_parameters(make_cell):
    """Weights and biases are those of the paper, drawn from the same random numbers."""
    cells = []
    for options in ({"thresholds": "paper"}, {}, {"beta_bias": 1.0}):
        torch.manual_seed(0)
        cells.append(make_cell(6, 8, **options))
    paper, spread, raised = (dict(cell.named_parameters()) for cell in cells)
    assert all(torch.equal(paper[name], spread[name]) and torch.equal(paper[name], raised[name]) for name in paper)
    assert not thresholds_of(cells[0])
    for cell, beta_bias in zip(cells[1:], (0, 1), strict=True):
        [offset] = thresholds_of(cell).values()
        n = len(offset) // 2
        assert torch.equal(offset[:n], torch.zeros(n))
        torch.testing.assert_close(offset[n:], beta_bias + torch.linspace(0, 2, n))
    assert not thresholds_of(make_cell(6, 8, bias=False))
    with pytest.raises(ValueError, match="thresholds must be one of spread, paper, got 'high'"):
        make_cell(6, 8, thresholds="high")


def test_code_that_zeroes_biases_leaves_the_thresholds():
    """As the loops of CleanRL do. With ``"paper"`` and ``beta_bias`` half of the steps would write afterwards."""
    rnn = BMRU(6, 64, beta_bias=4.0, batch_first=True)
    x = torch.rand(3, 50, 6)
    for name, parameter in rnn.named_parameters():
        if "bias" in name:
            nn.init.constant_(parameter, 0.0)
    assert gate_statistics(rnn, x)[0].write_rate.max() < 0.01


@pytest.mark.parametrize("make_cell", [BMRU, BMRUCell, Hybrid])
def test_offsets_change_the_thresholds(make_cell):
    torch.manual_seed(0)
    rnn, x = make_cell(6, 8), torch.randn(5, 6) if make_cell is BMRUCell else torch.randn(5, 3, 6)
    moved = make_cell(6, 8, thresholds="paper")
    moved.load_state_dict({name: value for name, value in rnn.state_dict().items() if "offset" not in name})
    different = moved(x)[0]
    bias = next(value for name, value in moved.named_parameters() if "bias_ih" in name)
    with torch.no_grad():
        bias += next(iter(rnn.buffers()))
    assert torch.equal(moved(x)[0], rnn(x)[0])
    assert not torch.equal(different, rnn(x)[0])


@pytest.mark.parametrize("make_cell", [BMRU, BMRUCell, Hybrid])
def test_weights_without_offsets_load_as_they_were(make_cell):
    """Saved before there were any: the layer that loads them has none either."""
    old, new = make_cell(6, 8, thresholds="paper"), make_cell(6, 8)
    new.load_state_dict(old.state_dict())
    assert not any(value.any() for value in thresholds_of(new).values())
    empty = make_cell(6, 8, device="meta")
    empty.load_state_dict(old.state_dict(), assign=True)
    assert not any(value.any() for value in thresholds_of(empty).values())
    again = make_cell(6, 8)
    again.load_state_dict(make_cell(6, 8).state_dict())
    assert all(value.any() for value in thresholds_of(again).values())


@pytest.mark.parametrize("make_cell", [BMRU, BMRUCell, Hybrid])
def test_weights_of_other_modules_leave_the_offsets(make_cell):
    """With ``strict=False`` code loads a part of a model, such as a trained encoder, and its layers keep the rest."""
    model, encoder = nn.Sequential(nn.Linear(4, 6), make_cell(6, 8)), nn.Sequential(nn.Linear(4, 6))
    model.load_state_dict(encoder.state_dict(), strict=False)
    assert all(value.any() for value in thresholds_of(model).values())


@pytest.mark.parametrize("make_cell", [BMRU, BMRUCell, Hybrid])
def test_beta_bias_without_a_bias_raises(make_cell):
    with pytest.raises(ValueError, match=r"beta_bias must be 0 for units without a bias, got 4\.0"):
        make_cell(6, 8, bias=False, beta_bias=4.0)
    with pytest.raises(TypeError, match="beta_bias must be a number, got 'a'"):
        BMRU(2, 3, beta_bias="a")
    with pytest.raises(ValueError, match="beta_bias must be finite, got nan"):
        make_cell(6, 8, beta_bias=math.nan)


def test_a_large_beta_bias_holds_from_the_start():
    rnn = BMRU(6, 8, beta_bias=4.0, batch_first=True)
    h_0 = torch.randn(1, 3, 8)
    assert torch.equal(rnn(torch.rand(3, 50, 6), h_0)[1], h_0)


def test_gain_of_tuned_thresholds_defaults_to_1():
    layer, codes, x = BMRU(6, 4), F.normalize(torch.randn(1, 4, 2), dim=-1), torch.zeros(6)
    layer.tune(codes)
    x[-2:] = codes[0, 1]
    beta = F.linear(x, layer.weight_ih_l0, layer.bias_ih_l0)[4:]
    torch.testing.assert_close(beta, 1 - codes[0] @ codes[0, 1])


def test_reset_parameters_undoes_the_tuning():
    rnn = BMRU(6, 4, beta_bias=0.5)
    rnn.tune(torch.randn(1, 4, 2))
    assert not rnn.offset_l0.any()
    rnn.reset_parameters()
    torch.testing.assert_close(rnn.offset_l0, torch.cat([torch.zeros(4), 0.5 + torch.linspace(0, 2, 4)]))


def test_reset_parameters_fills_all_memory_of_a_cell():
    """Those of layers: test_contract.py."""
    cell = BMRUCell(3, 5, device="meta").to_empty(device="cpu")
    tensors = [*cell.parameters(), *cell.buffers()]
    for tensor in tensors:
        tensor.data.fill_(torch.nan)
    cell.reset_parameters()
    assert len(tensors) == 4
    assert not any(tensor.isnan().any() for tensor in tensors)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (BMRU(6, 4), (1, 4, 6)),  # no input besides the codes
        (BMRU(6, 4), (1, 3, 2)),
        (BMRU(6, 4, bidirectional=True), (1, 4, 2)),
        (BMRU(6, 4, bias=False), (1, 4, 2)),
    ],
)
def test_codes_of_the_wrong_shape_raise(layer, shape):
    with pytest.raises(ValueError, match=r"codes must have shape \[\d, 4, P\] with P below the input's 6 features"):
        layer.tune(torch.zeros(shape))


@every_fast_backend
def test_autocast_keeps_the_dtype_of_the_projection(backend):
    rnn = BMRU(3, 5, num_layers=2, bidirectional=True, backend=backend)
    x, h0 = torch.randn(7, 4, 3, requires_grad=True), torch.randn(4, 4, 5, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, h_n = rnn(x, h0)
    assert output.dtype == h_n.dtype == torch.bfloat16
    (output.float().sum() + h_n.float().square().sum()).backward()
    for name, tensor in [*rnn.named_parameters(), ("x", x), ("h0", h0)]:
        assert tensor.grad is not None, name
        assert tensor.grad.dtype == torch.float32, name
        assert tensor.grad.isfinite().all(), name


def test_autocast_rounds_alpha_and_h0_once():
    rnn = BMRU(3, 5)
    nn.init.constant_(rnn.alpha_l0, 0.7)
    h0 = torch.full((1, 4, 5), 0.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = rnn(torch.randn(7, 4, 3), h0)
    levels = torch.tensor([0.3, 0.7, -0.7]).bfloat16()
    assert torch.isin(output, levels).all()


@every_fast_backend
def test_autocast_accumulates_the_gradient_of_alpha_in_float32(backend):
    """4096 writes of the same sign: a bfloat16 sum would stall at 256."""
    rnn = BMRU(1, 1, backend=backend)
    with torch.no_grad():
        rnn.weight_ih_l0.zero_()
        rnn.bias_ih_l0.copy_(torch.tensor([1.0, 0.0]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = rnn(torch.zeros(4096, 1, 1))
    output.sum().backward()
    assert rnn.alpha_l0.grad.item() == 4096.0


@every_fast_backend
def test_autocast_trains(backend):
    """Hold the sign of the first input over twenty steps."""
    rnn = BMRU(2, 8, batch_first=True, backend=backend)
    head = nn.Linear(8, 1)
    optimiser = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=2e-2)
    losses = []
    for _ in range(80):
        x = torch.zeros(64, 20, 2)
        x[:, 0, 0] = torch.randn(64).sign()
        x[:, 0, 1] = 1.0
        with torch.autocast("cpu", dtype=torch.bfloat16):
            guess = head(rnn(x)[0][:, -1]).float().squeeze(-1)
        loss = nn.functional.mse_loss(guess, x[:, 0, 0])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 < losses[0]


@every_fast_backend
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_of_any_dtype(backend, dtype):
    rnn = BMRU(3, 5, num_layers=2, bidirectional=True, backend=backend).to(dtype)
    x = torch.randn(7, 4, 3).to(dtype).requires_grad_()
    output, h_n = rnn(x, lengths=torch.tensor([7, 3, 0, 5]))
    assert output.dtype == h_n.dtype == dtype
    (output.sum() + h_n.sum()).backward()
    assert all(p.grad is not None and p.grad.dtype == dtype for p in [*rnn.parameters(), x])
    if dtype != torch.float64:
        assert torch.isin(output, torch.tensor([-1.0, 0.0, 1.0], dtype=dtype)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_step_and_cell_of_any_dtype(dtype):
    rnn, cell = BMRU(3, 5, num_layers=2, dtype=dtype), BMRUCell(3, 5, dtype=dtype)
    x = torch.randn(4, 3).to(dtype)
    output, state = rnn.step(x)
    assert output.dtype == state.dtype == cell(x).dtype == dtype


def test_step_under_autocast_has_the_dtype_of_forward():
    rnn, x = BMRU(3, 5), torch.randn(1, 4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, state = rnn.step(x[0])
        expected, expected_n = rnn(x)
    assert output.dtype == state.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(state, expected_n)
    assert torch.equal(output, expected[0])


def test_bad_arguments_of_bmru_cell_raise():
    with pytest.raises(ValueError, match="input_size must be a positive integer, got 0"):
        BMRUCell(0, 5)
    with pytest.raises(ValueError, match="alpha_surr must not be negative, got nan"):
        BMRUCell(3, 5, alpha_surr=float("nan"))
    cell = BMRUCell(3, 5)
    with pytest.raises(TypeError, match=r"input must have the dtype of the weights, torch.float32, got torch.float16"):
        cell(torch.zeros(2, 3).half())
    with pytest.raises(ValueError, match=r"input must have shape \[B, 3\] or \[3\], got \[2, 4\]"):
        cell(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"hx must have shape \[2, 5\], got \[2, 4\]"):
        cell(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(TypeError, match=r"hx must be one tensor, got list"):
        cell(torch.zeros(2, 3), [0.0] * 5)
    with pytest.raises(ValueError, match=r"input must be on meta like the weights, got cpu"):
        BMRUCell(3, 5, device="meta")(torch.zeros(2, 3))


def test_constructors_start_like_those_of_torch_rnns():
    """``nn.GRU(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)``, positionally too."""
    words = ["self", "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"]
    assert list(inspect.signature(BMRU.__init__).parameters)[:8] == words
    rnn = BMRU(3, 5, 2, False, True, 0.1, True)
    assert (rnn.num_layers, rnn.bias, rnn.batch_first, rnn.dropout, rnn.bidirectional) == (2, False, True, 0.1, True)
    assert list(inspect.signature(BMRUCell.__init__).parameters)[:4] == ["self", "input_size", "hidden_size", "bias"]
