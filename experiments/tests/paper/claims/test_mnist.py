"""Claims on permuted MNIST: equality is two-sided; the note on precision, and the fact behind it."""

from dataclasses import replace

import pytest
import torch

from multistable.models import build_model
from multistable_experiments.paper.claims import CLAIMS
from multistable_experiments.paper.experiments import plan
from multistable_experiments.paper.store import Record
from multistable_experiments.training.step import autocast
from paper_records import changed_scores, records

TRAINED = {claim.id: claim for claim in CLAIMS}


@pytest.fixture(scope="module")
def all_records() -> list[Record]:
    return records()


def test_a_hybrid_worse_than_the_lru_does_not_equal_it():
    worse = records(figures=["permuted-mnist"], **changed_scores(hybrid_3_blocks=95))
    assert TRAINED["mnist-hybrid-equals-lru"].measure(worse).verdict == "not held"


def test_the_precision_is_noted_where_a_fading_state_depends_on_it(all_records):
    noted = {id for id, claim in TRAINED.items() if "in bfloat16" in claim.measure(all_records).note}
    assert noted == {
        "mnist-bmru-maintains", "mnist-most-when-shallow", "mnist-lru-needs-depth", "mnist-hybrid-above-lru",
    }  # fmt: skip
    wide = [replace(record, run=replace(record.run, precision="float32")) for record in all_records]
    assert all("bfloat16" not in TRAINED[id].measure(wide).note for id in noted)


def test_after_black_pixels_an_lru_starts_below_rounding():
    """The fact behind the note: how much the image changes the outputs, and how much the precision does."""
    [run] = [
        e.run for e in plan(["permuted-mnist"], "full", (0,), ("tuned",)) if e.configuration == "lru-2-blocks-black"
    ]
    assert run.precision == "bfloat16"
    torch.manual_seed(0)
    model = build_model(run.model)
    images = torch.randint(256, (4, 784), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    x, outputs = run.task.inputs(images), {}
    with torch.no_grad():
        for precision in ("float32", "bfloat16"):
            with autocast(torch.device("cpu"), precision):
                outputs[precision] = model(x)[0].double()
        exact = model.double()(x.double())[0]
    differing = {name: (y - y.mean(0)) - (exact - exact.mean(0)) for name, y in outputs.items()}
    ratio = {name: float(y.std() / (exact - exact.mean(0)).std()) for name, y in differing.items()}
    assert ratio["bfloat16"] > 1000
    assert 0.1 < ratio["float32"] < 10
