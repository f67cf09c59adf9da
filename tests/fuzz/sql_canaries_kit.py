"""Places that no statement may reach on a host, and detectors that see when one does."""

from __future__ import annotations

import re
import secrets
import socket
import stat
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.intervals import Interval
from penstock.flow.processor import ProcessError
from penstock.indexing.specs.rows.declared_projections import DeclaredProjections
from penstock.spark.connect.spark_sessions import SparkRefusal, SparkSessions
from penstock.spark.sql import service as sql_service
from penstock.spark.sql.case_tables import QuerySessions
from penstock.spark.sql.service import SqlOptions, SqlQuery, SqlService
from penstock.spark.tables import Feeder, TableFile, Tables
from tests.fuzz.sql_places_kit import (
    PLACES,
    WRITERS,
    Place,
    unchecked_statement,
    without_text_checks,
)
from tests.fuzz.sql_statements_kit import Canaries, statement

VARIABLE = "CANARY_OF_TESTS"
TIMEOUT_MS = 150_000  # a busy machine may be slow at the first statement
SETTINGS = (
    *("spark.sql.ansi.enabled", "spark.sql.session.timeZone", "spark.penstock.canary"),
    *("spark.sql.variable.substitute", "spark.sql.runSQLOnFiles"),
)


class OneDatasource:
    """Tables of one datasource that does not change."""

    def __init__(self, path: Path) -> None:
        rows = pa.table({"n": pa.array([1, 2, 3], pa.int64()), "s": pa.array(["a", "b", "c"])})
        pq.write_table(rows, path)
        columns = (("n", "bigint"), ("s", "string"))
        file = TableFile(str(path), columns, Interval(0, 1), size_bytes=path.stat().st_size)
        self._tables = Tables(1, {"canary": (file,)})

    def revision(self) -> int:
        return 1

    def tables(self) -> Tables:
        return self._tables

    def feeders(self, datasource: str) -> list[Feeder]:
        return []

    def is_dropped(self, datasource: str) -> bool:
        return False

    def projections(self, datasource: str) -> list[DeclaredProjections]:
        return []


class Queries:
    """`POST /druid/v2/sql`.

    Args:
        service: Answers them.
    """

    sessions: Sequence[SparkSessions] = ()

    def __init__(self, service: SqlService) -> None:
        self._service = service

    def check(self, sql: str) -> None:
        sql_service.read_statement(sql)  # type: ignore[attr-defined]  # it is patched there

    def run(self, sql: str, *parameters: object) -> str:
        result = self._service.query(SqlQuery(sql, parameters))  # type: ignore[arg-type]
        return str(result.table.to_pydict()) + str(result.table.column_names)

    def close(self) -> None:
        """The service ends with its watch."""


def resolving(sessions: QuerySessions) -> SparkSessions:
    """The sessions in which queries without a reader are resolved."""
    with sessions._outlined_for("") as own:
        return own.sessions


