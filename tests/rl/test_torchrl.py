"""Layers in TorchRL: resets on the right step, states from rollout to rollout, losses, files."""

from functools import partial

import pytest
import torch
from torch import nn

from layer_names import NAMES
from multistable import BMRU, Stack
from multistable.layers import find_layer
from multistable.layers.torch_rnn import GRU
from tolerances import assert_close

pytestmark = pytest.mark.extra
pytest.importorskip("torchrl", reason="torchrl is not installed: pip install '.[rl]'")

from tensordict import TensorDict  # noqa: E402
from tensordict.nn import TensorDictModule, TensorDictSequential  # noqa: E402
from torchrl.collectors import Collector  # noqa: E402
from torchrl.envs import Compose, GymWrapper, InitTracker, SerialEnv, TransformedEnv  # noqa: E402
from torchrl.modules import MLP, GRUModule, ProbabilisticActor, ValueOperator, set_recurrent_mode  # noqa: E402
from torchrl.modules.utils import get_primers_from_module  # noqa: E402
from torchrl.objectives import ClipPPOLoss  # noqa: E402
from torchrl.objectives.value import GAE  # noqa: E402

from clue import Clue  # noqa: E402
from multistable.rl.torchrl import RecurrentModule  # noqa: E402

KEYS = {"in_keys": ["observation", "state"], "out_keys": ["features", ("next", "state")]}


def build(name: str, **options) -> RecurrentModule:
    kind, fixed = (Stack, {"cell": "hybrid"}) if name == "stack" else find_layer(name)
    rnn = kind(**fixed, input_size=3, hidden_size=6, batch_first=True, dtype=torch.float64, **options)
    return RecurrentModule(rnn, **KEYS)


def rollout(shape: tuple[int, ...] = (2, 9)) -> TensorDict:
    """Inputs and marks: episodes begin at steps 0 and 4 of the first sequence, and at step 6 of the second."""
    torch.manual_seed(1)
    is_init = torch.zeros(*shape, 1, dtype=torch.bool)
    is_init.view(-1, shape[-1], 1)[0, [0, 4]] = True
    is_init.view(-1, shape[-1], 1)[1, 6] = True
    return TensorDict({"observation": torch.randn(*shape, 3, dtype=torch.float64), "is_init": is_init}, shape)


