"""The Delta tables of datasources, which this router keeps up to date.

Owns when a log gets its next entry, and what is record of each table. A thread compares the visible
files with those of each table once a second, and writes for at most a tenth of the time. All
routers do so: of two entries with the same number, the log takes one, and the other router finds
that nothing is left to do. Rows that running tasks have announced follow when they are published.

A log that is lost or damaged is reported, and stays as it is until a user has it rebuilt: it may be
that a disk was restored in part. While a datasource has columns that Delta tables cannot have, its
table keeps its last version.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.core.clock import Clock
from penstock.core.errors import (
    Conflict,
    CorruptData,
    InvalidRequest,
    NotFound,
    PenstockError,
)
from penstock.core.metrics import Sample
from penstock.core.threads import OnDeath, OwnedThread
from penstock.core.uuids import RandomUuids
from penstock.segments.delta.delta_files import DeltaFiles
from penstock.segments.delta.delta_table import DeltaTable, left_out_columns
from penstock.segments.delta.table_registry import (
    AUDIT_TYPE,
    DeltaEntry,
    DeltaRegistry,
    TableGoal,
)
from penstock.segments.layout import DELTA_LOG
from penstock.segments.visible_rows import VisibleRows
from penstock.services.api.published_rows import published_files, visible_files
from penstock.spark.tables import TableFile, Tables, TableSource, why_empty
from penstock.spark.tables.table_columns import KnownColumns
from penstock.storage.metadata import AuditRow, MetadataStore

_logger = logging.getLogger(__name__)

POLL_S: Final = 1.0
"""Time between two comparisons, if there is a table."""
IDLE_S: Final = 10.0
"""Time until a table is found that another router has enabled, if there was none."""
REST_FACTOR: Final = 9.0
"""After an entry the table rests this many times as long as the entry took."""
FAILED_S: Final = 30.0
"""Time until the next attempt after one failed."""
UPKEEP_S: Final = 600.0
"""Time between two removals of unneeded files of a table. The log is read again before each."""
WAIT_S: Final = 20.0
"""Maximum time for which a request waits until its change is done."""

_CURRENT: Final = "Whether the Delta table of a datasource is up to date"


class TableHealth(enum.StrEnum):
    """State of a table as users see it."""

    DISABLED = "disabled"
    STARTING = "starting"
    CURRENT = "current"
    REFUSED = "refused"
    DAMAGED = "damaged"
    FAILING = "failing"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class DeltaSums:
    """A version of a table.

    Attributes:
        version: Its number.
        revision: The revision of the metadata whose rows it has.
        files: Number of its files.
        rows: Number of its rows.
        size_bytes: Size of its files.
        copies: Number of those files that are copies.
        copied_bytes: Size of the copies.
        left_out: Reason for each column that it does not have.
    """

    version: int
    revision: int
    files: int
    rows: int
    size_bytes: int
    copies: int
    copied_bytes: int
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DeltaStatus:
    """The table of a datasource as this router knows it.

    Attributes:
        health: Its state.
        location: Its folder, as engines open it.
        sums: Its last version; None: it is unknown.
        reason: Why it is not current.
    """

    health: TableHealth
    location: str
    sums: DeltaSums | None = None
    reason: str = ""


@dataclass(slots=True)
class _TableRecord:
    """A table of this router. Only its thread changes it; others read single attributes."""

    entry: DeltaEntry
    table: DeltaTable
    location: str
    files: Sequence[TableFile] | None = None
    sums: DeltaSums | None = None
    health: TableHealth = TableHealth.STARTING
    reason: str = ""
    due_s: float = 0.0
    upkeep_s: float = 0.0


class DeltaTables:
    """The tables. Any thread may call.

    Args:
        source: The visible files.
        store: The metadata store, for the list of tables.
        deep_storage: Root of the deep storage.
        clock: Dates entries, and measures how long they take.
    """

    def __init__(
        self, source: TableSource, store: MetadataStore, deep_storage: str, clock: Clock
    ) -> None:
        self._source = source
        self._store = store
        self._registry = DeltaRegistry(store)
        self._deep_storage = deep_storage
        self._clock = clock
        self._columns = KnownColumns()
        self._token = RandomUuids()
        self._records: dict[str, _TableRecord] = {}
        # Guards the two numbers: requests wait for a round that began after their change.
        self._changed = threading.Condition()
        self._asked = 0
        self._served = 0
        self._thread = OwnedThread("delta", self._run, on_death=OnDeath.RESTART)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; an entry that is written is awaited for a second."""
        self._thread.end(self._changed, 1.0)

    def is_known(self, datasource: str) -> bool:
        """Return whether a datasource of exactly this name has data, or a table."""
        has_data = bool(self._source.tables().files.get(datasource))
        return has_data or datasource in self._registry.entries()

    def enable(self, datasource: str, author: str, comment: str) -> DeltaStatus:
        """Let a datasource have a table, and wait for its first version.

        Raises:
            NotFound: There is no such datasource with data.
            Conflict: Names of its columns differ only in case.
            InvalidRequest: The deep storage cannot have Delta tables.
            Unavailable: The metadata store does not answer.
        """
        tables = self._source.tables()
        files = tables.files.get(datasource)
        if not files:
            raise NotFound(
                why_empty(self._source, datasource)
                or f'there is no datasource "{datasource}" with data'
            )
        self._new_table(datasource, "").check_possible(self._rows(datasource, tables))

        def enabled(before: DeltaEntry | None) -> DeltaEntry:
            if before is None or before.goal is TableGoal.DELETE:
                return DeltaEntry(self._token(), TableGoal.CREATE)
            return before

        return self._change(datasource, enabled, author, comment)

    def disable(self, datasource: str, author: str, comment: str) -> DeltaStatus:
        """Delete the table of a datasource; segments are not changed.

        Raises:
            NotFound: It has no table.
            Unavailable: The metadata store does not answer.
        """

        def disabled(before: DeltaEntry | None) -> DeltaEntry:
            return replace(_required(datasource, before), goal=TableGoal.DELETE)

        return self._change(datasource, disabled, author, comment)

    def rebuild(self, datasource: str, author: str, comment: str) -> DeltaStatus:
        """Write the log of a table again, as a new table at the same place. Raises as `disable`."""

        def rebuilt(before: DeltaEntry | None) -> DeltaEntry:
            _required(datasource, before)
            return DeltaEntry(self._token(), TableGoal.CREATE)

        return self._change(datasource, rebuilt, author, comment)

    def status(self, datasource: str) -> DeltaStatus:
        """Return the state of the table of a datasource.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        entry = self._registry.entries().get(datasource)
        location = DeltaFiles(self._deep_storage, datasource).location
        if entry is None:
            return DeltaStatus(TableHealth.DISABLED, location)
        record = self._records.get(datasource)
        if entry.goal is TableGoal.DELETE:
            return DeltaStatus(TableHealth.DELETING, location)
        if record is None or record.entry.table_id != entry.table_id:
            return DeltaStatus(TableHealth.STARTING, location)
        return DeltaStatus(record.health, location, record.sums, record.reason)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the tables."""
        for name, record in self._records.copy().items():
            is_current = record.health is TableHealth.CURRENT
            labels = (("datasource", name),)
            yield Sample(
                "penstock_delta_table_current", "gauge", _CURRENT, labels, float(is_current)
            )

    def _change(
        self,
        datasource: str,
        change: Callable[[DeltaEntry | None], DeltaEntry | None],
        author: str,
        comment: str,
    ) -> DeltaStatus:
        audit = AuditRow(datasource, AUDIT_TYPE, author, comment, {})
        self._registry.change(datasource, change, audit)
        end_s = self._clock.monotonic_s() + WAIT_S
        with self._changed:
            self._asked += 1
            ticket = self._asked
            self._changed.notify_all()
            while self._served < ticket and self._thread.is_alive():
                left_s = end_s - self._clock.monotonic_s()
                if not self._clock.wait(self._changed, left_s):
                    break
        return self.status(datasource)

    def _run(self) -> None:
        has_tables, problem = True, ""
        while not self._thread.is_end_expected:
            with self._changed:
                if self._asked == self._served and not self._thread.is_end_expected:
                    self._clock.wait(self._changed, POLL_S if has_tables else IDLE_S)
                ticket = self._asked
            try:
                has_tables, problem = self._round(), ""
            except PenstockError as error:  # narrow: the next round tries again
                if str(error) != problem:
                    _logger.warning("the Delta tables cannot be brought up to date: %s", error)
                problem = str(error)
            with self._changed:
                self._served = ticket
                self._changed.notify_all()

    def _round(self) -> bool:
        """Bring all tables up to date that are due; return whether there is one."""
        entries = self._registry.entries()
        self._records = {
            name: record
            for name, record in self._records.items()
            if name in entries and entries[name].table_id == record.entry.table_id
        }
        self._columns.keep(self._records.keys())
        if not entries:
            return False
        tables = self._source.tables()
        for name, entry in entries.items():
            record = self._records.get(name)
            if record is None:
                table = self._new_table(name, entry.table_id)
                location = DeltaFiles(self._deep_storage, name).location
                record = self._records[name] = _TableRecord(entry, table, location)
            if record.entry.goal is not entry.goal:
                record.due_s = 0.0
            record.entry = entry
            if self._clock.monotonic_s() >= record.due_s:
                self._attend(name, record, tables)
        return True

    def _attend(self, datasource: str, record: _TableRecord, tables: Tables) -> None:
        """Do what a table needs, and record how that went."""
        begun_s = self._clock.monotonic_s()
        reason = ""
        try:
            self._maintain(datasource, record, tables)
            record.health = TableHealth.CURRENT if record.sums else TableHealth.STARTING
        except PenstockError as error:  # narrow: it is recorded, and tried again
            record.health, reason = _health_of(error, record), str(error)
            if record.health is TableHealth.DAMAGED:
                reason += f": rebuild it with penstock table delta rebuild {datasource}"
        if reason and reason != record.reason:
            _logger.warning("the Delta table of %s is not up to date: %s", datasource, reason)
        record.reason = reason
        ended_s = self._clock.monotonic_s()
        rest_s = REST_FACTOR * (ended_s - begun_s)
        if reason:
            rest_s = max(rest_s, FAILED_S)
        elif record.entry.goal is TableGoal.DELETE:
            rest_s = max(rest_s, UPKEEP_S)
        record.due_s = ended_s + rest_s

    def _maintain(self, datasource: str, record: _TableRecord, tables: Tables) -> None:
        if record.entry.goal is TableGoal.DELETE:
            if record.table.delete():
                gone = record.entry
                self._registry.change(datasource, lambda now: None if now == gone else now)
            return
        files = published_files(tables.files.get(datasource, ()))
        if record.entry.goal is TableGoal.CREATE:
            if not files:
                return
            record.table.create(self._rows(datasource, tables))
            record.files = files
            made, kept = record.entry, replace(record.entry, goal=TableGoal.KEEP)
            self._registry.change(datasource, lambda now: kept if now == made else now)
            record.entry = kept
        elif record.files != files:
            record.table.update(self._rows(datasource, tables))
            record.files = files
        elif self._clock.monotonic_s() < record.upkeep_s:
            return
        if self._clock.monotonic_s() >= record.upkeep_s:
            self._clean_up(datasource, record, tables)
            record.upkeep_s = self._clock.monotonic_s() + UPKEEP_S
        record.sums = _sums(record.table)

    def _clean_up(self, datasource: str, record: _TableRecord, tables: Tables) -> None:
        """Delete old versions, and let kills delete files of segments that only they needed."""
        table, table_id = record.table, record.entry.table_id
        table.check()
        if table.state.revision < self._store.history.newest(datasource):
            # Segments may be unused since, although the table has had the same rows before.
            table.update(self._rows(datasource, tables), confirms=True)
        table.clean_up(record.entry.next_version)
        version = table.state.version
        # After a restore, the metadata may be of an earlier revision than the log.
        revision = min(table.state.revision, tables.revision)

        def shortened(now: DeltaEntry | None) -> DeltaEntry | None:
            if now is None or now.table_id != table_id:
                return now
            return now.shortened(table.oldest_version, version, revision)

        self._registry.change(datasource, shortened)

    def _rows(self, datasource: str, tables: Tables) -> VisibleRows:
        files = published_files(tables.files.get(datasource, ()))
        columns = self._columns.of(datasource, files)
        in_files = list(dict.fromkeys(file.columns for file in files))
        return VisibleRows(tables.revision, visible_files(files), columns, in_files)

    def _new_table(self, datasource: str, table_id: str) -> DeltaTable:
        files = DeltaFiles(self._deep_storage, datasource)
        return DeltaTable(datasource, files, table_id, self._source.revision, self._clock)


def _required(datasource: str, entry: DeltaEntry | None) -> DeltaEntry:
    if entry is None or entry.goal is TableGoal.DELETE:
        raise NotFound(
            f"{datasource} has no Delta table: penstock table delta enable {datasource} creates it"
        )
    return entry


def _health_of(error: PenstockError, record: _TableRecord) -> TableHealth:
    if isinstance(error, Conflict | InvalidRequest):
        return TableHealth.REFUSED
    log = f"{record.location}/{DELTA_LOG}/"
    is_log = isinstance(error, CorruptData) and error.file.startswith(log)
    return TableHealth.DAMAGED if is_log else TableHealth.FAILING


def _sums(table: DeltaTable) -> DeltaSums:
    state = table.state
    files = state.files.values()
    copies = [file.size_bytes for file in files if table.is_copy(file)]
    return DeltaSums(
        state.version,
        state.revision,
        len(state.files),
        sum(file.rows for file in files),
        sum(file.size_bytes for file in files),
        len(copies),
        sum(copies),
        left_out_columns(state),
    )
