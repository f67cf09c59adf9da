"""Commits of clients of the Iceberg catalog: appends to datasources.

Owns the steps from a commit to a task, and when a commit is repeated. A task of type `index_spark`
checks the client's files, writes segments of their rows and publishes them under an APPEND lock, as
every task does. Its id follows from the snapshot that the client adds, so that each step can be
repeated after a crash of any process:

1. If the task exists, the commit is a repeated one: its outcome is the answer.
2. Otherwise what the client requires of the table is checked, and the manifests are read.
3. The files are moved into the folder of the task. Another commit does not find them any longer.
4. The task is submitted, and its end awaited.

Invariant: the rows of a commit are published once or not at all, and an answer other than
`CommitStateUnknown` says which. Until it is known that no task of the commit exists, an earlier
request with the same commit may have submitted one.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import orjson

from penstock.core.clock import Clock, pause
from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.indexing.specs.batch.spark_write import ATTEMPT
from penstock.segments.iceberg.client_files import DATA, ClientFiles
from penstock.segments.iceberg.table_appends import AddedFile, TableAppend, added_files
from penstock.segments.iceberg.table_versions import TableVersion
from penstock.segments.visible_rows import TIME_COLUMN
from penstock.services.api.iceberg.catalog_tables import CatalogTables
from penstock.services.api.spark_writes import form_of
from penstock.services.json_client import JsonClient
from penstock.services.json_values import part
from penstock.spark.sink.router_client import DatasourceForm, status_path
from penstock.spark.sink.write_plan import STORED_AS, check_against, schema_of
from penstock.storage.metadata import MetadataStore

WAIT_S: Final = 50.0
"""Time after which a commit is answered, even if its task runs; clients give up after a minute."""
TURN_S: Final = 20.0
"""Part of this time for which it waits for other commits of the table."""

COMMITS_MAX: Final = 16
"""Commits of all tables that a router has at once."""
TABLE_COMMITS_MAX: Final = 4
"""Commits of one table; they run one after the other."""

_POLL_S: Final = 0.25
_TASKS: Final = "/druid/indexer/v1/task"
_NAMES_IN_SPARK: Final = {
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
}
"""The types of Iceberg whose values a task accepts, and what Spark calls them."""

Headers = Mapping[str, str]


@dataclass(slots=True)
class _Turn:
    """The turn of the commits of a table, and the task of the one that has it, or had it last."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    task_id: str = ""


class CommitStateUnknown(Unavailable):
    """The outcome of a commit is not known; its rows may be published later."""


class CommitsFull(Unavailable):
    """Too many commits run, or wait; this one has changed nothing."""

    retry_after_s: Final = 5


class CommitPlaces:
    """Room for commits, each of which may wait for a minute: of all tables, and of each.

    On an event loop. Commits to one table cannot take the room of others.
    """

    def __init__(self) -> None:
        self._by_table: Counter[str] = Counter()

    @contextmanager
    def taken(self, table: str) -> Iterator[None]:
        """Take a place for a commit until the block ends. Raises CommitsFull without room."""
        if self._by_table[table] >= TABLE_COMMITS_MAX or self._by_table.total() >= COMMITS_MAX:
            raise CommitsFull(
                f"{self._by_table[table]} commits of this table and {self._by_table.total()} of all"
                f" tables are not answered yet: try again in {CommitsFull.retry_after_s} s"
            )
        self._by_table[table] += 1
        try:
            yield
        finally:
            self._by_table[table] -= 1
            self._by_table += Counter()  # drops tables without commits


