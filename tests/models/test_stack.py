"""``Stack``: its equation, its place in code written for ``nn.GRU``, and its options. See also test_contract.py."""

import itertools
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from layer_names import NAMES
from multistable import BMRU, LRU, Hybrid, Stack

CONSTRUCTORS = [
    {"num_layers": layers, "bias": bias, "batch_first": first, "bidirectional": both}
    for layers, bias, first, both in itertools.product([1, 2], [True, False], [True, False], [True, False])
]


@pytest.mark.parametrize("options", CONSTRUCTORS, ids=lambda x: "-".join(key for key, value in x.items() if value))
@pytest.mark.parametrize("cell", ["bmru", "lru", "hybrid"])
def test_shapes_are_those_of_gru(cell, options):
    gru, rnn = nn.GRU(3, 6, **options), Stack(cell, 3, 6, **options)
    for x in (torch.randn(7, 4, 3), torch.randn(7, 3)):
        (expected, expected_n), (output, h_n) = gru(x), rnn(x)
        assert (output.shape, h_n.shape) == (expected.shape, expected_n.shape)
        assert rnn(x, torch.zeros_like(expected_n))[0].equal(output)
    packed = pack_padded_sequence(torch.randn(4, 7, 3), torch.tensor([7, 5, 2, 1]), batch_first=True)
    assert rnn(packed)[0].data.shape == gru(packed)[0].data.shape
    has_bias = {name for name, _ in rnn.named_parameters() if name.endswith("bias") or "bias_ih" in name}
    assert all("norm" in name for name in has_bias) != options["bias"]


@pytest.mark.parametrize("name", NAMES)
def test_every_layer_can_be_stacked_and_every_parameter_learns(name):
    torch.manual_seed(0)
    rnn = Stack(name, 3, 6, 2, batch_first=True)
    x = torch.randn(4, 9, 3)
    output, h_n = rnn(x)
    assert output.shape == (4, 9, 6)
    (output.square().sum() + output[:, -1].sum() + h_n.sum()).backward()
    for key, parameter in rnn.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


def test_stack_is_its_equation():
    torch.manual_seed(0)
    rnn = Stack("hybrid", 3, 8, batch_first=True, dtype=torch.float64)
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    block = rnn.blocks[0]
    y = F.linear(x, rnn.encoder.weight, rnn.encoder.bias)
    u = F.layer_norm(y, (8,), block.norm.weight, block.norm.bias)
    matrix = torch.cat([block.out_proj.bmru, block.out_proj.lru], dim=1)
    read = block.cell(u)[0] @ matrix.T + block.skip * u
    a, b = F.linear(read, block.glu.weight, block.glu.bias).chunk(2, dim=-1)
    expected = F.layer_norm(y + a * b.sigmoid(), (8,), rnn.norm_out.weight, rnn.norm_out.bias)
    torch.testing.assert_close(rnn(x)[0], expected, rtol=1e-12, atol=1e-12)


def test_two_linear_layers_are_no_linear_map():
    torch.manual_seed(0)
    x = torch.randn(2, 9, 3)
    stack, plain = Stack("lru", 3, 8, 2), LRU(3, 8, 2)
    torch.testing.assert_close(plain(2 * x)[0], 2 * plain(x)[0])
    assert not torch.allclose(stack(2 * x)[0], 2 * stack(x)[0], rtol=0.1)


def test_batch_norm_counts_valid_steps_and_steps_use_running_statistics():
    torch.manual_seed(0)
    rnn = Stack("bmru", 3, 8, 2, batch_first=True, norm="batch", dtype=torch.float64)
    x, lengths = torch.randn(3, 9, 3, dtype=torch.float64), torch.tensor([9, 4, 2])
    rnn(x, lengths=lengths)
    one, two = (block.norm.running_mean.clone() for block in rnn.blocks)
    x[torch.arange(9) >= lengths[:, None]] = 1e6
    rnn.reset_parameters()
    assert not rnn.blocks[0].norm.running_mean.any()
    assert one.any()
    assert two.any()
    rnn.eval()
    output, _ = rnn(x[:, :2])
    _, state = rnn.step(x[:, 0])
    torch.testing.assert_close(rnn.step(x[:, 1], state)[0], output[:, 1], rtol=1e-12, atol=1e-12)


def test_one_name_per_block_and_options_for_those_that_have_them():
    rnn = Stack(("lru", "bmru"), 3, 8, 2, beta_bias=4.0, r_max=0.5, backend="portable")
    lru, bmru = (block.cell for block in rnn.blocks)
    assert (type(lru), type(bmru)) == (LRU, BMRU)
    assert (lru.r_max, bmru.beta_bias, lru.backend, bmru.backend) == (0.5, 4.0, "portable", "portable")
    assert isinstance(Stack("hybrid", 3, 8, start="branch").blocks[0].cell, Hybrid)


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        (("gnu", 3, 8), {}, ValueError, r"cell must be names out of bmru, lru.*, got 'gnu' \(did you mean 'gru'\?\)"),
        (("BMRU", 3, 8), {}, ValueError, r"got 'BMRU' \(did you mean 'bmru'\?\)"),
        ((("lru", "bmru"), 3, 8), {}, ValueError, r"or a list of num_layers names, here 1, got \('lru', 'bmru'\)"),
        ((3, 3, 8), {}, ValueError, "cell, the first argument, must be the name of a layer .*, got 3"),
        (("lru", 3, 8), {"beta_bias": 1}, TypeError, "the option 'beta_bias', which lru does not have"),
        (("gru", 3, 8), {"backend": "cpu"}, TypeError, "the option 'backend', which gru does not have"),
        (("fsm:4", 3, 8), {"n_states": 3}, TypeError, "the option 'n_states', which the name 'fsm:4' decides"),
        (("lru", 3, 7), {}, ValueError, "hidden_size of an LRU must be even"),
        (("bmru", 3, 8), {"norm": "group"}, ValueError, "norm must be one of layer, batch, got 'group'"),
        ((("gru", "lstm"), 3, 8, 2), {}, ValueError, r"states of one size, got .* with \[8, 16\] numbers"),
    ],
)
def test_bad_arguments_are_named(args, options, error, message):
    with pytest.raises(error, match=message):
        Stack(*args, **options)


