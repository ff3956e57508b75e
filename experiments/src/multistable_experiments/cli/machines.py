"""The command ``multistable machines``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from multistable_experiments.cli.options import default_folder
from multistable_experiments.errors import exit_on_error

__all__ = ["machines"]


def machines(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="What to learn: parity, modN, flip-flop, dyck, or a group, Z2, Z3, Z6, S3, D4, A4, S4, A5.",
            show_default="parity Z3 S3 flip-flop",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0 on.")] = 5,
    surrogate: Annotated[
        Literal["margin", "softmax", "gumbel"], typer.Option(help="Gradient of a transition.")
    ] = "softmax",
    answers: Annotated[Literal["every", "last"], typer.Option(help="Which answers the loss counts.")] = "every",
    length: Annotated[int, typer.Option(min=1, help="The longest sequence in training.")] = 128,
    lengths: Annotated[
        Literal["uniform", "log"], typer.Option(help="How lengths are drawn; log: half are below the root of --length.")
    ] = "uniform",
    updates: Annotated[int, typer.Option(min=1, help="Updates at most; a certified model is not trained on.")] = 2_000,
    longest: Annotated[int, typer.Option(min=1, help="Length of the test.")] = 100_000,
    out: Annotated[Path | None, typer.Option(help="Folder of results.", show_default="results/machines")] = None,
) -> None:
    """Train machines on short sequences, and prove that they are right at every length.

    One JSON file per machine and seed. Small groups take seconds on a CPU.
    """
    from multistable_experiments.machine import describe
    from multistable_experiments.state_machines.plan import SMOKE
    from multistable_experiments.state_machines.store import record
    from multistable_experiments.state_machines.training import Training

    with exit_on_error():
        folder = out or default_folder("results") / "machines"
        about = describe()  # before the first result, which is a change of the source tree itself
        for name in names or SMOKE:
            for seed in range(seeds):
                training = Training(name, seed, surrogate, answers, length=length, lengths=lengths, updates=updates)
                result = record(training, folder, longest, about=about)
                verdict, failed = result["verdict"], result["test"]["failing_length"]
                words = {True: "certified", False: "wrong", None: "undecided"}[verdict["right"]]
                tested = f"no error in {longest:,} steps" if failed is None else f"fails at step {failed:,}"
                typer.echo(
                    f"{training.name}: {words} after {result['updates']} updates, {result['seconds']:.0f} s; "
                    f"{verdict['pairs']:,} pairs of states; {tested}"
                )
