"""Streams of a datasource: `spark.readStream.format("penstock")`.

Owns the position of a query, the division into micro-batches, and the handling of rows that went or
came back. Changes come from `datasource_changes`; files are read by `tables.parquet_reader`.

A new query first reads the published rows of one revision, then the changes after it, revision by
revision. Its position, which Spark keeps in the checkpoint, is one of

    {"revision": 7, "files": 3, "initial": 1}   3 of the files that were visible at revision 7
    {"revision": 7, "files": 3}                 changes before revision 7, and 3 of this revision
    {"revision": 7}                             all changes up to revision 7

The files and changes of a revision always have the same order, so a position has the same meaning
at each attempt, and for other values of the options.

Only the checkpoint has the position. With the option `cursor`, the query reports it when it plans
the next micro-batch, so that the router knows how far it is behind.

Invariant: between two positions, a query reads each row that appeared once, for any limits and
restarts. A revision that is no longer known ends the query with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from penstock.broker.topic_names import require_name
from penstock.core.column_case import case_variants_in
from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval
from penstock.core.whole_numbers import int64_of
from penstock.spark.datasource_changes import (
    CHANGES_MAX,
    ChangesPage,
    FileChange,
    FileCommit,
    RowChange,
)
from penstock.spark.tables.parquet_reader import read_file
from penstock.spark.tables.table_files import TableFile
from penstock.spark.topic.row_shape import TIME_COLUMN

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FILES_MAX: Final = 1_000
"""Files of a micro-batch, if the options have no limit."""
CHANGE_COLUMNS: Final = (("_change_type", "string"), ("_revision", "bigint"))
"""Further columns of the rows with `replaced=changes`."""

_INITIAL: Final = "initial"


class Replaced(StrEnum):
    """Reaction of a query to a revision at which rows went, or came back.

    Attributes:
        FAIL: It ends with an error.
        SKIP: It reads nothing of this revision.
        CHANGES: It reads all rows that went and that appeared.
    """

    FAIL = "fail"
    SKIP = "skip"
    CHANGES = "changes"

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Replaced:
        """Parse the option. Raises InvalidRequest if it is not valid."""
        text = options.get("replaced", cls.FAIL.value).strip().lower()
        if text not in set(cls):
            raise InvalidRequest(
                f"option replaced is {text!r}: use {', '.join(cls)}", place="replaced"
            )
        return cls(text)


class ChangeSource(Protocol):
    """Where a query finds files: a router, or the metadata."""

    def now(self) -> int:
        """Return the current revision."""
        ...

    def files(self, revision: int) -> Sequence[TableFile]:
        """Return the published files that were visible at a revision, in an order of their own."""
        ...

    def changes(self, after: int, limit: int) -> ChangesPage:
        """Return the changes after a revision."""
        ...

    def follow(self, cursor: str, revision: int, rows_left: int) -> None:
        """Set a cursor.

        Args:
            cursor: Its name.
            revision: The last revision that the query has read, at least in part.
            rows_left: Rows of this revision that it has not read.
        """
        ...


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of a query.

    Attributes:
        replaced: Its reaction where rows went or came back.
        interval: Only rows of this time; None: of all time.
        files_max: Maximum number of files in a micro-batch.
        bytes_max: Maximum size of the files in a micro-batch, unless it has only one.
        start: Revision after which changes are read; None: the rows of now, and all later changes.
        cursor: Name of the cursor that follows the query; empty: it has none.
    """

    replaced: Replaced = Replaced.FAIL
    interval: Interval | None = None
    files_max: int = FILES_MAX
    bytes_max: int | None = None
    start: int | None = None
    cursor: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamOptions:
        """Parse options.

        Raises:
            InvalidRequest: A value is not valid.
        """
        if options.get("includeRunning", "false").strip().lower() != "false":
            raise InvalidRequest(
                "option includeRunning is for spark.read: a stream has published rows only"
            )
        bytes_max, start = options.get("maxBytesPerTrigger"), options.get("startingRevision")
        cursor = options.get("cursor", "")
        return cls(
            Replaced.of(options),
            Interval.parse(options["interval"]) if options.get("interval") else None,
            _number(options.get("maxFilesPerTrigger", str(FILES_MAX)), "maxFilesPerTrigger", 1),
            None if bytes_max is None else _number(bytes_max, "maxBytesPerTrigger", 1),
            None if start is None else _number(start, "startingRevision", 0),
            require_name(cursor, "cursor") if cursor else "",
        )


