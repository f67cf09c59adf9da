"""Process of the embedded engine: `python -P -m penstock.fastpath.engine_process DESCRIPTOR`.

Owns DuckDB: its settings, the relations of queries, and their interruption. It gets queries that
Penstock compiled over a socket whose other end the router has (`engine_pool`), and ends with it.

The engine may read the files of a few folders, and nothing else: it loads no extensions, opens no
connections, and cannot write, because the process may not write files. A filter of system calls,
which the router sends, refuses other things that it does not need. A relation is a view of its
own connection, so that a query names only `rows`. The engine keeps the footers of files.

Invariant: a query is answered or refused with a reason; the text of a statement never gets here.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import resource
import signal
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import duckdb
import msgspec
import pyarrow as pa

from penstock.core.threads import OwnedThread
from penstock.fastpath.compiled_query import LEFT_TO_SPARK
from penstock.fastpath.engine_protocol import (
    CONTENT_BYTES_MAX,
    ENGINE_FAILED,
    FILES_MAX,
    OUT_OF_MEMORY,
    QUERY_BYTES_MAX,
    UNKNOWN_RELATION,
    VALUES,
    EngineAnswer,
    EngineInterrupt,
    EngineQuery,
    EngineReady,
    EngineSettings,
    FrameError,
    PartColumn,
    Relation,
    RelationPart,
    receive_frame,
    refused,
    send_frame,
)
from penstock.fastpath.newest_rows import NewestTries, RowGroupTimes
from penstock.spark.connect.worker_memory import limit_this_process

# Tasks and Spark go first.
_NICENESS: Final = 10
# Of <sys/prctl.h>, <linux/seccomp.h> and <linux/filter.h>.
_NO_NEW_PRIVS: Final = 38
_SECCOMP: Final = 22
_FILTER: Final = 2
_FILTER_STEP_BYTES: Final = 8
_RELATIONS_MAX: Final = 64
# Checked files that are kept in mind, about 400 bytes each.
_CHECKED_MAX: Final = FILES_MAX
# Files that are checked before an interruption is noticed.
_CHECKED_AT_ONCE: Final = 64
_BATCH_ROWS: Final = 8_192
# Row groups by whose times the newest rows are searched: each query computes with them.
_NEWEST_GROUPS_MAX: Final = 64
# Digests of queries that a relation keeps.
_SELECTIVE_MAX: Final = 256
_INTERRUPT_EVERY_S: Final = 0.02
_WARM_UP: Final = (
    "SELECT x % 5 AS a, count(*) AS n, avg(x) AS mean, approx_count_distinct(x) AS some,"
    " min(make_timestamptz(x)) AS first FROM range(10000) t(x) WHERE x > $1 GROUP BY 1"
    " ORDER BY n DESC, a LIMIT 3"
)


class _Interrupted(Exception):
    """The query was interrupted while its files were checked."""


class _NotRead(Exception):
    """A file is not what its description says; Spark explains it."""


@dataclass(slots=True)
class _KnownRelation:
    """A relation: its connection, which has the view `rows`, and its number of files.

    `newest` are the files with the latest times, `selective` the digests of queries for the newest
    rows that read all files.
    """

    connection: duckdb.DuckDBPyConnection
    file_count: int
    newest: tuple[str, ...]
    selective: dict[bytes, None] = field(default_factory=dict)
    _groups: tuple[RowGroupTimes, ...] | None = None

    def newest_groups(self) -> tuple[RowGroupTimes, ...]:
        """Return the times of the row groups in the newest files; none if one is not known."""
        if self._groups is None:
            self._groups = _row_groups(self.connection, self.newest) if self.newest else ()
        return self._groups

    def note_selective(self, key: bytes) -> None:
        """Record the digest of a query for the newest rows that read all files."""
        self.selective[key] = None
        if len(self.selective) > _SELECTIVE_MAX:
            del self.selective[next(iter(self.selective))]

    def has_every_group(self) -> bool:
        """Return whether those are all row groups of the relation."""
        is_whole = len(self.newest_groups()) < _NEWEST_GROUPS_MAX
        return is_whole and len(self.newest) == self.file_count


def _row_groups(
    engine: duckdb.DuckDBPyConnection, paths: Sequence[str]
) -> tuple[RowGroupTimes, ...]:
    """Return the times of the newest row groups of some files; none if a footer lacks them."""
    shown = (
        "SELECT epoch_us(CAST(stats_min_value AS TIMESTAMPTZ)),"  # noqa: S608 - paths are quoted
        " epoch_us(CAST(stats_max_value AS TIMESTAMPTZ)), row_group_num_rows"
        f" FROM parquet_metadata({_list(paths)}) WHERE path_in_schema = '__time'"
        f" ORDER BY 2 DESC LIMIT {_NEWEST_GROUPS_MAX}"
    )
    found = engine.execute(shown).fetchall()
    if any(start_us is None or end_us is None for start_us, end_us, _ in found):
        return ()
    return tuple(RowGroupTimes(*one) for one in found)


class Engine:
    """DuckDB with its limits. One thread runs queries; another may interrupt them.

    Args:
        settings: The limits.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._engine = duckdb.connect(":memory:")
        folders = ", ".join(_text(f"{folder.rstrip('/')}/") for folder in settings.folders)
        for setting in (
            # Without a folder, a query that exceeds the memory fails instead of writing files.
            "temp_directory = ''",
            f"allowed_directories = [{folders}]",
            "enable_external_access = false",
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
            "allow_community_extensions = false",
            "allow_persistent_secrets = false",
            "python_enable_replacements = false",
            f"memory_limit = '{settings.memory_bytes}B'",
            f"threads = {settings.threads}",
            "TimeZone = 'UTC'",
            "parquet_metadata_cache = true",
            # For Spark, NaN is the greatest number, which minima and maxima of files leave out.
            "parquet_can_have_nan = true",
            "lock_configuration = true",
        ):
            # Otherwise the connections of relations would have the defaults of some.
            self._engine.execute(f"SET GLOBAL {setting}")
        self._relations: OrderedDict[str, _KnownRelation] = OrderedDict()
        # Files that were checked: path, size, and a hash of the columns; the last used ones.
        self._checked: OrderedDict[tuple[str, int, bytes], None] = OrderedDict()
        # Replaced in one step by the thread of queries; the other one reads them.
        self._running: tuple[int, duckdb.DuckDBPyConnection] | None = None
        self._interrupted = 0
        self._ended = threading.Event()

    def warm_up(self) -> None:
        """Run a query, because the first one takes longer."""
        _content(self._engine.sql(_WARM_UP, params=[7]).to_arrow_reader(_BATCH_ROWS), 10, 0)

    def answer(self, query: EngineQuery) -> EngineAnswer:
        """Return the rows of a query, or the reason why there are none."""
        number = query.number
        self._ended.clear()
        try:
            relation = self._relation(query)
            if relation is None:
                return refused(number, UNKNOWN_RELATION)
            self._running = number, relation.connection
            content = self._content_of(query, relation)
        except _NotRead as error:
            return refused(number, "files", error)
        except (duckdb.OutOfMemoryException, MemoryError, pa.ArrowMemoryError) as error:
            return refused(number, OUT_OF_MEMORY, error)
        except (duckdb.InterruptException, _Interrupted) as error:
            return refused(number, "interrupted", error)
        except (duckdb.FatalException, duckdb.InternalException) as error:
            return refused(number, ENGINE_FAILED, error)
        except (duckdb.IOException, duckdb.PermissionException) as error:
            return refused(number, "files", error)
        except (duckdb.Error, pa.ArrowException, RuntimeError, OSError) as error:
            return refused(number, self._reason(number, str(error)), error)
        finally:
            self._running = None
            self._ended.set()
        if content is None:
            return refused(number, "large answer")
        return EngineAnswer(number, content=content)

    def _content_of(self, query: EngineQuery, relation: _KnownRelation) -> bytes | None:
        """Return the rows of a query as an Arrow IPC stream; None if they are too large.

        Raises:
            _Interrupted: The query was interrupted before it began, or between two tries.
        """
        newest = query.newest
        if newest is None:
            return self._run(query, relation, query.sql, query.rows_max)[0]
        groups = relation.newest_groups()
        # A digest, because the text may have a megabyte.
        key = hashlib.sha256(repr((query.sql, query.parameters)).encode()).digest()
        end_us = None if query.end_ms is None else query.end_ms * 1_000
        rows_max = min(newest.limit, query.rows_max)
        tries = NewestTries(
            *(query.sql, newest, rows_max, groups),
            is_every=relation.has_every_group(),
            end_us=end_us,
            is_selective=key in relation.selective,
        )
        for one in tries:
            content, tries.found = self._run(query, relation, one.sql, rows_max, newest.offset)
            if content is None or one.is_last or tries.found >= one.rows:
                if one.is_last:
                    relation.note_selective(key)
                return content
        raise AssertionError("the last try is an answer")

    def _run(
        self,
        query: EngineQuery,
        relation: _KnownRelation,
        sql: str,
        rows_max: int,
        skipped: int = 0,
    ) -> tuple[bytes | None, int]:
        """Return rows of SQL, and the number of rows that came, as `_content`."""
        if self._interrupted == query.number:
            raise _Interrupted
        found = relation.connection.sql(sql, params=list(query.parameters))
        return _content(found.to_arrow_reader(_BATCH_ROWS), rows_max, skipped)

    def _reason(self, number: int, text: str) -> str:
        """Return the reason of another error; after the first rows, the engine's have no class."""
        if text.startswith("Out of Memory Error"):
            return OUT_OF_MEMORY
        if LEFT_TO_SPARK in text:
            return VALUES
        # Such as a number that is out of its range: Spark raises, too, or knows the answer.
        return "interrupted" if self._interrupted == number else "engine error"

    def interrupt(self, number: int) -> None:
        """End a query; it may have ended, or not have begun."""
        self._interrupted = number
        # The engine forgets an interruption that comes just before the query begins.
        while (running := self._running) is not None and running[0] == number:
            with suppress(duckdb.ConnectionException):  # narrow: it was closed, so the query ended
                running[1].interrupt()
            self._ended.wait(_INTERRUPT_EVERY_S)

    def _relation(self, query: EngineQuery) -> _KnownRelation | None:
        """Return the relation of a query; None: it is not known."""
        known = self._relations.get(query.token)
        if known is not None:
            self._relations.move_to_end(query.token)
            return known
        if query.relation is None:
            return None
        files = query.relation.file_count
        while self._relations and (
            len(self._relations) >= _RELATIONS_MAX
            or files + sum(one.file_count for one in self._relations.values()) > FILES_MAX
        ):
            self._relations.popitem(last=False)[1].connection.close()
        made = self._engine.cursor()
        self._running = query.number, made
        try:
            for part in query.relation.parts:
                self._check_files(query.number, made, part)
            made.execute(f"CREATE TEMP VIEW rows AS {relation_sql(query.relation)}")
        except BaseException:
            self._running = None
            made.close()
            raise
        found = _KnownRelation(made, files, query.relation.newest)
        self._relations[query.token] = found
        return found

    def _check_files(
        self, number: int, engine: duckdb.DuckDBPyConnection, part: RelationPart
    ) -> None:
        """Report wrong files, which the engine would read nevertheless.

        A file that is written is never changed, so each is checked once. A query that was
        interrupted and is sent again checks only the other files.

        Raises:
            _Interrupted: The query with the number was interrupted.
            _NotRead: A file has another size, or a column another type.
        """
        columns = hashlib.sha256(msgspec.msgpack.encode(part.columns)).digest()
        unchecked = []
        for path, size in zip(part.paths, part.sizes, strict=True):
            file = path, size, columns
            if file in self._checked:
                self._checked.move_to_end(file)
            else:
                unchecked.append(file)
        for start in range(0, len(unchecked), _CHECKED_AT_ONCE):
            if self._interrupted == number:
                raise _Interrupted
            some = unchecked[start : start + _CHECKED_AT_ONCE]
            _check(engine, [(path, size) for path, size, _ in some], part.columns)
            self._checked.update(dict.fromkeys(some))
            while len(self._checked) > _CHECKED_MAX:
                self._checked.popitem(last=False)


