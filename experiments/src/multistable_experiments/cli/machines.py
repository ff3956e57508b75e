"""The command ``multistable machines``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from multistable_experiments.cli.options import default_folder, refuse
from multistable_experiments.errors import exit_on_error

__all__ = ["machines"]

RECIPE = "the machine's recipe"
LONGEST, SECONDS = 100_000, 3600.0


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
    length: Annotated[
        int | None, typer.Option(min=1, help="The longest sequence in training.", show_default=RECIPE)
    ] = None,
    lengths: Annotated[
        Literal["uniform", "log"] | None,
        typer.Option(help="How lengths are drawn; log: half are below sqrt(--length).", show_default=RECIPE),
    ] = None,
    updates: Annotated[
        int | None,
        typer.Option(min=1, help="Most updates; training ends once the model is certified.", show_default=RECIPE),
    ] = None,
    longest: Annotated[int, typer.Option(min=1, help="Length of the test.")] = LONGEST,
    study: Annotated[
        list[str] | None,
        typer.Option(
            help="Instead compute what is missing of a study in docs/machines.md: every, last, large, idle, brackets, "
            "noise or rivals; may be repeated."
        ),
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", help="With --study: test its stored models on 1,000 sequences of 1,000,000 steps.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where to run --long.")] = "cpu",
    processes: Annotated[int, typer.Option(min=1, help="Processes for --study, with one thread each.")] = 1,
    seconds: Annotated[float, typer.Option(min=0, help="With --study: stop after this time.")] = SECONDS,
    out: Annotated[Path | None, typer.Option(help="Folder of results.", show_default="results/machines")] = None,
) -> None:
    """Train machines on short sequences, and prove that they are right at every length.

    One JSON file per machine and seed. Small groups take seconds on a CPU, A5 half a minute to six minutes.
    Exit code of --study: 1 if a run ended with an error, 2 for a bad value.
    """
    folder = out or default_folder("results") / "machines"
    given = {"surrogate": surrogate, "answers": answers, "length": length, "lengths": lengths, "updates": updates}
    with exit_on_error():
        if study:
            if names:
                raise ValueError(f"give names or --study, not both: got {' '.join(names)}")
            changed = given | {"surrogate": surrogate != "softmax", "answers": answers != "every"}
            refuse("with --study", longest=longest != LONGEST, **changed)
        else:
            refuse("without --study", long=long, processes=processes != 1, seconds=seconds != SECONDS)
        if not long:
            refuse("without --long", device=device != "cpu")
    if study:
        return run_study(folder, study, seeds, processes, seconds, device if long else None)
    run_names(names, seeds, {key: value for key, value in given.items() if value is not None}, longest, folder)


def run_study(folder: Path, studies: list[str], seeds: int, processes: int, seconds: float, device: str | None) -> None:
    from multistable_experiments.state_machines.workers import compute_long, compute_missing

    with exit_on_error():
        failed: list[str] = []
        if device is not None:
            count = compute_long(folder, studies, seconds, device, seeds, say=typer.echo)
        else:
            count, failed = compute_missing(folder, studies, processes, seconds, seeds, say=typer.echo)
        typer.echo(f"{count} new results in {folder}")
    if failed:
        typer.echo(f"not computed: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def run_names(names: list[str] | None, seeds: int, given: dict, longest: int, folder: Path) -> None:
    from dataclasses import replace

    from multistable_experiments.files import check_writable
    from multistable_experiments.machine import describe
    from multistable_experiments.state_machines.plan import RECIPES, SMOKE
    from multistable_experiments.state_machines.store import record
    from multistable_experiments.state_machines.training import Training, build

    with exit_on_error():
        for name in names or SMOKE:
            build(replace(RECIPES.get(name, Training(name)), **given))  # raises before the first training
        check_writable("--out", folder / "first.json")
        about = describe()  # before the first result, which is a change of the source tree itself
        for name in names or SMOKE:
            for seed in range(seeds):
                training = replace(RECIPES.get(name, Training(name)), seed=seed, **given)
                result = record(training, folder, longest, about=about)
                verdict, failed = result["verdict"], result["test"]["failing_length"]
                words = {True: "certified", False: "wrong", None: "undecided"}[verdict["right"]]
                tested = f"no error in {longest:,} steps" if failed is None else f"fails at step {failed:,}"
                typer.echo(
                    f"{training.name}: {words} after {result['updates']} updates, {result['seconds']:.0f} s; "
                    f"{verdict['pairs']:,} pairs of states; {tested}"
                )