def _number(text: str, option: str, least: int) -> int:
    found = int64_of(text.strip())
    if found is None or found < least:
        raise InvalidRequest(f"option {option} is {text!r}: use a whole number from {least} on")
    return found


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """How far a query has read; the module's docstring has its forms.

    Attributes:
        revision: The revision.
        files: Files, or changes, of this revision that are read; None: all.
        initial: Whether these are the files of the beginning.
    """

    revision: int
    files: int | None = None
    initial: bool = False

    def to_json(self) -> dict[str, int]:
        """Return the position as Spark stores it."""
        found = {"revision": self.revision}
        if self.files is not None:
            found["files"] = self.files
        return {**found, _INITIAL: 1} if self.initial else found

    @property
    def before(self) -> int:
        """The revision after which changes follow that may not be read."""
        return self.revision if self.files is None else self.revision - 1

    @classmethod
    def of(cls, stored: Mapping[str, int]) -> StreamPosition:
        """Parse the output of `to_json`."""
        return cls(stored["revision"], stored.get("files"), bool(stored.get(_INITIAL)))


class ChangedRows(InputPartition):
    """The rows that one Spark task reads: a file, and what happened to its rows."""

    def __init__(self, change: FileChange, revision: int) -> None:
        super().__init__(None)
        self.change = change
        self.revision = revision


class _Budget:
    """Room that is left in a micro-batch."""

    def __init__(self, files: int | None, size_bytes: int | None) -> None:
        self._files = files
        self._bytes = size_bytes
        self._is_empty = True

    def take(self, file: TableFile) -> bool:
        """Return whether a file still fits; the first one always does."""
        fits = (self._files is None or self._files >= 1) and (
            self._bytes is None or self._bytes >= file.size_bytes
        )
        if not fits and not self._is_empty:
            return False
        self._is_empty = False
        self._files = None if self._files is None else self._files - 1
        self._bytes = None if self._bytes is None else self._bytes - file.size_bytes
        return True


class DatasourceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the rows of a datasource, and its changes.

    Spark calls one object for a run of a query, and others in its workers, which only read.

    Args:
        options: The options.
        schema: The columns of the rows.
        source: Where the query finds files.
        check: Raises if the datasource has no such columns; called at the start of a new query.
    """

    def __init__(
        self,
        options: StreamOptions,
        schema: StructType,
        source: ChangeSource,
        check: Callable[[], None],
    ) -> None:
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._source = source
        self._check = check
        # The revision at which a run with `availableNow` ends.
        self._target: int | None = None
        self._newest: int | None = None
        self._initial: tuple[int, Sequence[TableFile]] | None = None
        # Pages by the revision before their first one. Their content does not change.
        self._pages: dict[int, ChangesPage] = {}
        # The place of the cursor.
        self._followed: StreamPosition | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return a limit, so that Spark says when there is none; the options have its values."""
        return ReadMaxFiles(self._options.files_max)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return where a new query starts."""
        self._check()
        if self._options.start is not None:
            return StreamPosition(self._options.start).to_json()
        now = self._source.now() if self._target is None else self._target
        return StreamPosition(now, 0, initial=True).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the revision of this moment, at which the run ends."""
        self._target = self._source.now()

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        """Return the newest revision with changes when the last micro-batch was planned."""
        return None if self._newest is None else StreamPosition(self._newest).to_json()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the end of the next micro-batch.

        Raises:
            InvalidRequest: Rows went or came back, and the option `replaced` is `fail`.
            NotFound: The position is older than the oldest revision that is kept.
        """
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            budget = _Budget(None, None)
        else:
            budget = _Budget(options.files_max, options.bytes_max)
        position = StreamPosition.of(start)
        self._follow(position)
        if position.initial:
            changes = self._initial_changes(position.revision)
            done = self._fitting(budget, changes, position.files or 0)
            self._newest = max(self._newest or 0, position.revision)
            if done < len(changes):
                return StreamPosition(position.revision, done, initial=True).to_json()
            position = StreamPosition(position.revision)
        return self._advanced(position, budget).to_json()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the files between two positions."""
        begin, last = StreamPosition.of(start), StreamPosition.of(end)
        found: list[ChangedRows] = []
        if begin.initial:
            to = last.files if last.initial else None
            changes = self._initial_changes(begin.revision)[begin.files : to]
            found += self._rows(changes, begin.revision)
            if last.initial:
                return found
            begin = StreamPosition(begin.revision)
        after = begin.before
        while after < last.revision:
            page = self._page(after)
            for commit in page.commits:
                if commit.revision > last.revision:
                    break
                if self._is_read(commit):
                    first = begin.files if commit.revision == begin.revision else None
                    to = last.files if commit.revision == last.revision else None
                    found += self._rows(commit.changes[first:to], commit.revision)
            if page.next <= after:
                break
            after = page.next
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file."""
        # If there are no files, Spark passes in an empty partition.
        if not isinstance(partition, ChangedRows):
            return
        change = partition.change
        more = {"_change_type": change.kind.value, "_revision": partition.revision}
        if self._options.replaced is not Replaced.CHANGES:
            more = {}
        own = [field for field in self._schema if field.name not in more]
        # Rows are counted by a column.
        read = pa.schema(own or [pa.field(TIME_COLUMN, pa.timestamp("us", "UTC"))])
        exact = any(
            case_variants_in(names)
            for names in (read.names, [name for name, _ in change.file.columns])
        )
        for batch in read_file(change.file, read, exact=exact):
            columns = [
                pa.repeat(pa.scalar(more[field.name], field.type), batch.num_rows)
                if field.name in more
                else batch.column(field.name)
                for field in self._schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _follow(self, completed: StreamPosition) -> None:
        """Set the cursor to the end of the last micro-batch, which Spark has recorded as read."""
        if not self._options.cursor or completed == self._followed:
            return
        changes: Sequence[FileChange] = ()
        if completed.initial:
            changes = self._initial_changes(completed.revision)
        elif completed.files is not None:
            commits = self._page(completed.before).commits
            changes = next((c.changes for c in commits if c.revision == completed.revision), ())
        left = (one for one in changes[completed.files :] if one.kind is RowChange.INSERT)
        rows_left = sum(one.file.rows for one in left)
        self._source.follow(self._options.cursor, completed.revision, rows_left)
        self._followed = completed

    def _advanced(self, position: StreamPosition, budget: _Budget) -> StreamPosition:
        """Return the end of a micro-batch that begins at a position after the initial ones."""
        start = position
        for page in self._pages_from(position):
            self._newest = max(self._newest or 0, page.newest)
            for commit in page.commits:
                if self._target is not None and commit.revision > self._target:
                    return position
                try:
                    is_read = self._is_read(commit)
                except InvalidRequest:  # narrow: rows before it are read first
                    if position == start:
                        raise
                    return position
                first = (position.files or 0) if commit.revision == position.revision else 0
                done = len(commit.changes)
                if is_read:
                    done = self._fitting(budget, commit.changes, first)
                if done < len(commit.changes):
                    return position if done == first else StreamPosition(commit.revision, done)
                position = StreamPosition(commit.revision)
            reached = page.next if self._target is None else min(page.next, self._target)
            if reached > position.revision:  # nothing visible has changed
                position = StreamPosition(reached)
        return position

    def _pages_from(self, position: StreamPosition) -> Iterator[ChangesPage]:
        """Yield what changed after a position, whose own revision comes first if it is in part."""
        after = position.before
        # The rest of a revision with very many changes is not requested again.
        known = self._pages.get(after) if position.files is not None else None
        self._pages = {} if known is None else {after: known}
        while True:
            page = self._page(after)
            yield page
            if not page.more or (self._target is not None and page.next >= self._target):
                return
            after = page.next

    def _page(self, after: int) -> ChangesPage:
        page = self._pages.get(after)
        if page is None:
            limit = min(self._options.files_max, CHANGES_MAX)
            page = self._pages[after] = self._source.changes(after, limit)
        return page

    def _initial_changes(self, revision: int) -> Sequence[FileChange]:
        if self._initial is None or self._initial[0] != revision:
            files = sorted(self._source.files(revision), key=_place)
            self._initial = revision, files
        return [FileChange(RowChange.INSERT, file) for file in self._initial[1]]

    def _fitting(self, budget: _Budget, changes: Sequence[FileChange], first: int) -> int:
        """Return how many changes, counted from the beginning, are read after a micro-batch."""
        for index in range(first, len(changes)):
            one = self._clipped(changes[index])
            if one is not None and not budget.take(one.file):
                return index
        return len(changes)

    def _is_read(self, commit: FileCommit) -> bool:
        """Return whether the changes of a revision are read. Raises as `latestOffset`."""
        if self._options.replaced is Replaced.CHANGES:
            return True
        mine = (one for one in commit.changes if self._clipped(one) is not None)
        gone = next((one for one in mine if one.kind is RowChange.DELETE or one.again), None)
        if gone is None:
            return True
        if self._options.replaced is Replaced.SKIP:
            return False
        what = "went" if gone.kind is RowChange.DELETE else "came back"
        raise InvalidRequest(
            f"rows of {gone.file.clip or gone.file.interval} {what} at revision {commit.revision},"
            ' because segments were replaced, compacted, or marked: set option("replaced", "skip")'
            ' to leave out such revisions, or "changes" to get the rows that went and those that'
            " appeared"
        )

    def _rows(self, changes: Sequence[FileChange], revision: int) -> Iterator[ChangedRows]:
        clipped = (self._clipped(one) for one in changes)
        return (ChangedRows(one, revision) for one in clipped if one is not None)

    def _clipped(self, change: FileChange) -> FileChange | None:
        """Return a change within the interval of the options, None if it is outside."""
        interval, file = self._options.interval, change.file
        if interval is None:
            return change
        part = (file.clip or file.interval).intersection(interval)
        if part is None:
            return None
        return change if part == file.interval else replace(change, file=replace(file, clip=part))


def _place(file: TableFile) -> tuple[Interval, str]:
    return file.clip or file.interval, file.path
