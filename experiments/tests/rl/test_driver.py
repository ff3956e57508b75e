"""Several runs at once, with a deadline, a plan that grows, and no result overwritten."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install './experiments[rl]'")

from multistable_experiments.files import read_json
from multistable_experiments.rl.checkpoint import OutOfTimeError
from multistable_experiments.rl.driver import Driver
from multistable_experiments.rl.results import stored
from multistable_experiments.training.processes import LostProcessError
from sources import environment

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Sleep:
    number: int
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"sleep-{self.number}"


def measure(run, checkpoint):
    """Sleep until it is done or the deadline over; what is left of it is in the checkpoint."""
    left = float(checkpoint.path.read_text()) if checkpoint.path.exists() else run.seconds
    while left > 0:
        if checkpoint.deadline is not None and time.time() > checkpoint.deadline:
            checkpoint.path.parent.mkdir(exist_ok=True)
            checkpoint.path.write_text(str(left))
            raise OutOfTimeError
        time.sleep(0.02)
        left -= 0.02
    return {"begun": time.time() - run.seconds, "ended": time.time()}


@pytest.fixture(params=[1, 2], ids=["one by one", "side by side"])
def driver(request, tmp_path):
    return Driver(tmp_path / "results", tmp_path / "runs", {"commit": "abc"}, request.param)


def names(pairs):
    return [run.name for run, _ in pairs]


def test_all_runs_once(driver):
    runs = [Sleep(i) for i in range(3)]
    assert sorted(names(driver.compute(lambda: runs, measure))) == ["sleep-0", "sleep-1", "sleep-2"]
    first = read_json(driver.results / "sleep-1.json")
    assert first["machine"] == {"commit": "abc", "earlier_commits": []}
    assert names(driver.compute(lambda: runs, measure)) == ["sleep-0", "sleep-1", "sleep-2"]
    assert read_json(driver.results / "sleep-1.json") == first


def test_results_of_other_settings_are_not_overwritten(driver):
    list(driver.compute(lambda: [Sleep(0)], measure))
    with pytest.raises(ValueError, match=r"other settings \(seconds\), which is not overwritten"):
        list(driver.compute(lambda: [Sleep(0, 1.0)], measure))


def test_the_plan_grows_with_the_results(driver):
    def plan():
        return [Sleep(0), *[Sleep(1)] * (stored(Sleep(0), driver.results) is not None)]

    assert names(driver.compute(plan, measure)) == ["sleep-0", "sleep-1"]


def test_what_is_left_at_the_deadline_goes_on(driver):
    runs = [Sleep(0), Sleep(1, 60.0)]
    assert names(driver.compute(lambda: runs[:1], measure)) == ["sleep-0"]
    late = replace(driver, deadline=time.time() + 1)
    assert names(late.compute(lambda: runs, measure)) == ["sleep-0"]
    path = driver.checkpoints / "sleep-1.pickle"
    assert float(path.read_text()) <= 60
    path.write_text("0.1")
    assert names(driver.compute(lambda: runs, measure)) == ["sleep-0", "sleep-1"]
    assert not path.exists()
    assert names(replace(driver, deadline=0.0).compute(lambda: [*runs, Sleep(2)], measure)) == ["sleep-0", "sleep-1"]


def die(run, checkpoint):
    os._exit(7)


def test_a_process_that_dies_is_reported(tmp_path):
    """As for lack of memory."""
    with pytest.raises(LostProcessError, match="a process died that computed a run"):
        list(Driver(tmp_path, tmp_path, {}, 2).compute(lambda: [Sleep(0)], die))


def say_and_wait(run, checkpoint):
    os.write(1, b"begun\n")  # at once: print writes the end of the line on its own, and there are two workers
    time.sleep(run.seconds)


KILLED = """
from pathlib import Path
from test_driver import Driver, Sleep, say_and_wait
if __name__ == "__main__":
    list(Driver(Path(), Path(), {}, 2).compute(lambda: [Sleep(0, 60.0), Sleep(1, 60.0)], say_and_wait))
"""


@pytest.mark.extra
def test_workers_end_with_a_command_that_is_killed(tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    env = environment()
    env["PYTHONPATH"] += os.pathsep + os.pathsep.join(map(str, (HERE, HERE.parent)))
    with subprocess.Popen(
        [sys.executable, "killed.py"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as command:
        try:
            assert command.stdout.readline() == "begun\n"
            command.kill()
            command.communicate(timeout=20)  # until the last process that has this output ends
        finally:
            with suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)


@pytest.mark.extra
def test_two_runs_at_a_time(tmp_path):
    driver = Driver(tmp_path, tmp_path, {}, 2)
    (_, a), (_, b) = driver.compute(lambda: [Sleep(0, 3.0), Sleep(1, 3.0)], measure)
    assert a["begun"] < b["ended"]
    assert b["begun"] < a["ended"]
