"""Finite state machines: what is learnt, by which gradient, beside which layers."""

import json

from tables.common import RESULTS, markdown_table, numeric_order, tied

from multistable_experiments.state_machines.rivals import LAYERS

STUDIES = {
    "every": "every step",
    "last": "last step",
    "idle": "every step, 9 of 10 symbols irrelevant",
    "last-idle": "last step, 9 of 10 symbols irrelevant",
}
TARGETS = ("parity", "flip-flop", "Z3", "S3", "Z6", "D4", "A4", "S4", "A5", "dyck")


def machine_results(prefix: str = "") -> dict[str, dict]:
    paths = sorted((RESULTS / "machines").glob(f"{prefix}*.json"), key=numeric_order)
    return {path.stem: json.loads(path.read_text()) for path in paths}


def certified() -> str:
    """Machines trained without noise: how many seeds are proven right at every length."""
    found = machine_results()
    groups: dict[tuple[str, str], list[str]] = {}
    for name, result in found.items():
        training = result.get("training")
        if training is not None and training["surrogate"] == "softmax":
            loss = "-".join(["last"] * (training["answers"] == "last") + ["idle"] * ("idle" in training)) or "every"
            groups.setdefault((loss, training["machine"]), []).append(name)
    rows = []
    for loss, target in sorted(groups, key=lambda key: (list(STUDIES).index(key[0]), TARGETS.index(key[1]))):
        names = groups[loss, target]
        own = [found[name] for name in names]
        training, right = own[0]["training"], [each for each in own if each["verdict"]["right"]]
        states = (
            training["states"] or {"parity": 2, "flip-flop": 2, "Z3": 3, "S3": 6, "Z6": 6, "D4": 8, "A4": 12}[target]
        )
        long = [found[f"long-{name}"]["test"] for name in names if f"long-{name}" in found]
        rows.append((
            target, STUDIES[loss], f"{training['units']} x {states}", f"{own[0]['parameters']:,}", training["length"],
            f"{len(right)} of {len(own)}", *(span([each[key] for each in right]) for key in ("updates", "seconds")),
            f"{sum(test['failing_length'] is None for test in long)} of {len(long)}" if long else "",
        ))  # fmt: skip
    header = (
        "machine; loss at; units x states; parameters; longest in training; certified; updates; seconds; "
        "no error in 10^9 steps"
    )
    return markdown_table(header, rows)


def span(values: list[float]) -> str:
    """
    >>> span([3.4, 20, 7]), span([])
    ('3\\xa0to\\xa020', '')
    """
    if not values:
        return ""
    low, high = (f"{round(value):,}" for value in (min(values), max(values)))
    return low if low == high else tied(f"{low} to {high}")


def surrogates() -> str:
    """Updates until a machine is certified, one for each seed, by the gradient of a choice."""
    found: dict[tuple[str, str], list[str]] = {}
    for result in machine_results().values():
        training = result.get("training", {})
        if (training.get("answers"), training.get("lengths"), training.get("states")) == ("every", "uniform", None):
            updates = str(result["updates"]) if result["verdict"]["right"] else "-"
            found.setdefault((training["machine"], training["surrogate"]), []).append(updates)
    kinds = ("softmax", "margin", "gumbel")
    rows = [
        (name, *(", ".join(found.get((name, kind), [])) for kind in kinds))
        for name in ("parity", "Z3", "S3", "flip-flop")
    ]
    return markdown_table("machine; softmax; margin; softmax with Gumbel noise", rows)


def rivals() -> str:
    """The step at which the first of 64 sequences is answered wrongly: the median over the seeds, and their range."""
    found: dict[tuple[str, str], list[dict]] = {}
    for result in machine_results("rival-").values():
        if result["contest"]["seed"] < 100:  # others are the search
            found.setdefault((result["contest"]["cell"], result["contest"]["machine"]), []).append(result)
    if not found:
        return "Nothing is stored yet: `multistable machines --study rivals` takes four hours of one core."
    targets = [name for name in TARGETS if any(target == name for _, target in found)]
    rows = [(LAYERS[cell], *(failing(found.get((cell, name), [])) for name in targets)) for cell in LAYERS]
    return markdown_table("; ".join(["layer", *targets]), rows)


def failing(results: list[dict]) -> str:
    """Of an even number the lower median.

    >>> failing([{"test": {"failing_length": n, "longest": 100}} for n in (None, 7, 12)])
    '12 (7 to never in 100), 3 of 5 seeds'
    >>> failing([{"test": {"failing_length": n, "longest": 100}} for n in (None, 7)])
    '7 (7 to never in 100), 2 of 5 seeds'
    >>> failing([])
    'not computed'
    """
    if not results:
        return "not computed"
    never = f"never in {results[0]['test']['longest']:,}"
    lengths = sorted(each["test"]["failing_length"] or float("inf") for each in results)
    low, middle, high = (
        never if length == float("inf") else f"{length:,}"
        for length in (lengths[0], lengths[(len(lengths) - 1) // 2], lengths[-1])
    )
    seeds = f", {len(results)} of 5 seeds" if len(results) < 5 else ""
    return (middle if low == high else f"{middle} ({low} to {high})") + seeds
