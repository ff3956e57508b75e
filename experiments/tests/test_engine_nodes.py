"""A node of a Ray cluster dies (``engines.py``): its tasks resume on another one. GPUs are shared by fractions."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from multistable_experiments.engines import Resources, run_all
from multistable_experiments.paper import store
from multistable_experiments.paper.reproduce import reproduce
from multistable_experiments.training.loop import train_run
from sources import environment
from training_runs import QUIET, copy_first_run, numbers

pytestmark = [pytest.mark.extra, pytest.mark.filterwarnings("ignore")]
RUN = copy_first_run(epochs=8)


@pytest.fixture(scope="module")
def cluster():
    """Two nodes on this machine: a head without cores, and one on which tasks run."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        node = [cluster.add_node(num_cpus=4, num_gpus=1)]
        path = {"PYTHONPATH": os.pathsep.join([environment()["PYTHONPATH"], str(Path(__file__).parent)])}
        ray.init(cluster.address, log_to_driver=False, runtime_env={"env_vars": path})
        yield cluster, node
    finally:
        ray.shutdown()
        cluster.shutdown()


def replace_node(cluster, node) -> None:
    """Kill the node, with its workers, and add another one."""
    cluster.remove_node(node.pop(), allow_graceful=False)
    node.append(cluster.add_node(num_cpus=4, num_gpus=1))


def train_slowly(folder: str) -> dict:
    """A checkpoint after every step; a line with the number of the epoch after every epoch."""

    def after_epoch(record: dict) -> None:
        with (Path(folder) / "epochs").open("a") as file:
            file.write(f"{record['epoch']}\n")
        time.sleep(0.4)

    return train_run(RUN, folder, replace(QUIET, checkpoint_seconds=0, after_epoch=after_epoch))


def test_a_run_resumes_on_another_node(cluster, tmp_path):
    log = tmp_path / "epochs"
    killed = []

    def watch() -> None:
        if not killed and log.exists():
            killed.append(len(log.read_text().splitlines()))
            replace_node(*cluster)

    [(_, result)] = run_all("ray", train_slowly, [str(tmp_path)], Resources(), tmp_path, watch)
    assert 0 < killed[0] < RUN.epochs, "the node died before or after the run"
    assert isinstance(result, dict), result
    assert numbers(result) == numbers(train_run(RUN, tmp_path / "alone", QUIET))
    epochs = [int(line) for line in log.read_text().splitlines()]
    assert epochs == sorted(epochs), "the second attempt began anew"
    assert len(epochs) <= RUN.epochs + 1, "more than one checkpoint's work was done twice"
    [attempt] = tmp_path.glob("*/attempt.json")
    assert json.loads(attempt.read_text())["attempt"] >= 2


def test_a_sweep_goes_on_without_its_node(cluster, tmp_path):
    words = {"scale": "smoke", "recipes": ("tuned",), "options": QUIET}
    results, lines = tmp_path / "results", []

    def say(line: str) -> None:
        lines.append(line)
        if line.startswith("1 of "):
            replace_node(*cluster)

    folders = {"out": tmp_path / "runs", "results": results}
    summary = reproduce(["copy-first"], **folders, **words, say=say, on="ray")
    assert summary.exit_code == 0, lines
    folders = {"out": tmp_path / "alone", "results": tmp_path / "alone-results"}
    reproduce(["copy-first"], **folders, **words, say=lambda _: None)
    alone, found = (
        {record.name: record.metrics for record in store.load(folder, "smoke")}
        for folder in (tmp_path / "alone-results", results)
    )
    assert found == alone


def share_gpu(folder: str) -> tuple[str, int]:
    """The GPU that this task sees, and the most tasks that were there at a time with it."""
    (Path(folder) / str(os.getpid())).touch()
    most = 0
    for _ in range(20):
        most = max(most, len(list(Path(folder).iterdir())))
        time.sleep(0.1)
    (Path(folder) / str(os.getpid())).unlink()
    return os.environ["CUDA_VISIBLE_DEVICES"], most


def test_fractions_pack_tasks_onto_one_gpu(cluster, tmp_path):
    """Four cores, one GPU: halves allow two tasks at a time."""
    found = [result for _, result in run_all("ray", share_gpu, [str(tmp_path)] * 4, Resources(gpus=0.5), tmp_path)]
    assert found == [("0", 2)] * 4
