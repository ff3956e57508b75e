"""Padding, lengths and segments of a layer, and bad input. In float64, where rounding flips no gate."""

import pytest
import torch

from gradients import weights_like
from multistable import BMRU

LENGTHS = [5, 9, 1, 7]

T = max(LENGTHS)

every_direction = pytest.mark.parametrize("bidirectional", [False, True], ids=["one_way", "both_ways"])

every_layout = pytest.mark.parametrize("batch_first", [False, True], ids=["time_major", "batch_first"])


def layer(**options):
    return BMRU(3, 5, num_layers=2, dtype=torch.float64, **options)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)


def padded(xs, side, junk):
    """``[T, B, 3]`` with junk in the padding."""
    x = torch.full((T, len(xs), 3), junk).double() + torch.randn(T, len(xs), 3).double()
    for i, sequence in enumerate(xs):
        where = slice(0, len(sequence)) if side == "right" else slice(T - len(sequence), T)
        x[where, i] = sequence
    return x


@every_direction
@every_layout
@pytest.mark.parametrize("junk", [0.0, 100.0, torch.nan], ids=["zeros", "large", "nan"])
def test_right_padding_never_changes_anything(bidirectional, batch_first, junk):
    rnn = layer(bidirectional=bidirectional, batch_first=batch_first)
    xs = [torch.randn(n, 3).double() for n in LENGTHS]
    h0 = torch.randn(2 * len(rnn.directions), 4, 5).double()
    x = padded(xs, "right", junk)
    output, h_n = rnn(x.transpose(0, 1) if batch_first else x, h0, lengths=torch.tensor(LENGTHS))
    output = output.transpose(0, 1) if batch_first else output
    for i, sequence in enumerate(xs):
        alone, alone_n = rnn(sequence, h0[:, i])
        close(h_n[:, i], alone_n)
        close(output[: len(sequence), i], alone)
        assert (output[len(sequence) :, i] == 0).all()


@every_direction
@every_layout
@pytest.mark.parametrize("junk", [0.0, 100.0], ids=["zeros", "large"])
def test_left_padding_never_changes_the_last_state(bidirectional, batch_first, junk):
    rnn = layer(bidirectional=bidirectional, batch_first=batch_first)
    xs = [torch.randn(n, 3).double() for n in LENGTHS]
    x, reset = padded(xs, "left", junk), torch.zeros(T, 4, dtype=torch.bool)
    for i, n in enumerate(LENGTHS):
        reset[T - n, i] = True
    inputs = (x.transpose(0, 1), reset.transpose(0, 1)) if batch_first else (x, reset)
    output, h_n = rnn(inputs[0], reset=inputs[1])
    output = output.transpose(0, 1) if batch_first else output
    for i, sequence in enumerate(xs):
        alone, alone_n = rnn(sequence)
        close(h_n[:, i], alone_n)
        close(output[T - len(sequence) :, i], alone)


