"""Tasks on Ray and on Slurm's stand-in (``engines.py``): workers and drivers die, and nothing is lost."""

import math
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from multistable_experiments import engines
from multistable_experiments.engines import EngineError, Resources, run_all
from multistable_experiments.paper import store
from multistable_experiments.paper.reproduce import reproduce
from sources import environment
from training_runs import QUIET

pytestmark = [pytest.mark.extra, pytest.mark.filterwarnings("ignore")]
COPY = ["copy-first"]


def square(x: int) -> int:
    if x < 0:
        raise ValueError(f"x must not be negative, got {x}")
    return x * x


def die_once(folder: str) -> int:
    """Kill this process in the first attempt; return the number of attempts."""
    attempts = Path(folder) / "attempts"
    attempts.mkdir(exist_ok=True)
    (attempts / str(len(list(attempts.iterdir())))).touch()
    if len(list(attempts.iterdir())) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(list(attempts.iterdir()))


@pytest.fixture(scope="module")
def ray():
    """A Ray of two cores for all tests of this file."""
    ray = pytest.importorskip("ray")
    path = {"PYTHONPATH": os.pathsep.join([environment()["PYTHONPATH"], str(Path(__file__).parent)])}
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": path})
    yield ray
    ray.shutdown()


def test_results_and_errors_come_back_from_ray(ray, tmp_path):
    found = dict(run_all("ray", square, [2, -1, 3], Resources(), tmp_path))
    assert (found[2], found[3]) == (4, 9)
    assert isinstance(found[-1], EngineError)
    assert str(found[-1]) == "ValueError: x must not be negative, got -1"


def test_a_task_whose_worker_is_killed_runs_again(ray, tmp_path):
    assert [result for _, result in run_all("ray", die_once, [str(tmp_path)], Resources(), tmp_path)] == [2]


def test_experiments_on_ray_equal_those_of_one_process(ray, tmp_path):
    places = {"alone": None, "ray": "ray"}
    for place, engine in places.items():
        lines: list[str] = []
        folders = {"out": tmp_path / place / "runs", "results": tmp_path / place / "results"}
        words = {"scale": "smoke", "recipes": ("tuned",), "options": QUIET, "say": lines.append}
        summary = reproduce(COPY, **folders, **words, on=engine)
        assert summary.exit_code == 0, lines
        assert lines[-1] == f"{summary.planned} of {summary.planned} are there"
    alone, on_ray = (
        {record.name: record.metrics for record in store.load(tmp_path / place / "results", "smoke")}
        for place in places
    )
    assert alone == on_ray


def test_a_killed_driver_loses_no_finished_run(tmp_path):
    pytest.importorskip("ray")
    folders = ["--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    options = ["--scale", "smoke", "--recipe", "tuned", "--device", "cpu", "--on", "ray", *folders]
    command = [sys.executable, "-m", "multistable_experiments", "reproduce", *COPY, *options]
    driver = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not (finished := {*(tmp_path / "results").rglob("*.json")}) and time.monotonic() < deadline:
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    assert finished, "no run was finished before the deadline"
    kept = {path: path.read_bytes() for path in finished}
    again = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stdout + again.stderr[-2000:]
    assert all(path.read_bytes() == content for path, content in kept.items())


def test_jobs_of_submitit(tmp_path, monkeypatch):
    """By its executor on this machine, which stands for Slurm."""
    pytest.importorskip("submitit")
    monkeypatch.setattr(engines, "on_slurm", partial(engines.on_slurm, cluster="local"))
    found = dict(run_all("slurm", math.sqrt, [4, -1], Resources(), tmp_path / "logs"))
    assert found[4] == 2
    assert str(found[-1]) == "ValueError: math domain error"
    assert list((tmp_path / "logs").glob("*_log.err")), "there is a log for each job"


def test_a_machine_without_slurm(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="slurm must be on this machine, but there is no command srun"):
        list(run_all("slurm", math.sqrt, [4], Resources(), tmp_path / "logs"))


@pytest.mark.parametrize(
    ("resources", "message"), [({"cpus": 0}, "at least one CPU"), ({"gpus": -1}, "no negative number of GPUs")]
)
def test_bad_resources_raise(resources, message):
    with pytest.raises(ValueError, match=message):
        Resources(**resources)
