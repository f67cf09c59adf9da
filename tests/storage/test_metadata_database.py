"""What can be wrong with a database, and what two processes do to each other."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from penstock.core.errors import CorruptData, InvalidRequest, Unavailable
from penstock.core.intervals import Interval
from penstock.storage.metadata import (
    CommittedRow,
    MetadataStore,
    PendingRow,
    TaskRow,
    migrations,
)
from penstock.storage.metadata.backends import postgres as backend
from penstock.storage.metadata.migrations import FORMAT_NUMBER

if TYPE_CHECKING:
    from pathlib import Path


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def task(name: str, padding: int = 0) -> TaskRow:
    return TaskRow(name, "d", "index", "g", {"padding": "x" * padding})


@pytest.mark.parametrize(
    "url",
    ["nonsense", "mysql://h/db", "sqlite://", "sqlite:///:memory:", "", "oracle+what://x/y"],
)
def test_a_wrong_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"metadata_url: .*use sqlite:////") as caught:
        MetadataStore.open(url)
    assert caught.value.place == "metadata_url"


def test_a_newer_format_is_refused_with_both_numbers(database_url, clock) -> None:
    with MetadataStore.open(database_url, clock=clock) as store:
        store._database.write(lambda c: c.execute(text("UPDATE penstock_format SET number = 97")))
    with pytest.raises(InvalidRequest, match=rf"format number 97.*up to {FORMAT_NUMBER}"):
        MetadataStore.open(database_url, clock=clock)


def test_rows_of_older_formats_go_on(database_url, clock, monkeypatch) -> None:
    old = {
        1: "INSERT INTO penstock_offsets (supervisor_id, offsets, updated_ms)"
        " VALUES ('sup', '{\"0\": 5}', 1)",
        2: "INSERT INTO penstock_pending VALUES ('d', 0, 10, 'v1', 3, 0, 's0', 7)",
        4: "INSERT INTO penstock_supervisors VALUES ('sup', 1, TRUE, 7, '{}')",
        9: "INSERT INTO penstock_lookups VALUES ('l', 1, '{}', 2, 1, 2, 0, 0, -1, 0, 0, '')",
    }
    for number, row in old.items():
        with monkeypatch.context() as older:
            older.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:number])
            older.setattr(migrations, "FORMAT_NUMBER", number)
            with MetadataStore.open(database_url, clock=clock) as store:
                store._database.write(lambda c, row=row: c.execute(text(row)))
    with MetadataStore.open(database_url, clock=clock) as store:
        assert store.committed("sup") == CommittedRow("", {0: 5})
        place = PendingRow("d", Interval(0, 10), "v1", 3, 0, "s0", 7)
        assert store.segments.pending("d") == [place]
        assert [row.id for row in store.supervisors.unreleased()] == ["sup"]
        assert [(row.name, row.owner) for row in store.lookups.list()] == [("l", "")]


def test_segments_of_older_formats_get_their_sums(database_url, clock, monkeypatch) -> None:
    insert = text(
        "INSERT INTO penstock_segments (id, datasource, start_ms, end_ms, version,"
        " partition_number, core_partitions, used, created_ms, used_changed_ms, payload)"
        " VALUES (:id, 'd', :start, 100, 'v', 0, 0, TRUE, 5, 1, :payload)"
    )
    payloads = [
        {"size": 7, "totalRows": 1 << 40},
        {},
        {"size": None, "totalRows": "x"},
        {"size": "12", "totalRows": 2.5},
    ]
    rows = [
        {"id": f"s{n}", "start": n, "payload": json.dumps(one)} for n, one in enumerate(payloads)
    ]
    with monkeypatch.context() as older:
        older.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:6])
        older.setattr(migrations, "FORMAT_NUMBER", 6)
        with MetadataStore.open(database_url, clock=clock) as store:
            store._database.write(lambda c: c.execute(insert, rows))
    with MetadataStore.open(database_url, clock=clock) as store:
        found = store.segment_overviews.read(lambda overview: overview.totals_by_time("d"))
    assert [(one.bytes, one.rows) for one in reversed(found)] == [
        (7, 1 << 40),
        (0, 0),
        (0, 0),
        (12, 2),
    ]


FILE = "a~fc~/2013-01-01T00_00_00.000Z_2013-01-02T00_00_00.000Z/v1/0/u/part.parquet"
ATTEMPT = "a/attempts/task/1/x y.parquet"
LOAD_SPECS = [
    ({"type": "local", "path": f"/was/a b#ü%20%/segments/{FILE}"}, FILE),
    ({"type": "local", "path": f"/attempts/x/y/segments/{ATTEMPT}"}, ATTEMPT),
    ({"type": "fsspec", "url": f"s3://bucket/segments/{ATTEMPT}"}, ATTEMPT),
    ({"type": "tombstone"}, None),
    ({"type": "local", "path": "/elsewhere/index.zip"}, None),
    ({"type": "hdfs", "path": f"/was/{FILE}"}, None),
    (None, None),
]


def test_load_specs_of_older_formats_become_relative(database_url, clock, monkeypatch) -> None:
    insert = text(
        "INSERT INTO penstock_segments (id, datasource, start_ms, end_ms, version,"
        " partition_number, core_partitions, used, created_ms, used_changed_ms, payload)"
        " VALUES (:id, 'd', 0, 1, 'v', :number, 0, :used, 1, 1, :payload)"
    )
    rows = [
        {
            "id": f"s{number}",
            "number": number,
            "used": number % 2 == 0,
            "payload": json.dumps({"loadSpec": LOAD_SPECS[number % len(LOAD_SPECS)][0], "size": 7}),
        }
        for number in range(1_500)
    ]
    with monkeypatch.context() as older:
        older.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:5])
        older.setattr(migrations, "FORMAT_NUMBER", 5)
        with MetadataStore.open(database_url, clock=clock) as store:
            store._database.write(lambda c: c.execute(insert, rows))
    with MetadataStore.open(database_url, clock=clock) as store:
        found = {row.id: row.payload for row in store.segments.every()}
    assert len(found) == len(rows)
    for number in range(1_500):
        before, path = LOAD_SPECS[number % len(LOAD_SPECS)]
        wanted = before if path is None else {"type": "deepStorage", "path": path}
        assert found[f"s{number}"] == {"loadSpec": wanted, "size": 7}


@pytest.mark.parametrize("content", [b"this is a diary, not a database\n" * 100, b"x"])
def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path, content) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"metadata\.db is not an SQLite database: use"):
        MetadataStore.open(sqlite_url(path))
    assert path.read_bytes() == content


def test_an_empty_file_becomes_a_database(tmp_path) -> None:
    path = tmp_path / "metadata.db"
    path.touch()
    with MetadataStore.open(sqlite_url(path)) as store:
        assert store.revision() == 0


def test_a_database_of_something_else_is_refused(tmp_path) -> None:
    path = tmp_path / "photos.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE photos (id INTEGER)")
    connection.close()
    with pytest.raises(InvalidRequest, match=r"another program.*'photos'"):
        MetadataStore.open(sqlite_url(path))


def test_a_damaged_database_is_named(tmp_path) -> None:
    path = tmp_path / "metadata.db"
    with MetadataStore.open(sqlite_url(path)) as store:
        for number in range(50):
            store.tasks.insert_new([task(f"t{number}", 2000)])
    content = bytearray(path.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 : page * 4096 + 512] = b"\xff" * 512
    path.write_bytes(content)
    with (
        pytest.raises(CorruptData, match=r"metadata\.db.*backup"),
        MetadataStore.open(sqlite_url(path)) as store,
    ):
        store.tasks.list()


def test_a_folder_that_is_missing_or_a_file_is_named(tmp_path) -> None:
    with pytest.raises(InvalidRequest, match=rf"create the folder {tmp_path}/none"):
        MetadataStore.open(sqlite_url(tmp_path / "none" / "metadata.db"))
    with pytest.raises(InvalidRequest, match="it is a folder"):
        MetadataStore.open(sqlite_url(tmp_path))


_OPEN_AS_NOBODY = """
import os, sys
from penstock.core.errors import PenstockError
from penstock.storage.metadata import MetadataStore, TaskRow
MetadataStore.open(sys.argv[2]).close()  # loads all code while this user may read it
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    with MetadataStore.open(sys.argv[1]) as store:
        store.tasks.insert_new([TaskRow("t1", "d", "index", "g", {})])
