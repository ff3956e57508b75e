"""Run independent tasks on an engine that somebody else keeps: Ray, or Slurm through submitit.

Placement, retries, resources and the failure of nodes are the engine's business. A task is a function and its item; it
must be able to resume what an earlier attempt left in a shared folder, because the engine may run it again elsewhere.
"""

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

__all__ = ["Engine", "EngineError", "Resources", "run_all"]

Engine = Literal["ray", "slurm"]
Item = TypeVar("Item")
Result = TypeVar("Result")
RETRIES = 10
"""How often a task is begun anew after its worker or node has died."""
POLL_SECONDS = 1.0


class EngineError(RuntimeError):
    """A task ended without a result: its worker died too often, or the engine gave it up."""


@dataclass(frozen=True)
class Resources:
    """Resources of each task, and the address of the engine."""

    cpus: int = 1
    gpus: float = 0
    """A fraction packs several tasks onto one GPU (Ray only)."""
    address: str | None = None
    """Of a running Ray cluster, "auto" for the one of this machine. None: that of ``RAY_ADDRESS``, as inside a job of
    Ray; otherwise a Ray of its own on this machine."""
    hours: float = 24.0
    """After which Slurm ends a task; it is queued again and resumes."""
    slurm: tuple[tuple[str, str], ...] = ()
    """Further parameters of Slurm, such as ("partition", "gpu")."""

    def __post_init__(self) -> None:
        if not (self.cpus >= 1 and self.gpus >= 0 and self.hours > 0):
            raise ValueError(f"a task needs at least one CPU, no negative number of GPUs, and some time, got {self}")


def run_all(
    engine: Engine,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    resources: Resources,
    logs: Path,
    watch: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Item, Result | EngineError]]:
    """Yield each item with its result, or with the reason why there is none, in the order in which they end.

    ``watch`` is called about once a second while tasks are running. ``logs`` is a folder that all machines see.
    """
    package = {"ray": "ray", "slurm": "submitit"}[engine]
    if find_spec(package) is None:
        raise ImportError(f"{package} is missing: pip install './experiments[{engine}]'")
    run = {"ray": on_ray, "slurm": on_slurm}[engine]
    return run(function, items, resources, logs, watch)


def on_ray(
    function: Callable[[Item], Result], items: Sequence[Item], resources: Resources, logs: Path, watch: Callable
) -> Iterator[tuple[Item, Result | EngineError]]:
    """Run the items as tasks of Ray. Their output is in Ray's own logs."""
    import ray  # pyright: ignore[reportMissingImports]
    from ray.exceptions import RayError  # pyright: ignore[reportMissingImports]

    started = not ray.is_initialized()
    if started:
        address = resources.address or os.environ.get("RAY_ADDRESS") or "local"  # None would join any Ray it finds
        ray.init(address=address, log_to_driver=False, include_dashboard=False)
    try:
        remote = ray.remote(num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=RETRIES)(function)
        waiting = {remote.remote(item): item for item in items}
        while waiting:
            ended, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL_SECONDS)
            watch()
            for task in ended:
                item = waiting.pop(task)
                try:
                    yield item, ray.get(task)
                except RayError as error:
                    yield item, EngineError(last_line(error))
    finally:
        if started:
            ray.shutdown()


def on_slurm(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    resources: Resources,
    logs: Path,
    watch: Callable,
    cluster: Literal["slurm", "local"] = "slurm",
) -> Iterator[tuple[Item, Result | EngineError]]:
    """Run the items as jobs of Slurm. A job that is preempted or runs out of time is queued again."""
    import submitit  # pyright: ignore[reportMissingImports]

    if resources.gpus != int(resources.gpus):
        raise ValueError(f"a job of Slurm has whole GPUs, got {resources.gpus!r}")
    if cluster == "slurm" and shutil.which("srun") is None:
        raise ValueError("slurm must be on this machine, but there is no command srun")
    executor = submitit.AutoExecutor(folder=logs, cluster=cluster, slurm_max_num_timeout=RETRIES)
    executor.update_parameters(
        name="multistable",
        cpus_per_task=resources.cpus,
        gpus_per_node=int(resources.gpus),
        timeout_min=math.ceil(60 * resources.hours),
        **{f"slurm_{name}": value for name, value in resources.slurm},
    )
    waiting = {executor.submit(Requeued(function), item): item for item in items}
    try:
        while waiting:
            time.sleep(POLL_SECONDS)
            watch()
            for job in [job for job in waiting if job.done()]:
                item = waiting.pop(job)
                try:
                    yield item, job.result()
                except Exception as error:  # what the job raised, or submitit on a job that left nothing
                    yield item, EngineError(last_line(error))
    finally:
        for job in waiting:
            job.cancel(check=False)


@dataclass(frozen=True)
class Requeued:
    """A function that submitit queues again with the same item when Slurm ends its job."""

    function: Callable[[Any], Any]

    def __call__(self, item: Any) -> Any:
        return self.function(item)

    def checkpoint(self, item: Any) -> Any:
        import submitit  # pyright: ignore[reportMissingImports]

        return submitit.helpers.DelayedSubmission(self, item)


def last_line(error: BaseException) -> str:
    """The last line of an error that carries a remote traceback; submitit adds where its logs are."""
    text = str(error).partition("You can check full logs")[0]
    lines = [line for line in text.splitlines() if line.strip(" -")]
    return lines[-1].strip() if lines else type(error).__name__
