"""Layers in RecurrentPPO of sb3-contrib: resets on the right step, states from rollout to rollout, files."""

from functools import partial

import pytest
import torch

from layer_names import NAMES
from multistable import BMRU, Stack
from multistable.layers import find_layer

pytestmark = pytest.mark.extra
pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed: pip install '.[rl]'")

import numpy as np  # noqa: E402
from sb3_contrib import RecurrentPPO  # noqa: E402
from sb3_contrib.common.recurrent.type_aliases import RNNStates  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402

from clue import Clue  # noqa: E402
from multistable.rl.sb3 import RecurrentPolicy  # noqa: E402


def build(rnn, n_steps: int = 6, envs: int = 3, length: int = 4, size: int = 8, **options) -> RecurrentPPO:
    env = make_vec_env(lambda: Clue(length), envs, seed=0)
    settings = {"rnn": rnn, "lstm_hidden_size": size, **options.pop("policy", {})}
    return RecurrentPPO(
        RecurrentPolicy, env, n_steps=n_steps, batch_size=n_steps * envs, policy_kwargs=settings, seed=0, device="cpu",
        **options,
    )  # fmt: skip


def layer(name: str):
    kind, fixed = (Stack, {"cell": "hybrid"}) if name == "stack" else find_layer(name)
    return partial(kind, **fixed)


@pytest.mark.parametrize("name", [*NAMES, "stack"])
def test_rollouts_are_recomputed(name):
    """The collector's actions, one call per step, and those of one call for all sequences have equal probabilities.

    Episodes have 4 steps and rollouts 6, so that the second one starts inside an episode, with a carried state."""
    rnn = layer(name)
    model = build(lambda d, n, **options: rnn(input_size=d, hidden_size=n, **options), policy={"n_lstm_layers": 2})
    for _ in range(2):
        model.learn(18, reset_num_timesteps=False)  # one rollout and its update
        model._setup_learn(18, reset_num_timesteps=False)
        buffer = model.rollout_buffer
        model.collect_rollouts(model.env, Silent(model), buffer, 6)
        marks = buffer.episode_starts.copy()
        assert np.array_equal(marks > 0, buffer.observations[..., 0] != 0), "marks are where clues are seen"
        data = next(buffer.get())
        _, again, _ = model.policy.evaluate_actions(
            data.observations, data.actions.long().flatten(), data.lstm_states, data.episode_starts
        )
        used = data.mask > 0
        torch.testing.assert_close(again[used], data.old_log_prob[used], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rnn", ["hybrid", Stack])
def test_a_layer_that_cannot_be_built_is_refused(rnn):
    with pytest.raises(TypeError, match=r"rnn must be a layer's class, or functools.partial\(Stack, 'hybrid'\), got "):
        build(rnn)
    build(partial(Stack, "hybrid"))


class Silent:
    """A callback that does nothing."""

    def __init__(self, model):
        self.model = model

    def __getattr__(self, name):
        return lambda *args: True


@pytest.mark.parametrize("name", ["bmru", "lru", "lstm", "fsm:3", "stack"])
def test_episodes_inside_a_sequence(name):
    """A mark in the middle of a sequence: outputs from there on are those of a new sequence."""
    rnn = layer(name)
    policy = build(lambda d, n, **options: rnn(input_size=d, hidden_size=n, **options)).policy
    memory = policy.lstm_actor
    x, marks = 0.1 * torch.randn(2 * 5, 2), torch.zeros(2, 5)
    x[2] = 5.0  # step 2 of the first sequence: written if it is not forgotten at step 3
    marks[0, 3] = 1
    state = memory.rnn.initial_state((2,), x)
    output, _ = policy._process_sequence(x, (state, state), marks.flatten(), memory)
    expected, _ = memory.rnn(x.view(2, 5, 2)[:1, 3:])
    torch.testing.assert_close(output.view(2, 5, -1)[:1, 3:], expected)
    late, _ = policy._process_sequence(x, (state, state), marks.roll(1).flatten(), memory)
    assert not torch.allclose(late, output)


def test_ppo_learns_the_clue():
    """Delay of 6 steps; without memory the mean reward is 0."""
    torch.manual_seed(0)
    model = build(BMRU, n_steps=24, envs=8, length=6, size=16, learning_rate=5e-3, ent_coef=0.01, n_epochs=4)
    model.learn(24 * 8 * 25)
    env = model.get_env()
    observation, state, starts, rewards = env.reset(), None, np.ones(8, dtype=bool), []
    for _ in range(24):
        action, state = model.predict(observation, state, starts, deterministic=True)
        observation, reward, starts, _ = env.step(action)
        rewards += reward[starts].tolist()
    assert len(rewards) == 32
    assert np.mean(rewards) > 0.9


@pytest.mark.parametrize("shared", [False, True])
def test_saved_and_loaded(tmp_path, shared):
    """The whole agent and the policy alone: the same actions from the same states."""
    policy = {"shared_lstm": shared, "enable_critic_lstm": not shared, "n_lstm_layers": 2}
    model = build(partial(Stack, "hybrid"), policy=policy)
    model.learn(18)
    model.save(tmp_path / "agent")
    model.policy.save(tmp_path / "policy.pt")
    agent, alone = (
        RecurrentPPO.load(tmp_path / "agent", device="cpu"),
        RecurrentPolicy.load(tmp_path / "policy.pt", "cpu"),
    )
    observation = torch.randn(3, 2)
    state = torch.randn(2, 3, 8)
    states = RNNStates((state, state), (state, state))
    expected = model.policy(observation, states, torch.zeros(3), deterministic=True)
    for other in (agent.policy, alone):
        found = other(observation, states, torch.zeros(3), deterministic=True)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
        assert torch.equal(found[3].pi[1], expected[3].pi[1])
    agent.set_env(make_vec_env(Clue, 3))
    agent.learn(18)  # its optimiser has the layer's parameters


def test_the_optimiser_has_the_parameters_of_the_layer_and_no_others():
    model = build(BMRU)
    held = {id(p) for group in model.policy.optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.policy.parameters()}
    before = model.policy.lstm_actor.rnn.weight_ih_l0.clone()
    model.learn(18)
    assert not torch.equal(before, model.policy.lstm_actor.rnn.weight_ih_l0)


def test_predict_without_a_state_starts_an_episode():
    """A machine starts in its first state, which is not zero."""
    model = build(partial(find_layer("fsm:3")[0], n_states=3))
    observation = np.zeros((3, 2), dtype=np.float32)
    _, state = model.predict(observation, deterministic=True)
    rnn = model.policy.lstm_actor.rnn
    expected = rnn.step(torch.zeros(3, 2), None)[1]
    torch.testing.assert_close(torch.as_tensor(state[1]), expected)