except PenstockError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("existing", [False, True])
def test_a_read_only_folder_is_named(tmp_path, existing) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    if existing:
        MetadataStore.open(sqlite_url(folder / "metadata.db")).close()
    for path in (tmp_path, *tmp_path.parents):
        if not path.stat().st_mode & stat.S_IXOTH:
            path.chmod(0o755)
    folder.chmod(0o555)
    for path in folder.iterdir():
        path.chmod(0o444)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _OPEN_AS_NOBODY,
            sqlite_url(folder / "metadata.db"),
            sqlite_url(tmp_path / "other.db"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    folder.chmod(0o755)
    assert done.stdout.startswith("InvalidRequest "), done.stderr
    assert f"write the folder {folder}" in done.stdout


def test_a_full_disk_changes_nothing(tmp_path) -> None:
    with MetadataStore.open(sqlite_url(tmp_path / "metadata.db")) as store:
        store.tasks.insert_new([task("t1")])

        def limit(connection: sqlite3.Connection, _record: object, _proxy: object) -> None:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count={pages + 1}")

        engine = store._database._engine
        event.listen(engine, "checkout", limit)
        with pytest.raises(Unavailable, match="disk is full: free space"):
            store.tasks.insert_new([task("t2", 100_000)])
        event.remove(engine, "checkout", limit)
        assert [row.id for row in store.tasks.list()] == ["t1"]


def test_a_database_that_stays_busy_is_unavailable(tmp_path, clock) -> None:
    path = tmp_path / "metadata.db"
    with MetadataStore.open(sqlite_url(path), clock=clock, busy_timeout_ms=1) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="keeps it busy: try again later"):
            store.tasks.insert_new([task("t1")])
        assert store.tasks.list() == []
        other.execute("ROLLBACK")
        other.close()
        store.tasks.insert_new([task("t1")])


