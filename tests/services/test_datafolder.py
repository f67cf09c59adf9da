"""The data folder: what is refused, and the lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.core.errors import Conflict, InvalidRequest, PenstockError
from penstock.services.host.datafolder import FORMAT, DataFolder, FolderLock


def test_a_new_folder_is_made_and_taken_again(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "a" / "b")
    folder.prepare()
    assert json.loads((folder.path / "format.json").read_text()) == {"format": FORMAT}
    for made in (folder.path, folder.run, folder.tasks):
        assert made.stat().st_mode & 0o777 == 0o700
    folder.prepare()


def test_a_folder_with_only_its_configuration_is_fine(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("")
    DataFolder(tmp_path).prepare()


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("dear")
    with pytest.raises(InvalidRequest, match=r"thesis\.txt.*--data-dir"):
        DataFolder(tmp_path).prepare()
    assert [item.name for item in tmp_path.iterdir()] == ["thesis.txt"]


def test_many_may_make_a_folder_penstocks_at_once(tmp_path: Path) -> None:
    for number in range(40):
        folder = DataFolder(tmp_path / str(number))
        with ThreadPoolExecutor(8) as together:
            for made in [together.submit(folder.prepare) for _ in range(8)]:
                made.result()
        left = {item.name for item in folder.path.iterdir()}
        assert left == {"format.json", "topics", "tasks", "log", "run", "tmp"}


def test_a_folder_that_another_made_penstocks_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Path.iterdir

    def look_too_late(path: Path) -> Iterator[Path]:
        monkeypatch.undo()
        DataFolder(tmp_path).prepare()
        return look(path)

    monkeypatch.setattr(Path, "iterdir", look_too_late)
    DataFolder(tmp_path).prepare()
    assert json.loads((tmp_path / "format.json").read_text()) == {"format": FORMAT}


@pytest.mark.parametrize("step", ["create", "sync", "rename", "fsync_folder"])
def test_one_killed_while_it_makes_a_folder_does_not_spoil_it(tmp_path: Path, step: str) -> None:
    script = (
        "import os, sys, signal; from pathlib import Path\n"
        "from penstock.services.host.datafolder import DataFolder\n"
        "from penstock.storage.filesystem import OsAppendFile, OsFileSystem\n"
        "def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)\n"
        "owner = OsAppendFile if sys.argv[2] == 'sync' else OsFileSystem\n"
        "setattr(owner, sys.argv[2], die)\n"
        "DataFolder(Path(sys.argv[1])).prepare()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path), step], check=False)
    assert done.returncode == -9
    DataFolder(tmp_path).prepare()
    assert json.loads((tmp_path / "format.json").read_text()) == {"format": FORMAT}


def test_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "format.json").write_text('{"format": 7}')
    with pytest.raises(InvalidRequest, match=f"format 7, .* format {FORMAT}"):
        DataFolder(tmp_path).prepare()
    assert [item.name for item in tmp_path.iterdir()] == ["format.json"]


@pytest.mark.parametrize("content", ["", "{}", "[1]", "\0\0"])
def test_a_damaged_format_file_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "format.json").write_text(content)
    with pytest.raises(InvalidRequest, match="is damaged"):
        DataFolder(tmp_path).prepare()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(PenstockError, match="--data-dir"):
        DataFolder(tmp_path / "x").prepare()
    with pytest.raises(PenstockError, match="--data-dir"):
        DataFolder(tmp_path / "x" / "y").prepare()


def test_a_read_only_folder_is_told() -> None:
    with pytest.raises(PenstockError, match=r"cannot be written .*--data-dir"):
        DataFolder(Path("/proc/penstock")).prepare()


def test_the_second_one_is_told_the_first_ones_number(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.prepare()
    first, second = FolderLock(folder), FolderLock(folder)
    first.take()
    with pytest.raises(Conflict, match=rf"process {os.getpid()}.*--data-dir"):
        second.take()
    first.release()
    second.take()
    second.release()


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.prepare()
    script = (
        "import os, sys, signal; from pathlib import Path\n"
        "from penstock.services.host.datafolder import DataFolder, FolderLock\n"
        "FolderLock(DataFolder(Path(sys.argv[1]))).take()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -9
    lock = FolderLock(folder)
    lock.take()
    lock.release()


def test_clients_find_the_addresses_while_it_is_ready(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    assert folder.read_client_file() is None
    folder.write_client_file({"http": "http://127.0.0.1:1"})
    assert folder.read_client_file() == {"http": "http://127.0.0.1:1"}
    folder.remove_client_file()
    folder.remove_client_file()
    assert folder.read_client_file() is None
