"""``multistable claims`` on trained models: exit codes and messages."""

import pytest
import typer

from multistable_experiments.cli.paper import claims
from paper_records import changed_scores, records, save


def test_strict_exits_with_1_on_a_broken_claim(tmp_path, capsys):
    folder = save(tmp_path, records(figures=["copy-first"], **changed_scores(bmru_T300=0.2)))
    with pytest.raises(typer.Exit) as leave:
        claims(folder, "paper", strict=True)
    assert leave.value.exit_code == 1
    claims(folder, "paper", strict=False)
    assert "27 claims: 3 held, 1 not held, 23 not measured" in capsys.readouterr().out


@pytest.mark.parametrize("seeds", [range(5), range(1)])
def test_strict_passes_what_is_held_provisional_or_missing(tmp_path, seeds, capsys):
    claims(save(tmp_path, records(seeds, ["copy-first"])), "paper", strict=True)
    assert ("4 held" if len(seeds) == 5 else "4 provisional") in capsys.readouterr().out


@pytest.mark.parametrize("name", ["copy-first/bmru-T100-seed0.json", "theory.json"])
def test_a_damaged_result_is_one_sentence(tmp_path, name, capsys):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("{}")
    with pytest.raises(typer.Exit) as leave:
        claims(tmp_path, "paper", strict=False)
    assert leave.value.exit_code == 1
    assert f"{name} is " in capsys.readouterr().err