@pytest.mark.postgres
def test_a_statement_that_takes_for_ever_is_unavailable(postgres, clock, monkeypatch) -> None:
    url = postgres.empty_database()
    MetadataStore.open(url, clock=clock).close()
    monkeypatch.setattr("penstock.storage.metadata.backends.postgres.STATEMENT_TIMEOUT_MS", 50)
    with MetadataStore.open(url, clock=clock) as store:
        with pytest.raises(Unavailable, match="statement timeout"):
            store._database.read(lambda c: c.execute(text("SELECT pg_sleep(60)")))
        assert store.tasks.list() == []


class Proxy:
    """Passes bytes on to a server until it is frozen: what is sent then waits, and stays open."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path
        self._going = threading.Event()
        self._going.set()
        self._open: list[socket.socket] = [socket.create_server(("127.0.0.1", 0))]
        self.port = self._open[0].getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def freeze(self) -> None:
        self._going.clear()

    def thaw(self) -> None:
        self._going.set()

    def close(self) -> None:
        self.thaw()
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    def _start(self, target, *args) -> None:
        thread = threading.Thread(target=target, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._open[0].accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._path)
                self._open += (client, server)
                self._start(self._pass_on, client, server)
                self._start(self._pass_on, server, client)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self._going.wait()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@pytest.mark.postgres
def test_a_server_that_says_nothing_is_unavailable(postgres, clock, monkeypatch) -> None:
    folder = postgres.empty_database().partition("host=")[2]
    MetadataStore.open(postgres.url, clock=clock).close()
    proxy = Proxy(f"{folder}/.s.PGSQL.5432")
    url = f"postgresql+psycopg://penstock@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
    try:
        with MetadataStore.open(url, clock=clock) as store:

            def freeze_and_ask(connection) -> None:
                proxy.freeze()
                # The server has as long as it needs wherever it answers.
                bounded = connection.connection.driver_connection
                assert bounded.answer_timeout_s == backend.ANSWER_TIMEOUT_MS / 1000
                bounded.answer_timeout_s = 0.3
                connection.execute(text("SELECT 1"))

            with pytest.raises(Unavailable, match=r"no answer within 0\.3 s"):
                store._database.read(freeze_and_ask)
            # Whoever asks next hears so at once; later it is tried again, and connects in vain.
            with pytest.raises(Unavailable, match="did not answer a moment ago"):
                store.tasks.list()
            clock.ms += 10_001
            with monkeypatch.context() as hasty:
                hasty.setattr(backend, "CONNECT_TIMEOUT_S", 2)
                with pytest.raises(Unavailable, match="timeout expired"):
                    store.tasks.list()
            clock.ms += 10_001
            proxy.thaw()
            store.tasks.insert_new([task("t1")])
            assert [row.id for row in store.tasks.list()] == ["t1"]
    finally:
        proxy.close()


@pytest.mark.postgres
def test_a_row_lock_that_stays_is_unavailable(postgres, clock) -> None:
    url = postgres.empty_database()
    with MetadataStore.open(url, clock=clock, busy_timeout_ms=1) as store:
        held, done = threading.Event(), threading.Event()

        def hold(connection) -> None:
            connection.execute(text("SELECT id FROM penstock_revision FOR UPDATE"))
            held.set()
            done.wait()

        holder = threading.Thread(target=store._database.write, args=(hold,))
        holder.start()
        held.wait()
        with pytest.raises(Unavailable, match="try again"):
            store.announce("t1", "d", "s0", [])
        done.set()
        holder.join()
        store.announce("t1", "d", "s0", [])


@pytest.mark.postgres
def test_a_text_that_postgresql_cannot_keep_is_a_mistake_of_who_sent_it(postgres, clock) -> None:
    with MetadataStore.open(postgres.empty_database(), clock=clock) as store:
        with pytest.raises(InvalidRequest, match="NUL"):
            store.rules.put("a\0b", [])
        with pytest.raises(InvalidRequest, match="NUL"):
            store.segments.by_ids(["a\0b"])
        assert store.segments.by_ids(["a"]) == []


@pytest.mark.postgres
def test_a_server_that_is_gone_is_unavailable_and_its_secret_not_told(postgres, clock, tmp_path):
    with pytest.raises(Unavailable, match="check the database server") as caught:
        MetadataStore.open(f"postgresql+psycopg://me:hush@/db?host={tmp_path}", clock=clock)
    assert "hush" not in str(caught.value)
    url = postgres.empty_database()
    with pytest.raises(InvalidRequest, match="correct user, password or database"):
        MetadataStore.open(url.replace("/postgres?", "/nothing?"), clock=clock)
    with MetadataStore.open(url, clock=clock) as store:
        # The server ends our connections; the next call makes a new one.
        store._database.read(
            lambda c: c.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
            )
        )
        assert store.revision() == 0


_OPEN = """
import os, sys
from penstock.storage.metadata import MetadataStore

