"""Certify: proofs for machines built by hand, shortest wrong inputs, and what is undecided."""

from importlib import import_module
from itertools import product
from operator import attrgetter

import pytest
import torch

from built_machines import MOD_THREE, PARITY, TWO_BITS, build, two_layers
from multistable import FSM
from multistable.machines import Machine, Transducer, certify
from multistable.machines.bound import prove_by_units


@pytest.mark.parametrize("machine", [PARITY, MOD_THREE], ids=["parity", "mod three"])
def test_a_right_machine_is_proven(machine):
    verdict = certify(build(machine, units=2), machine)
    assert verdict.right is True
    assert verdict.pairs == 2 * machine.n_states, "each unit with the target, one by one"
    assert verdict.margin > 1e5


def test_the_shortest_wrong_input_is_found():
    """A counter that wraps from 4 to 4 errs only after five ones; brute force agrees that nothing shorter fails."""
    right = Machine(tuple((q, (q + 1) % 5) for q in range(5)), tuple(range(5)))
    wrong = Machine((*right.table[:4], (4, 4)), right.output)
    model = build(wrong)
    verdict = certify(model, right)
    assert (verdict.right, verdict.word) == (False, (1, 1, 1, 1, 1))
    for length in range(1, 6):
        words = torch.tensor(list(product(range(2), repeat=length)))
        errs = (model(words)[0].argmax(-1) != right.run(words))[:, -1]
        assert errs.any().item() == (length == 5)


def test_a_random_model_agrees_with_brute_force():
    for seed in range(20):
        torch.manual_seed(seed)
        model = Transducer(2, 2, units=2, n_states=3)
        verdict = certify(model, PARITY)
        assert verdict.right is False
        for length in range(1, len(verdict.word) + 1):
            words = torch.tensor(list(product(range(2), repeat=length)))
            errs = (model(words)[0].argmax(-1) != PARITY.run(words))[:, -1]
            assert errs.any().item() == (length == len(verdict.word))
        assert errs[words.tolist().index(list(verdict.word))]


@torch.no_grad()
def test_layers_are_followed_jointly():
    model = two_layers()
    verdict = certify(model, TWO_BITS)
    assert (verdict.right, verdict.pairs) == (True, 4)
    model.rnn.weight_ih_l1.copy_(torch.tensor([0.0, 1, 1, 0])[:, None].expand(4, 2))
    assert certify(model, TWO_BITS).word == (0,)


@torch.no_grad()
def test_units_are_followed_jointly_where_one_by_one_is_not_enough():
    """Two units toggle together. The read-out subtracts them, so no combination but the two that occur is right."""
    target = Machine(((0,), (1,)), (0, 1))  # the second state is never reached
    model = Transducer(1, 2, units=2, n_states=2)
    for parameter in model.parameters():
        parameter.zero_()
    model.rnn.weight_ih_l0.copy_(torch.tensor([0.0, 1, 1, 0]).repeat(2)[:, None])
    model.rnn.value_l0.copy_(torch.eye(2).expand(2, 2, 2))
    model.read_out.weight[0] = torch.tensor([1.0, 0, 0, 1])
    model.read_out.bias[1] = 0.5
    verdict = certify(model, target)
    assert (verdict.right, verdict.pairs) == (True, 2)
    assert prove_by_units(model, target)[0] < 0


def test_sizes_must_agree():
    with pytest.raises(ValueError, match="model must have the target's 2 symbols and 2 outputs, got 2, 3"):
        certify(Transducer(2, 3), PARITY)


@pytest.mark.parametrize(("margin", "right"), [(1e-3, True), (0.0, None)])
def test_a_decision_without_a_margin_is_undecided(margin, right):
    verdict = certify(build(PARITY, margin=margin), PARITY)
    assert verdict.right is right
    if right is None:
        assert "rounding" in verdict.reason
        assert len(verdict.word) == 1


