"""All claims together: theory claims come from ``theory.json``, claims on trained models from records of runs."""

import subprocess
import sys
from dataclasses import replace

import pytest

from multistable_experiments.files import DamagedFileError
from multistable_experiments.paper.claims import CHAPTERS, CLAIMS, measure, measure_all, read_theory
from paper_records import RESULTS, records
from sources import environment


def test_claims_are_in_the_order_of_the_chapters():
    found = measure_all(records([0], ["copy-first"]), RESULTS, ["tuned"])
    findings = found[None] | found["tuned"]
    assert len(findings) == 72
    assert len({claim.id for claim in findings}) == 72
    assert tuple(dict.fromkeys(claim.chapter for claim in findings)) == CHAPTERS


def test_every_claim_states_where_and_how():
    for claim in (*CLAIMS, *read_theory(RESULTS)):
        assert claim.where.startswith(("sec.", "app.", "abstract"))
        assert claim.how
        assert not claim.sentence.endswith(".")


def test_each_recipe_is_measured_on_its_own_results():
    found = records([0], ["copy-first"])
    mixed = [replace(r, recipe="best") if r.configuration == "bmru-T300" else r for r in found]
    verdicts = {recipe: {c.id: f.held for c, f in measure(mixed, recipe).items()} for recipe in ("tuned", "best")}
    assert verdicts["best"]["copy-300-bmru"] is True
    assert verdicts["tuned"]["copy-300-bmru"] is None
    assert verdicts["tuned"]["copy-300-lru"] is True


def test_without_its_file_there_are_no_theory_claims(tmp_path):
    assert read_theory(tmp_path) == {}
    assert measure_all([], tmp_path)[None] == {}


def test_an_edited_theory_file_raises(tmp_path):
    text = (RESULTS / "theory.json").read_text()
    (tmp_path / "theory.json").write_text(text.replace('"held": true', '"held": false', 1))
    with pytest.raises(DamagedFileError, match=r"theory.json is corrupt or was edited"):
        read_theory(tmp_path)


def test_claims_and_report_work_without_typer():
    code = (
        "import sys; sys.modules['typer'] = None;"
        "import multistable_experiments.paper.claims.table, multistable_experiments.paper.report;"
        "print(len(multistable_experiments.paper.claims.CLAIMS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stdout.strip() == str(len(CLAIMS)), done.stderr
