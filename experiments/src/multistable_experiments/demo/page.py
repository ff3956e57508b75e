"""The page: one HTML file that needs nothing else. Its words are in ``page.html``, the numbers come from here."""

from multistable_experiments.demo import copy_first, figures, hold_bit
from multistable_experiments.machine import describe
from multistable_experiments.page import coloured, commit_of, fill, machine_rows, table

__all__ = ["make", "score"]


def make(
    bits: dict[str, hold_bit.Outcome], copies: dict[str, copy_first.Outcome], *, seed: int, steps: int, samples: int,
    seconds: float,
) -> str:  # fmt: skip
    """The whole page.

    ``steps`` is the length of the training on a bit, ``samples`` the number of sequences in each test of copy-first,
    ``seconds`` the time that the call took.
    """
    numbers = bit_numbers(bits) | copy_numbers(copies) | {"seed": seed, "bit_steps": steps, "test_samples": samples}
    pictures = {
        "bit_states": figures.bit_states(bits),
        "bit_errors": figures.bit_errors(bits),
        "copy_errors": figures.copy_errors(copies),
        "copy_outputs": figures.copy_outputs(copies),
    }
    tables = {
        "bit_table": bit_table(bits),
        "copy_table": copy_table(copies),
        "machine": machine_table(copies, seconds),
    }
    return fill("multistable_experiments.demo", "page.html", numbers | pictures | tables)


def score(value: float) -> str:
    """An error in few digits.

    >>> [score(value) for value in (0.0, 3.2e-14, 0.00021, 0.0584, 1.0, 17.23)]
    ['0', '3.2e-14', '0.00021', '0.058', '1.00', '17.23']
    """
    if value == 0:
        return "0"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def bit_numbers(bits: dict[str, hold_bit.Outcome]) -> dict[str, object]:
    fading = bits["LRU"].fading or 0.0
    return {
        "bit_train_length": hold_bit.TRAIN_LENGTH,
        "bit_longest": f"{bits['BMRU'].recalls[-1].length:,}",
        "bit_chunk": f"{hold_bit.CHUNK:,}",
        "streams": "the same bits" if bits["BMRU"].streams else "<strong>not</strong> the same bits",
        "fading": f"{fading:.5f}",
        "faded": f"{fading**1000:.1g}",
        **{f"{name.lower()}_short": score(outcome.recalls[0].error) for name, outcome in bits.items()},
        **{f"{name.lower()}_long": score(outcome.recalls[-1].error) for name, outcome in bits.items()},
    }


def copy_numbers(copies: dict[str, copy_first.Outcome]) -> dict[str, object]:
    run = copies["BMRU"].run
    model, schedule = run.model, run.schedule
    ends = [errors[-1] for errors in copies["BMRU"].errors.values()]  # for each noise: length, error
    return {
        "copy_length": run.task.length,
        "copy_longest": f"{ends[0][0]:,}",
        "bmru_end": score(ends[0][1]),
        "bmru_end_weak": score(ends[1][1]),
        "blocks": "one block" if len(model.cells) == 1 else f"{len(model.cells)} blocks",
        "d_model": model.d_model,
        "d_state": model.d_state,
        "epochs": run.epochs,
        "train_samples": f"{len(run.task.samples('train', run.seed)):,}",
        "batch_size": run.batch_size,
        "rate_start": f"{schedule.start:g}",
        "rate_peak": f"{schedule.peak:g}",
        "rate_end": f"{schedule.end:g}",
        "warmup": f"{schedule.warmup_epochs:g}",
        "decay_bmru": f"{run.decay.bmru:g}",
        "decay_other": f"{run.decay.other:g}",
        "run_ids": ", ".join(f"{name} <code>{outcome.run.id}</code>" for name, outcome in copies.items()),
    }


def bit_table(bits: dict[str, hold_bit.Outcome]) -> str:
    rows = [
        [f"{tests[0].length:,} steps", *(score(test.error) for test in tests)]
        for tests in zip(*(outcome.recalls for outcome in bits.values()), strict=True)
    ]
    rows.append(["parameters", *(str(outcome.parameters) for outcome in bits.values())])
    rows.append(["seconds of training", *(f"{outcome.seconds:.1f}" for outcome in bits.values())])
    return table(["error after", *map(coloured, bits)], rows)


def copy_table(copies: dict[str, copy_first.Outcome]) -> str:
    results = [outcome.result for outcome in copies.values()]
    T = copies["BMRU"].run.task.length
    rows = [[f"{T} steps, test set", *(score(result["metrics"]["best"]["test_mse"]) for result in results)]]
    for noise in copy_first.NOISES:
        for tests in zip(*(outcome.errors[noise] for outcome in copies.values()), strict=True):
            length = tests[0][0]
            if length > T:
                rows.append([f"{length:,} steps, noise {noise:g}", *(score(error) for _, error in tests)])
    rows.append(["parameters", *(f"{result['parameters']:,}" for result in results)])
    rows.append(["best epoch", *(str(result["metrics"]["best"]["epoch"]) for result in results)])
    rows.append(["seconds of training", *(f"{result['seconds']:.1f}" for result in results)])
    return table(["error after", *map(coloured, copies)], rows)


def machine_table(copies: dict[str, copy_first.Outcome], seconds: float) -> str:
    trained = sorted({commit_of(outcome.result["machine"]) for outcome in copies.values()})
    rows = machine_rows(describe()) | {
        "of the copy-first runs": ", ".join(trained),
        "seconds": f"{seconds:.0f} for this call; finished runs in its folder are not trained again",
    }
    return table([], [[name, value] for name, value in rows.items()], "facts")