def put():
    os.close(starter)
    os.read(start, 1)
    with MetadataStore.open(sys.argv[1]) as store:
        os.write(1, b"%d\\n" % store.supervisors.put("s", {}).version)

start, starter = os.pipe()
children = []
for _ in range(3):
    if not (child := os.fork()):
        try:
            put()
        except BaseException as error:
            os.write(2, repr(error).encode())
        os._exit(0)
    children.append(child)
os.close(starter)
for child in children:
    os.waitpid(child, 0)
"""


def test_processes_that_start_at_once_take_turns(database_url) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, database_url], capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.split()) == ["1", "2", "3"], done.stderr


_CUT = """
import json, os, signal, sys
from sqlalchemy import Engine, event
from penstock.core.intervals import Interval
from penstock.storage.metadata import *

what, paths = sys.argv[1], sys.argv[2:]
steps = 0

def run(path, cut_at):
    global steps
    steps = 0

    def count(*_):
        global steps
        steps += 1
        if steps == cut_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def arm():
        event.listen(Engine, "before_cursor_execute", count)
        event.listen(Engine, "commit", count)

    if what == "migrate":
        arm()
    store = MetadataStore.open("sqlite:///" + path)
    if what == "publish":
        arm()
        day = Interval(0, 86400000)
        store.publish(PublishRequest(
            "t1", "d", tuple(SegmentRow(f"d{n}", "d", day, "v", n, 0, {}) for n in range(3)),
            "sup", {0: 0}, {0: 9}, "s0", CountsRow(9)))
    store.close()

