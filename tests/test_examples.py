"""The programs in examples/ do what their docstrings say."""

import dataclasses
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from multistable import BMRU

FOLDER = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def client(monkeypatch):
    """Import a program of examples/clients by name, or skip the test if it needs a package that is not installed."""
    monkeypatch.syspath_prepend(FOLDER / "clients")

    def load_client(name: str, needs: str | None = None) -> ModuleType:
        if needs is not None:
            pytest.importorskip(needs, reason=f"examples/clients/{name}.py needs {needs}")
        return importlib.import_module(name)

    return load_client


@pytest.mark.parametrize("name", ["characters", "forecast", "keywords"])
def test_clients_train_every_model(name, client, monkeypatch, capsys):
    """A few steps of small models: every line of the table is there, with about as many parameters."""
    compare, program = client("compare"), client(name)
    task = dataclasses.replace(program.TASK, steps=2)
    monkeypatch.setattr(compare, "SEEDS", (0,))
    monkeypatch.setattr(compare, "WIDTH", 16)
    compare.compare(compare.Program("quality", task.train))
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split("`")[1] for line in lines] == list(compare.KINDS)
    sizes = [int(line.split("|")[3].replace(",", "")) for line in lines]
    assert max(sizes) <= 1.25 * min(sizes)  # the width of a hybrid is a multiple of 4


@pytest.mark.parametrize("kind", ["nn.GRU", "nn.LSTM", 'Stack("hybrid")'])
def test_agent_is_trained_at_small_size(kind, client, monkeypatch):
    agent = client("agent", needs="gymnasium")
    monkeypatch.setattr(agent, "LENGTH", 32)
    trained = agent.train(kind, 2e-3, 0, 16, updates=2)
    assert 1 <= trained.score <= 500


def test_agent_sees_the_same_in_rollout_and_training(client):
    """Probabilities and values of single steps are those of the whole rollout with `reset`, across episodes."""
    agent = client("agent", needs="gymnasium")
    torch.manual_seed(0)
    net = agent.build('Stack("hybrid")', 2, 3, 0, 16)
    carts, start, steps = agent.Carts(4, 0), net.rnn.initial_state((4,), torch.zeros(())), []
    state = start
    for _ in range(64):
        step, state = carts.step(net, state)
        steps.append(step)
    rollout = agent.Step(*(torch.stack(parts, dim=1) for parts in zip(*steps, strict=True)))
    assert rollout.first[:, 1:].any(), "an episode ends within the rollout"
    assert torch.equal(rollout.over[:, 1:], rollout.ended[:, :-1])
    assert torch.equal(rollout.first[:, 2:], rollout.ended[:, :-2])
    with torch.no_grad():
        out = net.head(net.rnn(rollout.x, start, reset=rollout.first)[0])
    torch.testing.assert_close(out[..., 2], rollout.value, rtol=0, atol=1e-4)


