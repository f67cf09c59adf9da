"""The data folder: what is refused, and the lock."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from penstock.core.errors import Conflict, InvalidRequest, PenstockError
from penstock.services.host import data_folder, process
from penstock.services.host.data_folder import FORMAT, DataFolder, DataFolderLock
from penstock.services.options.option_values import HostPort
from tests.kits.port_faults_kit import check_at_each_call


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
        "from penstock.services.host.data_folder import DataFolder\n"
        "from penstock.storage.disk import OsAppendFile, OsFileSystem\n"
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
    with pytest.raises(InvalidRequest, match=f"format 7: .* up to {FORMAT}.*newer Penstock"):
        DataFolder(tmp_path).prepare()
    assert [item.name for item in tmp_path.iterdir()] == ["format.json"]


@pytest.mark.parametrize("number", ["0", "-1", '"1"', "true", "1.5", "null"])
def test_a_format_that_was_never_written_is_not_called_newer(tmp_path: Path, number: str) -> None:
    (tmp_path / "format.json").write_text(f'{{"format": {number}}}')
    with pytest.raises(InvalidRequest, match=f"no release .* set the number to {FORMAT}") as caught:
        DataFolder(tmp_path).prepare()
    assert "newer" not in str(caught.value)


@pytest.mark.parametrize("name", ["metadata.db", "topics", "segments", "flow"])
def test_a_folder_of_ours_without_its_format_is_said_to_be_ours(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "log").mkdir()
    with pytest.raises(InvalidRequest, match=rf"files of Penstock \(.*{name}.*penstock restore"):
        DataFolder(tmp_path).prepare()
    (tmp_path / "diary.txt").touch()
    with pytest.raises(InvalidRequest, match=r"not Penstock's \(diary\.txt"):
        DataFolder(tmp_path).prepare()
    assert not (tmp_path / "format.json").exists()


def test_a_half_restored_folder_does_not_start(tmp_path: Path) -> None:
    DataFolder(tmp_path).prepare()
    (tmp_path / "restoring.json").write_text("{}")
    with pytest.raises(InvalidRequest, match=r"only half restored.*Run it again"):
        DataFolder(tmp_path).prepare()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("segments/d/2013/v/0/u/part.parquet", "segments/ holds segments"),
        ("topics/t/0/supervisor.s.cursor", r"topics/ has the positions of supervisors"),
    ],
)
def test_missing_metadata_beside_what_it_named_is_refused(
    tmp_path: Path, name: str, said: str
) -> None:
    folder = DataFolder(tmp_path / "a b#ü%20%")
    folder.prepare()
    folder.require_metadata()
    for plain in ("topics/t/0/000.log", "segments/~projections/d/x/y.parquet"):
        path = folder.path / plain
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    folder.require_metadata()
    (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
    (folder.path / name).touch()
    remedy = rf"restore SRC --data-dir NEW; .*--from-segments --data-dir '{folder.path}' rebuilds"
    with pytest.raises(InvalidRequest, match=rf"metadata\.db is missing, while {said}.*{remedy}"):
        folder.require_metadata()
    (folder.path / "metadata.db").touch()
    with pytest.raises(InvalidRequest, match="is missing"):
        folder.require_metadata()
    (folder.path / "metadata.db").unlink()
    make_database(folder.path / "metadata.db")
    folder.require_metadata()


def make_database(path: Path, page_bytes: int = 4096) -> None:
    """Make a database of many pages, which has a log beside it while it is open, as ours has."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA page_size = {page_bytes}")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE t (x)")
        database.execute("INSERT INTO t VALUES (zeroblob(300000))")
        database.commit()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: content[:-1], r"has 3\d\d,\d{3} of the 3\d\d,\d{3} bytes"),
        (lambda content: content[: len(content) // 2], r"has 1\d\d,\d{3} of the"),
        (lambda content: content[:4096], "has 4,096 of the"),
        (lambda content: content[:99], "is not an SQLite database, though it has 99 bytes"),
        (lambda _: b"x", "is not an SQLite database, though it has 1 byte:"),
        (lambda _: b"\xa5" * 100_000, "is not an SQLite database, though it has 100,000 bytes"),
        (lambda _: b"\0" * 4096, "is not an SQLite database"),
        (
            lambda content: content[:16] + b"\0\3" + content[18:],
            "is not an SQLite database: its header has pages of 3 b",
        ),
    ],
)
def test_metadata_that_is_not_a_whole_database_is_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes], said: str
) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    make_database(folder.path / "metadata.db")
    content = (folder.path / "metadata.db").read_bytes()
    (folder.path / "metadata.db").write_bytes(damage(content))
    with pytest.raises(InvalidRequest, match=rf"metadata\.db {said}.*restore a backup"):
        folder.require_metadata()