def _check(
    engine: duckdb.DuckDBPyConnection,
    sizes: Sequence[tuple[str, int]],
    columns: Sequence[PartColumn],
) -> None:
    """Report files of another size or with other types.

    Args:
        engine: A connection.
        sizes: The files, and the size in bytes of each; 0: unknown.
        columns: Their columns.
    """
    for path, size in sizes:
        if size and Path(path).stat().st_size != size:
            raise _NotRead(f"{path} does not have {size} bytes")
    wanted = {one.own_name: one.own_type for one in columns if one.own_name}
    files = _list([path for path, _ in sizes])
    shown = f"SELECT DISTINCT name, duckdb_type FROM parquet_schema({files})"  # noqa: S608 - quoted
    found = engine.execute(shown).fetchall()
    for name, type_ in found:
        if type_ is not None and wanted.get(name, type_) != type_:
            raise _NotRead(f"{name} is {type_} in a file, not {wanted[name]}")


def relation_sql(relation: Relation) -> str:
    """Return the query of a relation."""
    if not relation.parts:
        nulls = (f"CAST(NULL AS {type_}) AS {_name(name)}" for name, type_ in relation.columns)
        return f"SELECT {', '.join(nulls)} WHERE false"
    return " UNION ALL ".join(_part_sql(relation, part) for part in relation.parts)