class CatalogCommits:
    """Appends of clients. Any thread may call.

    Args:
        tables: The tables.
        store: The metadata store.
        deep_storage: Root of the deep storage.
        overlord: Returns a client of the overlord; may raise Unavailable.
        clock: Measures waits.
    """

    def __init__(
        self,
        tables: CatalogTables,
        store: MetadataStore,
        deep_storage: str,
        overlord: Callable[[], JsonClient],
        clock: Clock,
    ) -> None:
        self._tables = tables
        self._store = store
        self._deep_storage = deep_storage
        self._overlord = overlord
        self._clock = clock
        # Guards the dictionary; requests are on many threads.
        self._mutex = threading.Lock()
        self._turns: dict[str, _Turn] = {}

    def commit(self, datasource: str, body: Mapping[str, object], headers: Headers) -> TableVersion:
        """Append the rows of a commit, and return the version of the table that has them.

        Args:
            datasource: The stored name of the datasource.
            body: The commit in the catalog's JSON form.
            headers: The principal of the request, for the overlord.

        Raises:
            InvalidRequest: The commit cannot be accepted, or its task has failed.
            Conflict: The table has changed since the client read it.
            NotFound: A file of it does not exist.
            CommitStateUnknown: Its task has not ended in time, or it is not known whether there is
                one, because the metadata, the deep storage or the overlord does not answer.
            CommitsFull: Nothing was published: other commits take too long.
            Unavailable: Nothing was published: the deep storage does not answer.
        """
        until_s = self._clock.monotonic_s() + WAIT_S
        append = TableAppend.from_json(body)
        with _outcome_unknown():
            task_id = _task_id(self._tables.version(datasource), datasource, append)
        with self._turn(datasource, task_id):
            with _outcome_unknown():
                status = self._status(task_id, datasource, headers)
            if status is None:
                self._submit(task_id, datasource, append, headers)
            self._wait(task_id, datasource, headers, until_s)
        with _outcome_unknown():
            return self._tables.newest_version(datasource)

    @contextmanager
    def _turn(self, datasource: str, task_id: str) -> Iterator[None]:
        """Let one commit of a table at a time through, so that requirements hold until its end."""
        with self._mutex:
            turn = self._turns.setdefault(datasource, _Turn())
        if not turn.lock.acquire(timeout=TURN_S):
            if turn.task_id == task_id:
                raise CommitStateUnknown(
                    f"the task {task_id} of this commit has not ended: load the table later to see"
                    " its rows"
                )
            raise CommitsFull(
                f"other commits of {datasource} have taken {TURN_S:.0f} s: try again later"
            )
        try:
            turn.task_id = task_id
            yield
        finally:
            turn.lock.release()

    def _submit(
        self,
        task_id: str,
        datasource: str,
        append: TableAppend,
        headers: Headers,
    ) -> None:
        version = self._tables.version(datasource)
        append.check(version.metadata)
        files = ClientFiles(self._deep_storage, datasource)
        added = added_files(append, files.read)
        form = form_of(self._store, datasource, self._tables.columns(datasource))
        spec = _spec(task_id, form, append.added_columns(version.metadata), added)
        for file in added:  # all places are checked before any file is moved
            files.place(file.uri, DATA)
        for number, file in enumerate(added):
            files.take(file.uri, task_id, ATTEMPT, _name(number, file))
        content = orjson.dumps(spec)
        try:
            self._overlord().request("POST", _TASKS, content, headers=headers)
        except Unavailable as error:
            raise CommitStateUnknown(f"the overlord does not answer: {error}") from error

    def _status(
        self, task_id: str, datasource: str, headers: Headers
    ) -> Mapping[str, object] | None:
        """Return the status of a task; None: there is no such task."""
        try:
            answer = self._overlord().request("GET", status_path(task_id), headers=headers)
        except NotFound:
            return None
        status = part(answer, "status")
        if not isinstance(status, Mapping) or status.get("dataSource") != datasource:
            raise InvalidRequest(f"the task {task_id} of this snapshot is of another datasource")
        return status

    def _wait(self, task_id: str, datasource: str, headers: Headers, until_s: float) -> None:
        while True:
            reason = f"the task {task_id} of this commit has not ended in {WAIT_S:.0f} s"
            try:
                status = self._status(task_id, datasource, headers) or {}
            except Unavailable as error:
                status, reason = {}, f"the overlord does not answer: {error}"
            state = status.get("statusCode")
            if state == "SUCCESS":
                return
            if state == "FAILED":
                why = status.get("errorMsg") or "the reason is in its log"
                raise InvalidRequest(f"nothing was appended: task {task_id} failed: {why}")
            if self._clock.monotonic_s() >= until_s:
                raise CommitStateUnknown(f"{reason}: load the table later to see its rows")
            pause(self._clock, _POLL_S)


@contextmanager
def _outcome_unknown() -> Iterator[None]:
    """Raise CommitStateUnknown instead of Unavailable."""
    try:
        yield
    except Unavailable as error:
        raise CommitStateUnknown(
            f"{error}; an earlier request may have appended the rows: load the table later to see"
        ) from error


def _task_id(version: TableVersion, datasource: str, append: TableAppend) -> str:
    text = f"{version.metadata['table-uuid']}\n{append.snapshot_id}\n{datasource}"
    return f"index_spark_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _name(number: int, file: AddedFile) -> str:
    return f"{number:05d}-{hashlib.sha256(file.uri.encode()).hexdigest()[:32]}.parquet"


def _spec(
    task_id: str,
    form: DatasourceForm,
    added_columns: Mapping[str, object],
    files: list[AddedFile],
) -> dict[str, object]:
    """Return the task that publishes the files."""
    accepted = frozenset(_NAMES_IN_SPARK.values())
    found = {
        name: STORED_AS[type_]
        for name, type_ in form.columns
        if name != TIME_COLUMN and type_ in accepted
    }
    for name, type_ in added_columns.items():
        in_spark = _NAMES_IN_SPARK.get(type_) if isinstance(type_, str) else None
        if in_spark is None:
            raise InvalidRequest(
                f"the new column {name!r} has a type that a datasource cannot store: use one of"
                f" {', '.join(_NAMES_IN_SPARK)}"
            )
        found[name] = STORED_AS[in_spark]
    check_against(form.columns, found)
    # Rows of the table are those of the datasource, with metrics as they are stored.
    schema = schema_of({"rollup": "false"}, form, found)
    return {
        "type": "index_spark",
        "id": task_id,
        "dataSchema": schema.model_dump(mode="json", by_alias=True),
        "files": [
            {"name": _name(number, file), "rows": file.rows, "bytes": file.size_bytes}
            for number, file in enumerate(files)
        ],
        "rows": sum(file.rows for file in files),
        "converts": True,
        "context": {"useConcurrentLocks": True},
    }