def test_the_rounding_bound_covers_other_orders_of_summation():
    """Scores that differ by one unit in the last place are undecided, by a hundred of them decided."""
    model = build(PARITY)
    with torch.no_grad():
        model.rnn.bias_ih_l0.fill_(1.0)
        model.rnn.weight_ih_l0.mul_(2.0**-23)
        assert certify(model, PARITY).right is None
        model.rnn.weight_ih_l0.mul_(100)
        assert certify(model, PARITY).right is True


@pytest.mark.parametrize("switch", ["backends.cuda.matmul", "backends.mkldnn.matmul"])
def test_any_switch_to_products_of_lower_precision_counts(switch):
    model, backend = build(PARITY), attrgetter(switch)(torch)
    with torch.no_grad():
        model.rnn.weight_ih_l0.mul_(1e-3).add_(1.0)
    assert certify(model, PARITY).right is True
    before = getattr(backend, "fp32_precision", None)  # since torch 2.9
    if before is None:
        pytest.skip("this torch has only set_float32_matmul_precision")
    try:
        backend.fp32_precision = "tf32"
        assert certify(model, PARITY).right is None
    finally:
        backend.fp32_precision = before
    assert certify(model, PARITY).right is True


def test_autocast_is_refused():
    """Scores that differ by 0.001 are equal in bfloat16."""
    model = build(PARITY)
    with torch.no_grad():
        model.rnn.weight_ih_l0.mul_(1e-3).add_(1.0)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="certify must be called outside"):
        certify(model, PARITY)


def test_too_many_pairs_are_undecided():
    assert certify(two_layers(), TWO_BITS, max_pairs=4).right is True
    verdict = certify(two_layers(), TWO_BITS, max_pairs=3)
    assert verdict.right is None
    assert "more than 3 pairs" in verdict.reason


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_few_successors_are_computed_at_a_time(most, monkeypatch):
    """The scores of A5's 60 symbols from 4,096 pairs of states at once took 4.7 GB."""
    module, rows = import_module("multistable.machines.certify"), []
    counter = Machine(tuple((q, (q + 1) % 5, (q + 2) % 5) for q in range(5)), tuple(range(5)))
    model, step = build(counter), module.step
    with torch.no_grad():
        model.rnn.weight_ih_l0.view(5, 5, 3)[4, :, 2] = torch.eye(5)[4]  # 4 + 2 = 4
    expected = certify(model, counter)
    monkeypatch.setattr(module, "_BATCH", most)
    monkeypatch.setattr(module, "step", lambda *args: (rows.append(len(args[2])), step(*args))[1])
    assert certify(model, counter) == expected
    assert expected.word == (2, 2, 2)
    assert max(rows) <= max(3, most)


def test_keep_and_set_transitions():
    """A latch is the flip-flop: symbol 0 keeps, 1 sets state 0, 2 sets state 1."""
    target = Machine(((0, 0, 1), (1, 0, 1)), (0, 1))
    model = build(target)
    model.rnn = FSM(3, 2, n_states=2, value_size=2, transitions="set", batch_first=True)
    with torch.no_grad():
        model.rnn.weight_ih_l0.copy_(torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]]))
        model.rnn.bias_ih_l0.zero_()
        model.rnn.value_l0.copy_(torch.eye(2)[None])
    assert certify(model, target).right is True


def test_bidirectional_models_are_refused():
    model = build(PARITY)
    model.rnn = FSM(2, 2, n_states=2, bidirectional=True)
    with pytest.raises(ValueError, match="model must be unidirectional"):
        certify(model, PARITY)


def test_machines_that_take_sequences_for_time_are_refused():
    """One such model mixes the sequences of a batch."""
    model, words = build(PARITY), torch.tensor([[1, 0], [1, 1]])
    model.rnn.batch_first = False
    assert not torch.equal(model(words)[0].argmax(-1), PARITY.run(words))
    with pytest.raises(ValueError, match=r"model\.rnn must be batch_first"):
        certify(model, PARITY)