def _part_sql(relation: Relation, part: RelationPart) -> str:
    shown = []
    for (name, type_), own in zip(relation.columns, part.columns, strict=True):
        value = _name(own.own_name) if own.own_name else "NULL"
        if own.own_type != type_ or not own.own_name:
            value = f"CAST({value} AS {type_})"
        shown.append(f"{value} AS {_name(name)}")
    source = f"read_parquet({_list(part.paths)}, hive_partitioning = false, filename = false)"
    conditions = [
        f'"__time" {operator} make_timestamptz({ms * 1_000})'
        for operator, ms in ((">=", part.start_ms), ("<", part.end_ms))
        if ms is not None
    ]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {', '.join(shown)} FROM {source}{where}"  # noqa: S608 - all names are quoted


def _name(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _text(value: str) -> str:
    doubled = value.replace("'", "''")
    return f"'{doubled}'"


def _list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _content(rows: pa.RecordBatchReader, rows_max: int, skipped: int) -> tuple[bytes | None, int]:
    """Return rows as an Arrow IPC stream, and the number of rows that came.

    Args:
        rows: The rows.
        rows_max: Maximum number of rows to return; None is returned if they are too large.
        skipped: Number of rows to leave out before.
    """
    sink, left, came = pa.BufferOutputStream(), rows_max, 0
    with rows, pa.ipc.new_stream(sink, rows.schema) as stream:
        for batch in rows:
            first = max(0, min(skipped - came, batch.num_rows))
            came += batch.num_rows
            kept = batch.slice(first, left)
            stream.write_batch(kept)
            left -= kept.num_rows
            if sink.tell() > CONTENT_BYTES_MAX:
                return None, came
            if not left:
                break
    content: bytes = sink.getvalue().to_pybytes()
    return (content if len(content) <= CONTENT_BYTES_MAX else None), came


def _limit(settings: EngineSettings) -> None:
    limit_this_process(settings.process_bytes)
    os.nice(_NICENESS)
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (0, 0))