class Watch:
    """A service with canaries around it.

    Args:
        sessions: Spark, whose environment has `VARIABLE` with the secret.
        folder: Where canaries are.
        secret: Text that no answer may contain.
        place: Where statements are given: `query`, or one of `PLACES`.
    """

    def __init__(
        self, sessions: SparkSessions, folder: Path, secret: str, place: str = "query"
    ) -> None:
        self.secret, self.folder = secret, folder
        self._path = re.compile(re.escape(str(folder)) + r"[\w.%/-]*")
        folder.mkdir(parents=True, exist_ok=True)
        self._file, self._script = folder / "secret.txt", folder / "script"
        self._mark, self._output = folder / "ran", folder / "output"
        self._file.write_text(f"{secret}\n")
        self._script.write_text(f"#!/bin/sh\ntouch {self._mark}\ncat\n")
        self._script.chmod(self._script.stat().st_mode | stat.S_IXUSR)
        self.requests: list[bytes] = []
        module = f"canary_{secrets.token_hex(12)}"
        (folder / f"{module}.py").write_text(f"open({str(self._mark)!r}, 'w').close()\n")
        sys.path.append(str(folder))
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._listen, daemon=True).start()
        url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/x.xsd"
        self.canaries = Canaries(
            str(self._file), str(self._script), str(self._output), VARIABLE, url, module
        )
        file = folder / "canary.parquet"
        source = OneDatasource(file)
        self.service = SqlService(sessions, source, SystemClock(), SqlOptions(100, TIMEOUT_MS))
        self.place: Place = (
            PLACES[place](sessions, source, file) if place in PLACES else Queries(self.service)
        )
        self.write = WRITERS.get(place, statement)
        self.counts: Counter[str] = Counter()
        self._normal: object = None
        self._normal = self._state()

    def close(self) -> None:
        """End the service and the server."""
        sys.path.remove(str(self.folder))
        self.place.close()
        self.service.close()
        self._listener.close()

    def run(self, sql: str, parameters: Sequence[object] = ()) -> list[str]:
        """Run a statement; return what it reached at once: secrets, paths, processes, files."""
        try:
            self.place.check(sql)
        except InvalidRequest:
            is_refused = True
        else:
            is_refused = False
        reached = []
        try:
            said = self.place.run(sql, *parameters)
        except PenstockError as error:
            understood = "its plan contains" in str(error)
            kind = "by plan" if understood else "by Spark"
            self.counts["refused by text" if is_refused else f"refused {kind}"] += 1
            shown = isinstance(error, InvalidRequest | SparkRefusal | ProcessError)
            said = str(error) if shown else ""
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a fault of ours
            return [f"raised {error!r}", *self.marks()]
        else:
            self.counts["answered"] += 1
            # What a statement names itself may come back, also if it is written with escapes.
            given = f"{sql} {parameters}"
            if set(self._path.findall(said)) - set(self._path.findall(given + unescaped(given))):
                reached.append("path of the host")
        if self.secret in said:
            reached.append("secret")
        return reached + self.marks()

    def marks(self) -> list[str]:
        """Return what was reached outside of answers."""
        reached = []
        if self._mark.exists():
            reached.append("process")
            self._mark.unlink()
        if self._output.exists():
            reached.append("file")
        if self.requests:
            reached.append("network")
            self.requests.clear()
        return reached

    def state(self) -> list[str]:
        """Return what differs from the start: rows of the datasource, views and settings."""
        return [] if self._state() == self._normal else [f"state: {self._state()}"]

    def _state(self) -> object:
        seen: list[object] = []
        rows = self.service.query(SqlQuery("SELECT n, s FROM canary ORDER BY n"))
        seen.append(rows.table.to_pydict())
        of_queries = (self.service._sessions._sessions, resolving(self.service._sessions))
        for sessions in (*of_queries, *self.place.sessions):
            with sessions.use() as spark:
                views = sorted(table.name for table in spark.catalog.listTables())
                settings = [spark.conf.get(name, None) for name in SETTINGS]
                seen.append((views, spark.catalog.currentDatabase(), settings))
        return seen

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client, suppress(OSError):
                    client.settimeout(5)
                    self.requests.append(client.recv(1_000))


_ESCAPE = re.compile(r"\\+(?:([0-7]{3})|u([0-9a-fA-F]{4})|(.))")


def unescaped(text: str) -> str:
    """Return a text with what Spark makes of the escapes in it."""

    def meant(match: re.Match[str]) -> str:
        octal, unicode, one = match.groups()
        return one or chr(int(octal, 8) if octal else int(unicode, 16))

    return _ESCAPE.sub(meant, text)


def new_secret() -> str:
    """Return a secret for `VARIABLE`."""
    return f"canary{secrets.token_hex(12)}"


@contextmanager
def watching(
    sessions: SparkSessions, folder: Path, secret: str, place: str = "query"
) -> Iterator[Watch]:
    """Give a service with canaries to a block, and a place where statements are given."""
    watch = Watch(sessions, folder, secret, place)
    try:
        yield watch
    finally:
        watch.close()


@contextmanager
def without_text_check() -> Iterator[None]:
    """Have services pass each statement on to Spark as it is; the check of plans stays."""
    unchecked = mock.patch.object(
        sql_service, "read_statement", lambda sql, _parameters=(), **_more: unchecked_statement(sql)
    )
    with unchecked, without_text_checks():
        yield


def run_seeds(watch: Watch, seeds: range) -> list[str]:
    """Run the statements of seeds; return what was reached, with the seeds."""
    return run_statements(watch, seeds) + changes(watch, seeds)


def run_statements(watch: Watch, seeds: range) -> list[str]:
    """Run the statements of seeds; return what each reached. Several threads may run some."""
    found = []
    for seed in seeds:
        written = watch.write(seed, watch.canaries)
        sql, parameters = (written, ()) if isinstance(written, str) else written
        reached = watch.run(sql, parameters)
        if reached:
            found.append(f"seed {seed}: {reached}: {sql!r} {parameters!r}")
    return found


def changes(watch: Watch, seeds: range) -> list[str]:
    """Return what statements changed; none runs."""
    changed = watch.state()
    return [f"seeds {seeds}: {changed}"] if changed else []
