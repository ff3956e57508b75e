"""PPO with memory: recomputed rollouts, advantages, and a small T-maze that is learned."""

import time

import pytest
import torch

pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install './experiments[rl]'")

from gymnasium import spaces

from multistable_experiments.rl.agent import CELLS, Agent
from multistable_experiments.rl.corridors import walk
from multistable_experiments.rl.ppo import Learner, Settings, advantages, policy_of, policy_outputs
from multistable_experiments.rl.tmaze import TMazes
from multistable_experiments.threads import one_thread

SMALL = Settings(envs=6, steps=20, rollouts=3, batches=2)


@pytest.mark.parametrize("cell", [*CELLS, "mixed"])
def test_rollouts_are_recomputed(cell):
    """Before its first update, the policy of the whole rollout is the one that played it, step by step."""
    torch.manual_seed(0)
    agent = Agent(cell, 3, 4, 8)
    torch.nn.init.orthogonal_(agent.actor.weight)
    learner = Learner(agent, TMazes(6, longest=3, noise=True, limit=9), SMALL, seed=0)
    for i in range(2):
        rollout, _ = learner.collect()
        assert rollout.reset[:, 1:].any()
        assert i == 0 or not rollout.reset[:, 0].all(), "the second rollout enters with states"
        outputs, value, _ = agent(rollout.x, rollout.state, rollout.reset)
        again = policy_of(outputs, spaces.Discrete(4)).log_prob(rollout.action)
        torch.testing.assert_close(again, rollout.log_prob, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(value, rollout.value, rtol=1e-4, atol=1e-5)
        if cell != "none":
            late = agent(rollout.x, rollout.state, rollout.reset.roll(1, dims=1))[0]
            assert not torch.allclose(late, outputs, atol=1e-3), "one step late is noticed"


def test_gradient_reaches_the_first_step_of_a_rollout():
    """The last value depends on the first observation, 19 steps before, if no episode ends in between."""
    agent = Agent("lru", 3, 4, 8)
    x = torch.randn(2, 20, 3, requires_grad=True)
    reset = torch.zeros(2, 20, dtype=torch.bool)
    reset[1, 10] = True
    agent(x, agent.memory.initial_state((2,), x[:, 0]), reset)[1][:, -1].sum().backward()
    assert x.grad is not None
    assert (x.grad[0, 0] != 0).all()
    assert (x.grad[1, :10] == 0).all()
    assert (x.grad[1, 10] != 0).all()


@pytest.mark.parametrize("apart", [False, True])
def test_a_critic_apart_does_not_train_the_memory(apart):
    torch.manual_seed(0)
    agent, x, reset = Agent("lru", 3, 4, 8, apart=apart), torch.randn(2, 5, 3), torch.zeros(2, 5, dtype=torch.bool)
    outputs, value, _ = agent(x, agent.memory.initial_state((2,), x[:, 0]), reset)
    value.sum().backward(retain_graph=True)
    assert all((parameter.grad is None) == apart for parameter in agent.memory.parameters())
    assert agent.critic.weight.grad.abs().sum() > 0
    outputs.sum().backward()
    assert all(parameter.grad is not None for parameter in agent.memory.parameters())


def test_advantages_are_sums_of_later_surprises():
    """Against the definition, with an end in the middle."""
    torch.manual_seed(0)
    reward, value, after, ended = torch.randn(1, 5), torch.randn(1, 5), torch.randn(1), torch.zeros(1, 5, dtype=bool)
    ended[0, 2] = True
    settings = Settings(gamma=0.9, trace=0.8)
    following = [value[0, 1], value[0, 2], 0, value[0, 4], after[0]]
    delta = [reward[0, t] + 0.9 * following[t] - value[0, t] for t in range(5)]
    expected = [delta[0] + 0.72 * delta[1] + 0.72**2 * delta[2], delta[1] + 0.72 * delta[2], delta[2]]
    expected += [delta[3] + 0.72 * delta[4], delta[4]]
    torch.testing.assert_close(advantages(reward, value, ended, after, settings)[0], torch.stack(expected))


@pytest.mark.parametrize(
    "space", [spaces.Discrete(3), spaces.MultiDiscrete([2, 4]), spaces.Box(-1, 1, (2,))], ids=["one", "several", "box"]
)
def test_policies(space):
    """Samples lie in the space, and probabilities of the choices multiply."""
    torch.manual_seed(0)
    policy = policy_of(torch.randn(7, policy_outputs(space)), space)
    action = policy.sample()
    assert policy.log_prob(action).shape == policy.entropy().shape == (7,)
    if isinstance(space, spaces.Box):
        assert action.shape == (7, 2)
    else:
        assert all(space.contains(each.numpy()) for each in action)
    if isinstance(space, spaces.MultiDiscrete):
        total = sum(policy.log_prob(torch.tensor([[i, j]] * 7)).exp() for i in range(2) for j in range(4))
        torch.testing.assert_close(total, torch.ones(7))


def test_a_truncated_episode_gets_the_value_of_what_would_follow():
    agent = Agent("bmru", 3, 4, 8)
    torch.nn.init.constant_(agent.critic.bias, 100)
    learner = Learner(agent, TMazes(6, longest=3, shortest=3, limit=2), SMALL, seed=0)
    rollout, _ = learner.collect()
    assert (rollout.value + rollout.advantage).min() > 50  # every episode is cut off before it can end


def test_an_episode_that_ends_at_its_limit_gets_no_value_of_what_would_follow():
    """POPGym's cart poles, Concentration and Battleship can say both in one step."""

    class EndAtLimit(TMazes):
        def step(self, actions):
            x, reward, terminated, truncated, info = super().step(actions)
            return x, reward, terminated | truncated, truncated, info

    agent = Agent("bmru", 3, 4, 8)
    torch.nn.init.constant_(agent.critic.bias, 100)
    rollout, _ = Learner(agent, EndAtLimit(6, longest=3, shortest=3, limit=2), SMALL, seed=0).collect()
    last = rollout.reset.roll(-1, dims=1)[:, :-1]  # a step before the first one of another episode
    target = (rollout.value + rollout.advantage)[:, :-1]
    assert target[last].abs().max() < 1
    assert last.any()


@pytest.mark.extra
def test_a_small_t_maze_is_learned():
    """Corridors of up to 8 steps in training; in less than 20 s a BMRU is right at 10,000 steps, with noise."""
    start = time.process_time()
    torch.manual_seed(0)
    with one_thread():
        agent = Agent("bmru", 3, 4, 32)
        curve = list(Learner(agent, TMazes(32, longest=8, noise=True), Settings(rollouts=40), seed=0).train())
        seconds = time.process_time() - start
        assert curve[0]["right"] < 0.7
        assert curve[-1]["right"] > 0.97
        [result] = walk(agent.eval(), noise=True, lengths=(10_000,), episodes=20)
    assert result.right == 20
    assert seconds < 20