def test_advantages_end_with_the_episode(client):
    agent = client("agent", needs="gymnasium")
    no, yes, one = torch.zeros(1, 4, dtype=torch.bool), torch.tensor([[True]]), torch.ones(1, 4)
    fallen = torch.cat([no[:, :1], yes, no[:, :2]], dim=1)
    over = torch.cat([no[:, :2], yes, no[:, :1]], dim=1)
    rollout = agent.Step(one, no, over, one, one, 0 * one, one * ~over, fallen, fallen)
    gains = agent.advantages(rollout, torch.tensor([5.0]))
    decay = agent.DISCOUNT * agent.SMOOTHING
    last = 1 + agent.DISCOUNT * 5
    torch.testing.assert_close(gains, torch.tensor([[1 + decay, 1.0, 0.0, last]]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # by Lightning's imports
def test_lightning_module_is_trained_at_small_size(client, monkeypatch):
    """Sixty steps are enough for a BMRU to hold the bit of short sequences."""
    program = client("lightning_module", needs="lightning")
    monkeypatch.setattr(program, "LENGTH", 20)
    trained = program.train("BMRU", 6e-3, 0, 16, steps=60)
    assert trained.score > 0.9


@pytest.mark.parametrize(("name", "package"), [("agent", "gymnasium"), ("lightning_module", "lightning")])
def test_clients_say_which_package_is_missing(name, package):
    code = f"import sys; sys.modules['{package}'] = None; import {name}; {name}.Carts(1, 0)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER / "clients", env={**os.environ, "PYTHONPATH": "."},
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.strip().endswith(f"pip install {package}")
    assert "Traceback" not in result.stderr


def test_ppo_memory_says_which_package_is_missing():
    code = "import sys; sys.modules['gymnasium'] = None; import ppo_memory"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert result.stderr == "this program needs gymnasium: pip install '.[rl]'\n"


def test_clients_are_short():
    for path in (FOLDER / "clients").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 150, path.name


@pytest.mark.extra
def test_three_states_are_held():
    """With half the training and a tenth of the steps of the example, which takes half a minute itself."""
    example = load("three_states")
    assert example.count_errors(example.train(steps=75), 10_000) == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_flip_flops_in_c_match_pytorch():
    """One different gate would change the outputs by at least 0.1."""
    example = load("flip_flops")
    wrong, difference, size, _ = example.compare(example.train(), 100_000)
    assert wrong <= 300, "one in a thousand"
    assert difference < 1e-6
    assert size == 2


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_flip_flops_in_c_start_from_zero_and_write_at_equality():
    """Candidate equal to threshold, the sign of zero, and units never written to."""
    example = load("flip_flops")
    torch.manual_seed(0)
    model = example.FlipFlops()
    with torch.no_grad():
        model.rnn.weight_ih_l0.copy_(torch.eye(3).repeat(6, 1)[:16])
        model.rnn.bias_ih_l0.zero_()
        model.rnn.bias_ih_l0[12:] = 1.0  # units 4 to 7: |x| >= |x + 1|, up to -0.5
        x = torch.tensor([[2.0, 2.0, 2.0], [0.0, -0.0, 0.0], [-0.5, -0.25, -1.0], [-0.25, -0.5, 1.0]])
        y, _, _ = example.run_c(example.to_c(model), x)
        torch.testing.assert_close(y, model(x[None])[0], rtol=0, atol=1e-6)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_a_layer_of_other_sizes_and_default_thresholds_in_c():
    """A reader's own model: its sizes are not those of the flip-flops, and its thresholds have offsets."""
    example = load("flip_flops")
    torch.manual_seed(0)
    model = example.FlipFlops()
    model.rnn, model.out = BMRU(5, 12, batch_first=True), torch.nn.Linear(12, 2)
    x = torch.randn(1000, 5)
    y, size, _ = example.run_c(example.to_c(model), x, 2)
    with torch.no_grad():
        torch.testing.assert_close(y, model(x[None])[0], rtol=0, atol=1e-6)
    assert size == 4
    for other in ({"num_layers": 2}, {"bidirectional": True}, {"start": "branch"}, {"bias": False}):
        model.rnn = BMRU(5, 12, batch_first=True, **other)
        with pytest.raises(ValueError, match="rnn must have one layer, one direction, start='zero' and a bias, got BM"):
            example.to_c(model)


@pytest.mark.extra
def test_a_cut_sequence_gives_the_gradients_of_one_process(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = os.environ | {"PYTHONPATH": str(FOLDER.parent / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, FOLDER / "cut_sequence.py"], capture_output=True, text=True, env=env, timeout=200, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    loss, gradients = re.findall(r"by (\S+) and (\S+)", done.stdout)[0]
    assert float(loss) < 1e-6
    assert float(gradients) < 1e-5


@pytest.fixture(scope="module")
def ppo() -> ModuleType:
    pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install '.[rl]'")
    return load("ppo_memory")  # once: it registers its environment


def test_ppo_recomputes_what_it_played(ppo):
    """Two rollouts, the second with carried states: the policy of the whole rollout is that of its single steps."""
    settings = ppo.Settings(envs=4, steps=210, rollouts=1, hidden=8)  # episodes have at most 200
    agent, _ = ppo.train(settings, say=lambda _: None)
    envs = ppo.make_envs(settings)
    x, _ = envs.reset(seed=1)
    now = ppo.Now(torch.as_tensor(x), torch.ones(4, dtype=torch.bool), None)
    for _ in range(2):
        rollout, now, _ = ppo.collect(agent, envs, now, settings)
        assert rollout.reset[:, 1:].any()
        logits, value, _ = agent(rollout.x, rollout.state, rollout.reset)
        again = torch.distributions.Categorical(logits=logits).log_prob(rollout.action)
        torch.testing.assert_close(again, rollout.log_prob, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(value, rollout.value, rtol=1e-4, atol=1e-5)
        first = rollout.x[:, :, 1] * (rollout.x[:, :, 0] + rollout.x[:, :, 2]) > 0
        assert first[rollout.reset].all(), "every episode begins with its clue"


@pytest.mark.parametrize("limit", [2, 3])
def test_ppo_adds_the_value_of_the_rest_only_where_an_episode_was_cut_off(ppo, limit):
    """Not where it ended in the very step in which it would have been cut off."""

    class EndsAtStep3(ppo.gymnasium.Env):
        observation_space = ppo.gymnasium.spaces.Box(0, 1, (1,))
        action_space = ppo.gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            self.time = 0
            return np.zeros(1, dtype=np.float32), {}

        def step(self, action):
            self.time += 1
            return np.zeros(1, dtype=np.float32), 0.0, self.time == 3, False, {}

    ppo.gymnasium.register(f"Limit{limit}-v0", EndsAtStep3, max_episode_steps=limit)
    settings = ppo.Settings(env=f"Limit{limit}-v0", envs=2, steps=6, hidden=8)
    envs = ppo.make_envs(settings)
    agent = ppo.Agent(envs, settings)
    torch.nn.init.constant_(agent.critic.bias, 100)
    now = ppo.Now(torch.as_tensor(envs.reset(seed=0)[0]), torch.ones(2, dtype=torch.bool), None)
    rollout, _, _ = ppo.collect(agent, envs, now, settings)
    target = (rollout.value + rollout.advantage)[:, limit - 1]  # the reward, 0, and the value of the rest
    if limit == 3:
        torch.testing.assert_close(target, torch.zeros(2))
    else:
        assert (target > 90).all()


@pytest.mark.extra
def test_ppo_remembers_the_clue(ppo):
    _, curve = ppo.train(ppo.Settings(rollouts=30), say=lambda _: None)
    assert max(curve[:3]) < 2.2  # guessing: 4 or -0.1
    assert curve[-1] > 3.3