def run_steps(module: RecurrentModule, data: TensorDict, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and the last state of one call per timestep, each state handed to the next call."""
    outputs = []
    for t in range(data.shape[-1]):
        step = module(data[..., t].clone().set("state", state))
        state = step["next", "state"]
        outputs.append(step["features"])
    return torch.stack(outputs, dim=-2), state


@pytest.mark.parametrize("name", [*NAMES, "stack"])
def test_steps_and_sequence_agree(name):
    """The second sequence enters with a state; one reset a step early or late changes the outputs there."""
    torch.manual_seed(0)
    module, data = build(name, num_layers=2), rollout()
    state = torch.rand(2, *module.state_shape, dtype=torch.float64)
    output, last = run_steps(module, data, state)
    with set_recurrent_mode(True):
        states = torch.cat([state[:, None], torch.full((2, 8, *module.state_shape), torch.nan)], dim=1)  # not read
        whole = module(data.clone().set("state", states))
    assert_close(whole["features"], output)
    assert_close(whole["next", "state"][:, -1], last)
    assert (whole["next", "state"][:, :-1] == 0).all()


@pytest.mark.parametrize("name", [*NAMES, "stack"])
@pytest.mark.parametrize("recurrent", [False, True])
def test_an_episode_starts_as_in_a_new_sequence(name, recurrent):
    """From step 4 on, the first sequence's outputs are those of a layer that has seen nothing. Inputs are weak there
    and strong before, so that latches would keep what they had."""
    torch.manual_seed(0)
    module, data = build(name), rollout()
    data["observation"][0, 3] *= 5
    data["observation"][0, 4:] *= 0.05
    state = torch.rand(2, *module.state_shape, dtype=torch.float64)
    expected, _ = module.rnn(data["observation"][:1, 4:])
    with set_recurrent_mode(recurrent):
        if recurrent:
            output = module(data)["features"]
        else:
            output, _ = run_steps(module, data, state)
    assert_close(output[:1, 4:], expected)
    other = module.rnn(data["observation"][:1, 3:])[0][:, 1:]
    assert not torch.allclose(output[:1, 4:], other), "the test can fail"


def test_numbers_of_gru_module():
    """With torch's GRU inside: the same outputs and last states as TorchRL's own module, in both modes."""
    torch.manual_seed(0)
    theirs = GRUModule(3, 6, num_layers=2, **KEYS).double()
    module = build("gru", num_layers=2)
    assert isinstance(module.rnn, GRU)
    for layer in range(2):
        inner = module.rnn.rnn(layer)
        inner.load_state_dict({k: getattr(theirs.gru, k.replace("l0", f"l{layer}")) for k in inner.state_dict()})
    data = rollout((2, 2, 9))
    state = torch.rand(2, 2, 9, 2, 6, dtype=torch.float64) * ~data["is_init"][..., None]  # zeros where episodes start
    for recurrent in (False, True):
        given = data.clone().set("state", state)
        with set_recurrent_mode(recurrent):
            a, b = module(given.clone()), theirs(given.clone())
        assert_close(a["features"], b["features"])
        assert_close(a["next", "state"][..., -1, :, :], b["next", "state"][..., -1, :, :])
    assert module.make_tensordict_primer().primers == theirs.make_tensordict_primer().primers.to(torch.float64)


def build_env(module: nn.Module, count: int = 3) -> TransformedEnv:
    env = SerialEnv(count, lambda: GymWrapper(Clue(4), categorical_action_encoding=True))
    env = TransformedEnv(env, Compose(InitTracker(), get_primers_from_module(module)))
    env.set_seed(0)
    return env


def build_actor(rnn) -> ProbabilisticActor:
    memory = RecurrentModule(rnn, in_key="observation", out_key="features")
    head = TensorDictModule(nn.Linear(rnn.hidden_size, 2), in_keys=["features"], out_keys=["logits"])
    return ProbabilisticActor(
        TensorDictSequential(memory, head),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )


@pytest.mark.parametrize("kind", [BMRU, partial(Stack, "hybrid")], ids=["bmru", "stack"])
def test_collected_rollouts_are_recomputed(kind):
    """Rollouts of 6 steps, episodes of 4: the state is carried into the second rollout, and outputs of the collector
    and of one call in recurrent mode agree step by step."""
    torch.manual_seed(0)
    actor = build_actor(kind(2, 8, 2, batch_first=True))
    collector = Collector(build_env(actor), actor, frames_per_batch=3 * 6, total_frames=3 * 6 * 3)
    starts = []
    for data in collector:
        starts.append(data["is_init"][0, :, 0].nonzero().flatten().tolist())
        assert torch.equal(data["is_init"][..., 0], data["observation"][..., 0] != 0), "marks are where clues are seen"
        with set_recurrent_mode(True), torch.no_grad():
            again = actor.get_dist(data.clone()).log_prob(data["action"])
        torch.testing.assert_close(again, data["action_log_prob"], rtol=1e-4, atol=1e-5)
        carried = data["recurrent_state"][:, 0]
        assert (carried == 0).all() == (starts[-1][0] == 0)
    assert starts == [[0, 4], [2], [0, 4]]
    collector.shutdown()


def test_ppo_learns_the_clue():
    """TorchRL's own loss and advantages, without truncation of gradients: the mean reward goes from 0 to 1."""
    torch.manual_seed(0)
    rnn = BMRU(2, 16, batch_first=True)
    actor = build_actor(rnn)
    critic = ValueOperator(MLP(16, 1, num_cells=[16]), in_keys=["features"])
    critic = TensorDictSequential(RecurrentModule(rnn, in_key="observation", out_key="features"), critic)
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.01)
    advantage = GAE(gamma=0.95, lmbda=0.95, value_network=critic)
    optimiser = torch.optim.Adam(loss.parameters(), 1e-2)
    collector = Collector(build_env(actor, 8), actor, frames_per_batch=8 * 16, total_frames=8 * 16 * 25)
    for data in collector:
        for _ in range(4):
            advantage(data)
            with set_recurrent_mode(True):
                terms = loss(data)
            optimiser.zero_grad()
            sum(terms[name] for name in ("loss_objective", "loss_critic", "loss_entropy")).backward()
            optimiser.step()
        reward = data["next", "reward"][data["next", "done"]].mean()
    collector.shutdown()
    assert reward > 0.9


def test_state_dict_is_that_of_the_layer(tmp_path):
    module = build("bmru")
    torch.save(module.state_dict(), tmp_path / "memory.pt")
    other = build("bmru")
    other.load_state_dict(torch.load(tmp_path / "memory.pt"))
    data = rollout()
    with set_recurrent_mode(True):
        assert torch.equal(module(data.clone())["features"], other(data.clone())["features"])
    assert set(module.state_dict()) == {f"rnn.{name}" for name in module.rnn.state_dict()}


def test_wrong_arguments():
    rnn = BMRU(3, 6, batch_first=True)
    with pytest.raises(ValueError, match="batch_first=True"):
        RecurrentModule(BMRU(3, 6), in_key="x", out_key="y")
    with pytest.raises(ValueError, match="either in_key or in_keys"):
        RecurrentModule(rnn, in_key="x", in_keys=["x", "h"], out_key="y")
    with pytest.raises(ValueError, match="a value and a state"):
        RecurrentModule(rnn, in_keys=["x"], out_key="y")
    with pytest.raises(KeyError, match="InitTracker"):
        RecurrentModule(rnn, in_key="x", out_key="y")(TensorDict({"x": torch.zeros(2, 3)}, [2]))
    with pytest.raises(RuntimeError, match="primer"):
        RecurrentModule(rnn, in_key="x", out_keys=["y", "h"]).make_tensordict_primer()