class _FilterProgram(ctypes.Structure):
    """`struct sock_fprog` of <linux/filter.h>."""

    _fields_ = (("steps", ctypes.c_ushort), ("program", ctypes.c_char_p))


def _filter_calls(program: bytes) -> None:
    """Install a filter of system calls in this thread and those that it starts, if there is one.

    A kernel without such filters refuses it: the process then has its other limits only.
    """
    if not program or sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    given = _FilterProgram(len(program) // _FILTER_STEP_BYTES, program)
    library.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    library.prctl(_SECCOMP, _FILTER, ctypes.byref(given), 0, 0)


def main(descriptor: int) -> None:
    """Answer queries until the router closes its end of the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher
    router = socket.socket(fileno=descriptor)
    first = receive_frame(router, QUERY_BYTES_MAX)
    if first is None:
        return
    settings = msgspec.msgpack.decode(first, type=EngineSettings)
    _limit(settings)
    _filter_calls(settings.calls)
    engine = Engine(settings)
    engine.warm_up()
    queries: SimpleQueue[EngineQuery] = SimpleQueue()

    def read() -> None:
        with suppress(OSError, FrameError, msgspec.MsgspecError):
            while (content := receive_frame(router, QUERY_BYTES_MAX)) is not None:
                record = msgspec.msgpack.decode(content, type=EngineQuery | EngineInterrupt)
                if isinstance(record, EngineQuery):
                    queries.put(record)
                else:
                    engine.interrupt(record.number)
        os._exit(0)  # the query that still runs has no reader

    OwnedThread("frames", read).start()
    send_frame(router, EngineReady())
    while True:
        answer = engine.answer(queries.get())
        try:
            send_frame(router, answer)
        except OSError:
            return
        del answer


if __name__ == "__main__":
    main(int(sys.argv[1]))
