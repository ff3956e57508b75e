"""The data folder."""

from multistable_experiments.tasks.folder import data_folder


def test_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTISTABLE_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("MULTISTABLE_DATA")
    assert data_folder().name == "multistable"
