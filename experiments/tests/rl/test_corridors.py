"""Long corridors in parallel over time: the same verdicts as walking step by step."""

import pytest
import torch

pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install './experiments[rl]'")

from multistable_experiments.rl import corridors
from multistable_experiments.rl.agent import Agent
from multistable_experiments.rl.corridors import walk
from multistable_experiments.rl.tmaze import DOWN, FORWARD, UP, TMaze


class Scripted(torch.nn.Module):
    """Remembers the clue for ``span`` steps and turns by it, later always up; walks back once at step ``stray``."""

    def __init__(self, span: int, stray: int = -1) -> None:
        super().__init__()
        self.span, self.stray, self.memory = span, stray, self

    def initial_state(self, shape, like):
        return like.new_zeros(1, *shape, 2)  # clue, time

    def forward(self, x, state, reset=None):
        outputs, (clue, t) = [], state[0].unbind(-1)
        for seen in x.unbind(1):
            clue = torch.where(t == 0, torch.where(seen[:, 0] == 1, DOWN, UP), clue)
            turn = torch.where(t <= self.span, clue, UP)
            at_end = (seen[:, 1] == 1) & (t > 0)
            action = torch.where(at_end, turn, torch.where(t == self.stray, 3, FORWARD))
            outputs.append(torch.nn.functional.one_hot(action.long(), 4).float())
            t = t + 1
        return torch.stack(outputs, dim=1), x[..., 0], torch.stack([clue, t], dim=-1)[None]


@pytest.mark.parametrize("noise", [False, True])
def test_how_long_a_memory_lasts(noise, monkeypatch):
    """At lengths up to its span all are right, and beyond it those whose turn is up; chunks do not matter."""
    monkeypatch.setattr(corridors, "CHUNK", 12)
    near, at, beyond = walk(Scripted(span=20), noise, lengths=(1, 20, 21), episodes=4)
    count = 4 if noise else 2
    assert (near.right, near.wrong, near.strayed) == (at.right, at.wrong, at.strayed) == (count, 0, 0)
    assert (beyond.right, beyond.wrong, beyond.strayed) == (count // 2, count // 2, 0)
    assert (beyond.length, beyond.success) == (21, 0.5)


def test_one_step_that_is_not_forward_fails():
    before, after = walk(Scripted(span=100, stray=7), True, lengths=(7, 8), episodes=4)
    assert (before.right, before.strayed) == (4, 0)
    assert (after.right, after.wrong, after.strayed) == (0, 0, 4)


def test_fewer_walk_on_where_the_agent_guesses_and_far_away():
    agent = Scripted(span=3)
    found = walk(agent, True, lengths=(2, 4, 6), episodes=50)
    assert [each.right + each.wrong for each in found] == [50, 50, 20]


def test_agrees_with_steps_in_the_environment():
    """An agent with random weights that prefers to walk: its turns, one step at a time, in the maze itself."""
    torch.manual_seed(0)
    agent = Agent("bmru", 3, 4, 8).double()
    with torch.no_grad():
        torch.nn.init.orthogonal_(agent.actor.weight, 1.0)
    turns = {}
    for length in (1, 5):
        for seed in range(6):
            maze = TMaze(length)
            x, _ = maze.reset(seed=seed)
            clue, state, moves = tuple(x), agent.memory.initial_state((1,), torch.zeros(1, 3).double()), []
            for t in range(length + 1):
                outputs, _, state = agent.step(torch.tensor(x)[None].double(), state, torch.tensor([t == 0]))
                moves.append(int(outputs.argmax()))
                x = maze.step(FORWARD if t < length else moves[-1])[0]
            goal = UP if clue == (0, 1, 1) else DOWN
            forward = all(move == FORWARD for move in moves[:-1])
            turns[length, goal] = "strayed" if not forward else "right" if moves[-1] == goal else "wrong"
    found = walk(agent.float(), False, lengths=(1, 5))
    for each in found:
        expected = [turns[each.length, goal] for goal in (UP, DOWN)]
        assert [each.right, each.wrong, each.strayed] == [expected.count(w) for w in ("right", "wrong", "strayed")]