def run_in_child(path, cut_at):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run(path, cut_at)
            os.write(writer, str(steps).encode())
        finally:
            os._exit(0)
    os.close(writer)
    took = os.read(reader, 20)
    os.close(reader)
    status = os.waitpid(child, 0)[1]
    return int(took) if took else -os.WTERMSIG(status)

ends = [run_in_child(paths[0], 0)]
for number, path in enumerate(paths[1:], 1):
    ends.append(run_in_child(path, number))
    if ends[-1] == ends[0]:
        break
print(json.dumps(ends))
"""


def _cut_everywhere(what: str, prepare, check, tmp_path) -> None:
    """Run a transaction in child processes, each killed with -9 one step later than the last.

    The last of them is not killed: the transaction has no further step.
    """
    paths = [tmp_path / f"cut_{number}.db" for number in range(80)]
    prepare(paths[0])
    if paths[0].exists():
        for path in paths[1:]:
            shutil.copy(paths[0], path)
    done = subprocess.run(
        [sys.executable, "-c", _CUT, what, *map(str, paths)],
        capture_output=True,
        text=True,
        check=True,
    )
    whole, *ends = json.loads(done.stdout)
    assert 8 < whole < len(paths), f"{whole} steps: prepare as many files"
    assert ends == [-9] * whole + [whole]
    for path in paths[1 : whole + 1]:
        check(path)


def test_a_publish_that_is_killed_anywhere_is_not_there_at_all(tmp_path, clock) -> None:
    from penstock.core.intervals import Interval
    from penstock.storage.metadata import AllocateRequest, AnnouncedFile, CountsRow, PublishRequest

    day = Interval(0, 86_400_000)

    def prepare(path: Path) -> None:
        with MetadataStore.open(sqlite_url(path), clock=clock) as store:
            store.announce("t1", "d", "s0", [AnnouncedFile("/f", day, 9)])
            store.allocate_segments([AllocateRequest("d", day, "s0", "v")])
            store.begin_offsets("sup", {0: 0})

    def check(path: Path) -> None:
        with MetadataStore.open(sqlite_url(path), clock=clock) as store:
            snapshot = store.snapshot()
            assert (snapshot.segments, len(snapshot.announced)) == ((), 1)
            assert store.offsets("sup") == {0: 0}
            assert store.counts("sup") == CountsRow()
            assert len(store.segments.pending("d")) == 1
            request = PublishRequest("t1", "d", (), "sup", {0: 0}, {0: 9}, "s0")
            assert store.publish(request).ok

    _cut_everywhere("publish", prepare, check, tmp_path)


def test_a_migration_that_is_killed_anywhere_runs_again(tmp_path, clock) -> None:
    def check(path: Path) -> None:
        with MetadataStore.open(sqlite_url(path), clock=clock) as store:
            store.tasks.insert_new([task("t1")])
            assert store.revision() == 0

    _cut_everywhere("migrate", lambda _path: None, check, tmp_path)


@pytest.mark.parametrize(
    ("code", "said", "meant", "match"),
    [
        (sqlite3.SQLITE_IOERR, "disk I/O error", Unavailable, "check the disk"),
        (sqlite3.SQLITE_NOMEM, "out of memory", Unavailable, "short of memory"),
        (sqlite3.SQLITE_BUSY, "database is locked", Unavailable, "busy"),
        (sqlite3.SQLITE_TOOBIG, "string or blob too big", InvalidRequest, "cannot store"),
        (sqlite3.SQLITE_ERROR, "no such table: penstock_tasks", InvalidRequest, "from a backup"),
    ],
)
def test_what_sqlite_says_is_told_as_what_it_is(tmp_path, clock, code, said, meant, match) -> None:
    error = sqlite3.OperationalError(said)
    error.sqlite_errorcode = code

    def fail(_connection) -> None:
        raise error

    with (
        MetadataStore.open(sqlite_url(tmp_path / "m.db"), clock=clock) as store,
        pytest.raises(meant, match=match),
    ):
        store._database.write(fail)


def test_a_wrong_statement_of_ours_is_no_trouble_of_the_disk(tmp_path, clock) -> None:
    with (
        MetadataStore.open(sqlite_url(tmp_path / "m.db"), clock=clock) as store,
        pytest.raises(OperationalError, match="syntax"),
    ):
        store._database.read(lambda c: c.execute(text("SELEKT 1")))
