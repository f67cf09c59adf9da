"""The folder of access: where it is, and that flows and tasks cannot read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.core.errors import InvalidRequest
from penstock.services.host.data_folder import DataFolder, segment_cache_folder
from penstock.services.host.private_files import read_guard
from penstock.services.options import resolution
from penstock.services.options.table import PenstockOptions


@pytest.mark.parametrize("elsewhere", [False, True])
def test_flows_and_tasks_cannot_read_the_folder(tmp_path: Path, elsewhere: bool) -> None:
    folder = tmp_path / "shared" if elsewhere else tmp_path / "data" / "access"
    folder.mkdir(parents=True)
    given = folder if elsewhere else None
    options = PenstockOptions(data_dir=tmp_path / "data", access_folder=given)
    (tmp_path / "link").symlink_to(folder)
    check = read_guard(options, {}).now()
    for name in ("access.toml", "credentials.json", "operator.token", "process.key"):
        (folder / name).write_text("secret")
        for path in (folder / name, tmp_path / "link" / name):
            with pytest.raises(InvalidRequest, match="Penstock keeps its own files or secrets"):
                check.path(str(path))


def test_flows_and_tasks_cannot_read_copies_of_segments(tmp_path: Path) -> None:
    options = PenstockOptions(data_dir=tmp_path, deep_storage="s3://lake/segments")
    copy = segment_cache_folder(DataFolder(tmp_path)) / "a.parquet"
    copy.parent.mkdir()
    copy.write_bytes(b"PAR1")
    with pytest.raises(InvalidRequest, match="Penstock keeps its own files or secrets"):
        read_guard(options, {}).now().path(str(copy))


def test_the_option_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert PenstockOptions().access_path == tmp_path / "data" / "access"
    options = resolution.resolve({}, {"PENSTOCK_ACCESS_FOLDER": "shared"})
    assert options.access_path == tmp_path / "shared"


def test_a_data_folder_may_have_rules_before_the_first_start(tmp_path: Path) -> None:
    rules = tmp_path / "data" / "access" / "access.toml"
    rules.parent.mkdir(parents=True)
    rules.write_text("")
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    assert folder.access == rules.parent
    assert (tmp_path / "data" / "format.json").exists()