@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
def test_metadata_is_whole_in_any_state_that_sqlite_leaves(tmp_path: Path, page_bytes: int) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    place = folder.path / "metadata.db"
    place.touch()
    folder.require_metadata()
    make_database(place, page_bytes)
    folder.require_metadata()
    with closing(sqlite3.connect(place)) as database:
        database.execute("DELETE FROM t")
        database.commit()
        database.execute("VACUUM")
        database.execute("INSERT INTO t VALUES (zeroblob(900000))")
        database.commit()
        folder.require_metadata()
        # As after kill -9 in the middle of a checkpoint: the log makes up for what is missing.
        (tmp_path / "killed").mkdir()
        killed = DataFolder(tmp_path / "killed")
        killed.prepare()
        for name in ("metadata.db", "metadata.db-wal"):
            content = (folder.path / name).read_bytes()
            (killed.path / name).write_bytes(content)
        database.execute("PRAGMA wal_checkpoint")
        (killed.metadata).write_bytes(place.read_bytes()[: 2 * page_bytes])
        killed.require_metadata()
    folder.require_metadata()
    with closing(sqlite3.connect(killed.metadata)) as database:
        assert database.execute("SELECT sum(length(x)) FROM t").fetchone() == (900_000,)


def test_a_log_that_sqlite_deletes_meanwhile_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    make_database(folder.metadata)
    exists = Path.exists
    log_endings = ("-wal", "-journal")
    monkeypatch.setattr(
        Path, "exists", lambda path: path.name.endswith(log_endings) or exists(path)
    )
    folder.require_metadata()


def test_metadata_that_is_a_folder_or_a_pipe_is_said_to_be_one(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.prepare()
    folder.metadata.mkdir()
    with pytest.raises(InvalidRequest, match=r"metadata\.db is a folder, not a file"):
        folder.require_metadata()
    folder.metadata.rmdir()
    os.mkfifo(folder.metadata)
    with pytest.raises(InvalidRequest, match="is a device or a pipe, not a file"):
        folder.require_metadata()


def test_a_format_that_is_a_folder_or_a_pipe_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "format.json").mkdir()
    with pytest.raises(InvalidRequest, match=r"format\.json is a folder, but .* move it away"):
        DataFolder(tmp_path).prepare()
    (tmp_path / "format.json").rmdir()
    os.mkfifo(tmp_path / "format.json")
    with pytest.raises(InvalidRequest, match=r"format\.json is a device or a pipe"):
        DataFolder(tmp_path).prepare()


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
    first, second = DataFolderLock(folder), DataFolderLock(folder)
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
        "from penstock.services.host.data_folder import DataFolder, DataFolderLock\n"
        "DataFolderLock(DataFolder(Path(sys.argv[1]))).take()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -9
    lock = DataFolderLock(folder)
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


@pytest.mark.parametrize("name", ["a b#ü%20%", "a,b", "x=1", "it's $HOME"])
def test_a_folder_may_have_any_name_that_spark_can_read(tmp_path: Path, name: str) -> None:
    DataFolder(tmp_path / name).prepare()


@pytest.mark.parametrize("name", ["a*", "[x]", "{y}", "what?", "a:b", "a\\b", "a\nb", "\udcff"])
def test_a_folder_that_spark_cannot_read_is_refused_before_anything_is_made(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(InvalidRequest, match=r"rename the folder.*--data-dir"):
        DataFolder(tmp_path / name).prepare()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_taken_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed locked, though nobody held it, until the process ended."""
    folder = DataFolder(tmp_path)

    def take_and_release() -> None:
        lock = DataFolderLock(folder)
        lock.take()
        lock.release()

    assert check_at_each_call(monkeypatch, data_folder, take_and_release) > 0


def test_a_port_that_cannot_be_bound_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def listen_and_close() -> None:
        listener = process.listen(HostPort("127.0.0.1", 0), "--port")
        listener._target.close()  # type: ignore[attr-defined]

    ports, results = ("socket",), {"socket"}
    assert check_at_each_call(monkeypatch, process, listen_and_close, ports=ports, results=results)
