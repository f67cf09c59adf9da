"""A datasource as a Delta table: brings the log to the visible rows, and removes unneeded files.

Owns the comparison of the visible files with those of the log, the metadata of the table, and the
copies of the rows of segments that are visible in part: the format has no other way that all
engines read. Does not own when a table is brought up to date, nor which tables there are.

Invariants:

- each entry leads to exactly the visible rows of one revision of the metadata, which its
  application transaction has; a repeated write finds that nothing is left to do;
- a process with an older view of the metadata writes nothing;
- files of segments are never changed, copied as a whole, or deleted;
- a copy is deleted only after no version that a reader should have has needed it for an hour;
- a crash at any point leaves the version before, or the new one, and unused copies that a later
  removal finds.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

import penstock
from penstock.core.clock import Clock
from penstock.core.errors import CorruptData, InvalidRequest, Unavailable
from penstock.core.uuids import RandomUuids
from penstock.segments.delta.delta_files import DeltaFiles
from penstock.segments.delta.delta_schema import DeltaSchema, delta_schema
from penstock.segments.delta.log_actions import (
    Json,
    LoggedFile,
    RemovedFile,
    TableState,
    application,
    protocol_action,
    reader_features,
)
from penstock.segments.delta.table_log import LOG_KEPT_MS, REMOVED_KEPT_MS, TableLog
from penstock.segments.visible_rows import VisibleFile, VisibleRows

UNNEEDED_S: Final = REMOVED_KEPT_MS / 1000
"""Time from when a copy is seen to be unneeded until it is deleted, for readers that began before.
"""
COPY_REUSED_S: Final = 1_200.0
"""Time in which a copy is used after it was written. Less than `UNNEEDED_S`."""

_TRIES_MAX: Final = 5
_HOUR_MS: Final = 3_600_000
# deltalake 1.6 and DuckDB 1.5 decode it, whether they get a path or a URI. Folders of datasources
# have no percent sign in their names, so only the path of the deep storage can have an escape.
_ESCAPE: Final = re.compile("%[0-9A-Fa-f]{2}")


class DeltaTable:
    """The Delta table of a datasource. One thread at a time; several processes may have it.

    Args:
        datasource: The datasource.
        files: The files of the table.
        table_id: The id of the table.
        revision: Returns the current revision of the metadata.
        clock: Dates entries, and measures for how long copies are unneeded.
        token: Returns a text that is part of a file's name and was never returned before.
    """

    def __init__(
        self,
        datasource: str,
        files: DeltaFiles,
        table_id: str,
        revision: Callable[[], int],
        clock: Clock,
        token: Callable[[], str] | None = None,
    ) -> None:
        self._datasource = datasource
        self._files = files
        self._table_id = table_id
        self._revision = revision
        self._clock = clock
        self._token = token or RandomUuids()
        self._log = TableLog(files)
        self._is_loaded = False
        # Copies that this process has written, by the ids of their rows.
        self._copies: dict[str, _Copy] = {}
        # Since when a copy was seen to be unneeded, by its name.
        self._unneeded: dict[str, float] = {}

    @property
    def state(self) -> TableState:
        """The state of the table after the last `create` or `update`."""
        return self._log.state

    def check_possible(self, rows: VisibleRows) -> None:
        """Return if a table can have these rows.

        Raises:
            Conflict: Names of columns differ only in case.
            InvalidRequest: A file is not in the folder of the datasource, or the deep storage
                cannot create a file only if it does not exist, or engines could not open its path.
            Unavailable: The deep storage does not answer.
        """
        if (escape := _ESCAPE.search(self._files.location)) is not None:
            raise InvalidRequest(
                f"engines that read Delta tables decode {escape[0]} in the path"
                f" {self._files.location}, and look for another folder: use a deep storage whose"
                " path has no percent escape, or read the datasource as an Iceberg table"
            )
        if not self._files.creates_once():
            raise InvalidRequest(
                f"the deep storage of {self._files.location} cannot create a file only if it does"
                " not exist, which the log of a Delta table needs: use a folder, or a store of S3,"
                " Google Cloud or Azure; or read the datasource as an Iceberg table"
            )
        self._schema(rows)
        for file in rows.files:
            self._files.path_of(file.location)

    def create(self, rows: VisibleRows) -> None:
        """Create the table with these rows, unless it exists.

        The log of another table is deleted: its files are those of segments.

        Raises:
            Conflict: Names of columns differ only in case.
            InvalidRequest: A file is not in the folder of the datasource.
            Unavailable: The deep storage or the metadata store does not answer, or other processes
                write to the log all the time.
            CorruptData: A segment's file is damaged.
        """
        schema = self._schema(rows)
        try:
            self._log.load()
        except CorruptData:
            is_own = False
        else:
            is_own = self.state.version < 0 or self.state.table_id == self._table_id
        if not is_own:
            self._log.delete(unless=self._table_id)
            self._log.load()
            self._check_own_or_none()
        self._is_loaded = True
        self._write(rows, schema)

    def update(self, rows: VisibleRows, *, confirms: bool = False) -> None:
        """Write an entry if the table has other rows or columns than these.

        Args:
            rows: The rows.
            confirms: Also write one if the table has the rows, but of an earlier revision. Then no
                other process writes rows of an earlier one than this.

        Raises:
            Conflict: Names of columns differ only in case.
            InvalidRequest: A file is not in the folder of the datasource.
            Unavailable: As for `create`.
            CorruptData: The log is lost, damaged, or that of another table; or a segment's file is
                damaged.
        """
        schema = self._schema(rows)
        try:
            if self._is_loaded:
                self._log.refresh()
            else:
                self._log.load()
            self._check_own()
            self._is_loaded = True
            self._write(rows, schema, confirms=confirms)
        except BaseException:
            # The entries that were read before may not be in the log any longer, or one was read
            # in part.
            self._is_loaded = False
            raise

    def check(self) -> None:
        """Read the whole log again. Raises Unavailable or CorruptData as `update`."""
        self._log.load()
        self._is_loaded = True
        self._check_own()

    @property
    def oldest_version(self) -> int:
        """The oldest version that can be read, after `clean_up`."""
        return self._log.oldest

    def clean_up(self, next_oldest: int = -1) -> int:
        """Delete old files of the log, and unneeded copies; return their number.

        Args:
            next_oldest: A version before which all may be deleted a day later.

        Raises:
            Unavailable: The deep storage does not answer.
        """
        count = self._log.clean_up(self._clock.now_ms(), next_oldest)
        needed = {file.path for file in self.state.files.values()}
        # Files of earlier versions that can be read.
        needed.update(self.state.removed)
        now_s = self._clock.monotonic_s()
        self._copies = {
            id_: copy
            for id_, copy in self._copies.items()
            if now_s < copy.written_s + COPY_REUSED_S
        }
        return count + self._remove_copies(lambda name: self._files.copy_path(name) in needed)

    def delete(self) -> bool:
        """Delete the log, and copies that readers need no longer; return whether nothing is left.

        The log of another table, which another process has created meanwhile, stays.

        Raises:
            Unavailable: The deep storage does not answer.
        """
        try:
            self._log.load()
        except CorruptData:  # narrow: an interrupted deletion has left it
            pass
        else:
            if self.state.version >= 0 and self.state.table_id != self._table_id:
                return True
        self._log.delete()
        self._is_loaded = False
        self._remove_copies(lambda _name: False)
        return not self._unneeded

    def is_copy(self, file: LoggedFile) -> bool:
        """Return whether a file of the table is a copy of rows."""
        return file.path.startswith(self._files.copy_path(""))

    def _check_own(self) -> None:
        if self.state.version < 0:
            raise CorruptData(self._files.log_place(""), None, "it has no entries")
        self._check_own_or_none()

    def _check_own_or_none(self) -> None:
        if self.state.version >= 0 and self.state.table_id != self._table_id:
            raise CorruptData(self._files.log_place(""), None, "it is that of another table")

    def _schema(self, rows: VisibleRows) -> DeltaSchema:
        return delta_schema(self._datasource, rows.columns, rows.in_files)

    def _write(self, rows: VisibleRows, schema: DeltaSchema, *, confirms: bool = False) -> None:
        for _ in range(_TRIES_MAX):
            if self._is_older(rows):
                return
            actions = self._actions(rows, schema, confirms=confirms)
            if actions is None:
                return
            if self._log.append(actions):
                self._log.checkpoint_if_due()
                return
            self._log.refresh()
            self._check_own()
        raise Unavailable(
            f"the Delta table {self._files.location} changed {_TRIES_MAX} times while an entry was"
            " written: try again"
        )

    def _is_older(self, rows: VisibleRows) -> bool:
        """Return whether another process knows a later revision than that of these rows.

        A table may be of a later revision than the metadata themselves, if these were restored.
        """
        found = self.state.revision
        return found > rows.revision and found <= self._revision()

    def _actions(
        self, rows: VisibleRows, schema: DeltaSchema, *, confirms: bool
    ) -> Iterable[tuple[str, Json]] | None:
        """Return the actions that lead to these rows; None: the table has them."""
        now_ms, state = self._clock.now_ms(), self.state
        present = {file.id: file for file in state.files.values()}
        wanted = {self._id_of(file): file for file in rows.files}
        added = [
            self._data_file(id_, file, now_ms) for id_, file in wanted.items() if id_ not in present
        ]
        again = {file.path for file in added}
        removed = [
            RemovedFile(file.path, file.size_bytes, now_ms)
            for id_, file in present.items()
            if id_ not in wanted and file.path not in again
        ]
        features = reader_features(state.protocol) | set(schema.features)
        protocol, metadata = protocol_action(features), self._metadata(schema, now_ms)
        if not rows.files and state.metadata:
            # A datasource without rows has no columns, but a table without columns is none.
            metadata = dict(state.metadata)
        found: list[tuple[str, Json]] = []
        if protocol != state.protocol:
            found.append(("protocol", protocol))
        if metadata != state.metadata:
            found.append(("metaData", metadata))
        is_confirmed = not confirms or state.revision >= rows.revision
        if not found and not removed and not added and is_confirmed:
            return None
        info = self._commit_info(now_ms, is_append=not removed)
        transaction: Json = {
            "appId": application(self._table_id),
            "version": rows.revision,
            "lastUpdated": now_ms,
        }
        # A first entry may have a million files, so their actions are made one after the other.
        return itertools.chain(
            [("commitInfo", info), ("txn", transaction), *found],
            (("remove", one.to_action()) for one in removed),
            (("add", one.to_action()) for one in added),
        )

    def _commit_info(self, now_ms: int, *, is_append: bool) -> Json:
        is_first = self.state.version < 0
        return {
            "timestamp": now_ms,
            "operation": "CREATE TABLE" if is_first else "WRITE",
            "operationParameters": {}
            if is_first
            else {"mode": "Append" if is_append else "Overwrite"},
            "isBlindAppend": is_append,
            "engineInfo": f"penstock/{penstock.__version__}",
            "txnId": self._token(),
        }

    def _metadata(self, schema: DeltaSchema, now_ms: int) -> Json:
        configuration = {
            "delta.logRetentionDuration": f"interval {LOG_KEPT_MS // _HOUR_MS} hours",
            "delta.deletedFileRetentionDuration": f"interval {LOG_KEPT_MS // _HOUR_MS} hours",
        }
        if schema.left_out:
            left_out = orjson.dumps(dict(schema.left_out)).decode()
            configuration["penstock.columns-left-out"] = left_out
        return {
            "id": self._table_id,
            "name": self._datasource,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema.text,
            "partitionColumns": [],
            "configuration": configuration,
            "createdTime": self.state.metadata.get("createdTime", now_ms),
        }

    def _id_of(self, file: VisibleFile) -> str:
        path = self._files.path_of(file.location)
        if not file.visible:
            return path
        parts = "\n".join((path, *map(str, file.visible)))
        return hashlib.sha256(parts.encode()).hexdigest()[:32]

    def _data_file(self, id_: str, file: VisibleFile, now_ms: int) -> LoggedFile:
        """Return the file with the visible rows of a file: a copy if a part is hidden."""
        path = self._files.path_of(file.location)
        if not file.visible:
            return LoggedFile(path, file.size_bytes, file.rows, file.interval, now_ms)
        copy = self._copy(id_, file)
        if not copy.name:
            return LoggedFile(path, file.size_bytes, file.rows, file.interval, now_ms, id_)
        path = self._files.copy_path(copy.name)
        return LoggedFile(path, copy.size_bytes, copy.rows, file.interval, now_ms, id_)

    def _copy(self, id_: str, file: VisibleFile) -> _Copy:
        now_s = self._clock.monotonic_s()
        known = self._copies.get(id_)
        if (
            known is not None
            and now_s < known.written_s + COPY_REUSED_S
            and (not known.name or self._files.has_copy(known.name, known.size_bytes))
        ):
            return known
        name = f"{id_}-{self._token()}.parquet"
        written = self._files.write_copy(name, file.location, file.visible)
        copy = _Copy("", 0, 0, now_s) if written is None else _Copy(name, *written, now_s)
        self._copies[id_] = copy
        return copy

    def _remove_copies(self, is_needed: Callable[[str], bool]) -> int:
        """Delete copies that have been unneeded for `UNNEEDED_S`; return how many."""
        now_s = self._clock.monotonic_s()
        self._unneeded = {
            name: self._unneeded.get(name, now_s)
            for name in self._files.copy_names()
            if not is_needed(name)
        }
        old = [name for name, since_s in self._unneeded.items() if now_s >= since_s + UNNEEDED_S]
        for name in old:
            self._files.delete_copy(name)
            del self._unneeded[name]
        return len(old)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy of visible rows, and when it was written; without a name: all rows are visible."""

    name: str
    rows: int
    size_bytes: int
    written_s: float


def left_out_columns(state: TableState) -> Mapping[str, str]:
    """Return the reason for each column that a table does not have."""
    configuration = state.metadata.get("configuration")
    text = (
        configuration.get("penstock.columns-left-out") if isinstance(configuration, dict) else None
    )
    found: dict[str, str] = orjson.loads(text) if isinstance(text, str) else {}
    return found