def test_repr_makes_the_same_stack():
    rnn = Stack("hybrid", 3, 8, 2, dropout=0.1, norm="batch", beta_bias=1.0)
    line = repr(rnn).splitlines()[1].strip()
    assert line == "'hybrid', 3, 8, num_layers=2, dropout=0.1, norm='batch', beta_bias=1.0"
    assert repr(eval(f"Stack({line})")) == repr(rnn)


def test_dropout_acts_on_every_block_but_the_last_in_training():
    rnn, x = Stack("bmru", 3, 8, 2, dropout=0.5), torch.randn(5, 2, 3)
    assert not torch.equal(rnn(x)[0], rnn(x)[0])
    assert [block.dropout for block in rnn.blocks] == [0.5, 0.0]
    rnn.eval()
    assert torch.equal(rnn(x)[0], rnn(x)[0])


def test_dropout_and_backend_may_be_changed():
    """As those of a GRU and of a single layer."""
    rnn, x = Stack("hybrid", 3, 8, 2), torch.randn(5, 2, 3)
    rnn.dropout, rnn.backend = 0.5, "reference"
    assert [block.dropout for block in rnn.blocks] == [0.5, 0.0]
    assert {cell.backend for block in rnn.blocks for cell in (block.cell, *block.cell.bmru)} == {"reference"}
    assert not torch.equal(rnn(x)[0], rnn(x)[0])
    rnn.dropout = 0.0
    assert torch.equal(rnn(x)[0], rnn(x)[0])


def test_copies_and_dtypes():
    torch.manual_seed(0)
    rnn, x = Stack("hybrid", 3, 8, 2, dtype=torch.float64), torch.randn(5, 2, 3, dtype=torch.float64)
    again = pickle.loads(pickle.dumps(rnn))
    other = Stack("hybrid", 3, 8, 2, dtype=torch.float64)
    other.load_state_dict(rnn.state_dict())
    for copied in (again, other):
        assert torch.equal(copied(x)[0], rnn(x)[0])
    assert {p.device.type for p in Stack("bmru", 3, 8, device="meta").parameters()} == {"meta"}


@pytest.mark.parametrize("cell", ["hybrid", "bmru"])
def test_compiled_and_exported(cell):
    torch.compiler.reset()
    rnn = Stack(cell, 3, 8, 2, batch_first=True, dtype=torch.float64).eval()
    x = torch.randn(4, 6, 3, dtype=torch.float64)
    expected = rnn(x)
    torch.testing.assert_close(torch.compile(rnn, fullgraph=True, backend="eager")(x), expected)
    axes = {"input": {0: torch.export.Dim("B"), 1: torch.export.Dim("T", min=3)}}
    program = torch.export.export(rnn, (x,), dynamic_shapes=axes).module()
    x = torch.randn(2, 11, 3, dtype=torch.float64)
    torch.testing.assert_close(program(x), rnn(x))


def test_reset_parameters_draws_anew_with_the_same_spread():
    torch.manual_seed(0)
    rnn = Stack("hybrid", 64, 64)
    before = {name: value.clone() for name, value in rnn.state_dict().items()}
    rnn.reset_parameters()
    for name, value in rnn.named_parameters():
        if value.std() > 0:
            assert not torch.equal(value, before[name]), name
            assert value.std().item() == pytest.approx(before[name].std().item(), rel=0.5), name


@pytest.mark.filterwarnings("ignore:.*quantization.*:DeprecationWarning", "ignore:.*quantize.*:UserWarning")
def test_dynamic_quantisation_leaves_the_recurrent_layers_alone():
    """What docs/clients.md says of ``quantize_dynamic``."""
    torch.manual_seed(0)
    rnn, x = Stack("hybrid", 3, 8, 2), torch.randn(5, 2, 3)
    small = torch.ao.quantization.quantize_dynamic(rnn, {nn.Linear})
    kinds = [type(module) for module in small.modules()]
    assert nn.Linear not in kinds
    assert kinds.count(BMRU) == kinds.count(LRU) == 2
    torch.testing.assert_close(small(x)[0], rnn(x)[0], rtol=0, atol=0.5)


@pytest.mark.parametrize("cell", NAMES)
def test_half_precision_weights(cell):
    rnn, x = Stack(cell, 3, 8, num_layers=2, dtype=torch.bfloat16), torch.randn(5, 2, 3, dtype=torch.bfloat16)
    output, h_n = rnn(x)
    assert output.dtype == rnn.step(x[0], h_n)[0].dtype == torch.bfloat16
    output.float().sum().backward()