@every_direction
@pytest.mark.parametrize("junk", [0.0, 100.0, torch.nan], ids=["zeros", "large", "nan"])
def test_right_padding_never_changes_a_gradient(bidirectional, junk):
    rnn = layer(bidirectional=bidirectional)
    xs = [torch.randn(n, 3).double() for n in LENGTHS]
    output, h_n = rnn(padded(xs, "right", junk), lengths=torch.tensor(LENGTHS))
    weights, weights_n = weights_like(output), weights_like(h_n)
    ((output * weights).sum() + (h_n * weights_n).sum()).backward()
    actual = [p.grad.clone() for p in rnn.parameters()]
    rnn.zero_grad()
    for i, sequence in enumerate(xs):
        alone, alone_n = rnn(sequence)
        ((alone * weights[: len(sequence), i]).sum() + (alone_n * weights_n[:, i]).sum()).backward()
    for (name, parameter), found in zip(rnn.named_parameters(), actual, strict=True):
        torch.testing.assert_close(found, parameter.grad, rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@every_direction
@every_layout
def test_segments_equal_separate_sequences(bidirectional, batch_first):
    """Three concatenated sequences with resets at their starts: the outputs of each alone, and h_n of the last."""
    rnn = layer(bidirectional=bidirectional, batch_first=batch_first)
    parts = [torch.randn(n, 2, 3).double() for n in (4, 1, 6)]
    reset = torch.zeros(11, 2, dtype=torch.bool)
    reset[[0, 4, 5]] = True
    transposed = (lambda x: x.transpose(0, 1)) if batch_first else (lambda x: x)
    output, h_n = rnn(transposed(torch.cat(parts)), reset=transposed(reset))
    alone = [rnn(transposed(part)) for part in parts]
    close(transposed(output), torch.cat([transposed(o) for o, _ in alone]))
    close(h_n, alone[-1][1])


@every_direction
def test_segments_differ_from_sequence_to_sequence(bidirectional):
    rnn = layer(bidirectional=bidirectional)
    x, reset = torch.randn(8, 2, 3).double(), torch.zeros(8, 2, dtype=torch.bool)
    reset[3, 0] = reset[6, 1] = True
    output, h_n = rnn(x, reset=reset)
    for i, start in enumerate((3, 6)):
        before, after = rnn(x[:start, i]), rnn(x[start:, i])
        close(output[:, i], torch.cat([before[0], after[0]]))
        close(h_n[:, i], after[1])


def test_initial_state_enters_the_first_segment_forward_and_the_last_in_reverse():
    rnn = BMRU(3, 5, bidirectional=True, dtype=torch.float64)
    x, h0, reset = torch.randn(8, 2, 3).double(), torch.randn(2, 2, 5).double(), torch.zeros(8, 2, dtype=torch.bool)
    reset[3] = True
    output, _ = rnn(x, h0, reset=reset)
    zero = torch.zeros_like(h0[:1])
    close(output[:3], rnn(x[:3], torch.cat([h0[:1], zero]))[0])
    close(output[3:], rnn(x[3:], torch.cat([zero, h0[1:]]))[0])


@every_direction
def test_reset_and_lengths_together(bidirectional):
    """Resets in the padding are ignored."""
    rnn = layer(bidirectional=bidirectional)
    x, lengths, reset = torch.randn(9, 2, 3).double(), torch.tensor([6, 9]), torch.zeros(9, 2, dtype=torch.bool)
    reset[4], reset[8] = True, True
    output, h_n = rnn(x, reset=reset, lengths=lengths)
    alone, alone_n = rnn(x[4:6, 0])
    close(output[4:6, 0], alone)
    close(h_n[:, 0], alone_n)
    assert (output[6:, 0] == 0).all()
    close(h_n[:, 1], rnn(x[8:, 1])[1])


@every_direction
def test_sequences_of_length_zero_keep_the_initial_state(bidirectional):
    rnn = layer(bidirectional=bidirectional)
    h0 = torch.randn(2 * len(rnn.directions), 2, 5).double()
    output, h_n = rnn(torch.randn(4, 2, 3).double(), h0, lengths=torch.tensor([0, 4]))
    assert torch.equal(h_n[:, 0], h0[:, 0])
    assert (output[:, 0] == 0).all()
    assert (output[:, 1] != 0).any()


@every_direction
@pytest.mark.parametrize("marked", [False, True], ids=["no_reset", "reset"])
def test_no_timesteps(bidirectional, marked):
    rnn = layer(bidirectional=bidirectional)
    h0 = torch.randn(2 * len(rnn.directions), 2, 5).double()
    reset = torch.zeros(0, 2, dtype=torch.bool) if marked else None
    output, h_n = rnn(torch.zeros(0, 2, 3).double(), h0, reset=reset)
    assert output.shape == (0, 2, 5 * len(rnn.directions))
    assert torch.equal(h_n, h0)


@every_direction
@every_layout
def test_empty_batch(bidirectional, batch_first):
    rnn = layer(bidirectional=bidirectional, batch_first=batch_first)
    shape = (0, 4) if batch_first else (4, 0)
    output, h_n = rnn(torch.zeros(*shape, 3).double().requires_grad_())
    assert output.shape == (*shape, 5 * len(rnn.directions))
    assert h_n.shape == (2 * len(rnn.directions), 0, 5)
    output.sum().backward()
    assert (rnn.weight_ih_l0.grad == 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input": None}, r"input must be a tensor, got NoneType"),
        ({"input": torch.zeros(7, 2, 3).numpy()}, r"input must be a tensor, got ndarray"),
        ({"input": torch.zeros(7, 2, 3).double()}, r"input must have the dtype of the weights, torch.float32, got"),
        ({"input": torch.zeros(7, 2, 3, device="meta")}, r"input must be on cpu like the weights, got meta"),
        ({"input": torch.zeros(7)}, r"input must have 2 or 3 dimensions .*, got shape \[7\]"),
        ({"input": torch.zeros(7, 2, 4)}, r"input must have 3 features \(input_size\), got 4"),
        ({"hx": torch.zeros(1, 2, 4)}, r"hx must have shape \[1, 2, 5\] .*, got \[1, 2, 4\]"),
        ({"hx": torch.zeros(1, 7, 5)}, r"hx must have shape \[1, 2, 5\] .* input is \[T, B, D\]\), got \[1, 7, 5\]"),
        ({"hx": torch.zeros(2, 2, 5)}, r"hx must have shape \[1, 2, 5\] .*, got \[2, 2, 5\]"),
        ({"hx": torch.zeros(1, 2, 5, device="meta")}, r"hx must be on cpu like the input, got meta"),
        ({"hx": torch.zeros(1, 2, 5, dtype=torch.int32)}, r"hx must be floating point, got torch.int32"),
        ({"hx": (torch.zeros(1, 2, 5),) * 2}, r"hx must be one tensor, got tuple"),
        ({"input": torch.zeros(7, 3), "hx": torch.zeros(1, 1, 5)}, r"hx must have 2 dimensions for unbatched input"),
        ({"reset": torch.zeros(2, 7, dtype=torch.bool)}, r"reset must be boolean of shape \[7, 2\], .* \[2, 7\]"),
        ({"reset": torch.zeros(7, 2)}, r"reset must be boolean of shape \[7, 2\], got torch.float32"),
        ({"reset": torch.zeros(7, 2, dtype=torch.bool, device="meta")}, r"reset must be on cpu .*, got meta"),
        ({"reset": "ab"}, r"reset must be a tensor or nested lists, got 'ab'"),
        ({"reset": [[True], [True, False]]}, r"reset must be a tensor or nested lists, got \[\[True\], "),
        ({"input": torch.zeros(7, 3), "reset": "ab"}, r"reset must be a tensor or nested lists, got 'ab'"),
        ({"input": torch.zeros(7, 3), "reset": torch.zeros(7, 1).bool()}, r"\[7\] for unbatched input, got"),
        ({"lengths": [1, None]}, r"lengths must be a tensor or nested lists, got \[1, None\]"),
        ({"lengths": torch.tensor([1, 2, 3])}, r"lengths must be 2 integers \(one per sequence\), got .* \[3\]"),
        ({"lengths": torch.tensor([1.0, 2.0])}, r"lengths must be 2 integers .* torch.float32"),
        ({"lengths": torch.tensor([True, False])}, r"lengths must be 2 integers .* torch.bool"),
        ({"lengths": torch.tensor([1, 8])}, r"lengths must lie between 0 and T = 7, got \[1, 8\]"),
        ({"lengths": torch.tensor([-1, 7])}, r"lengths must lie between 0 and T = 7, got \[-1, 7\]"),
        ({"mask": torch.ones(7, 2)}, r"mask must be boolean of shape \[7, 2\], got torch.float32 \[7, 2\]"),
        ({"mask": torch.ones(2, 7).bool()}, r"mask must be boolean of shape \[7, 2\], got torch.bool \[2, 7\]"),
        ({"mask": torch.ones(7, 2).bool().tril()}, r"mask must be True at the first steps of each sequence"),
        ({"mask": torch.ones(7, 2).bool(), "lengths": [7, 7]}, r"mask goes with padded, batched input, and without"),
        ({"input": torch.zeros(7, 3), "lengths": torch.tensor([7])}, r"lengths needs batched input"),
    ],
)
def test_bad_input_raises(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        BMRU(3, 5)(**({"input": torch.zeros(7, 2, 3)} | arguments))


def test_a_nested_tensor_raises():
    nested = torch.nested.nested_tensor([torch.zeros(3, 3), torch.zeros(2, 3)], layout=torch.jagged)
    with pytest.raises(TypeError, match=r"input must be a padded tensor or a PackedSequence, got a nested tensor"):
        BMRU(3, 5)(nested)
