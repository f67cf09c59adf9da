"""The Iceberg tables of all datasources, as this router answers for them.

Owns when a version of a table is built, and the plans of scans. A version is built when a client
asks and the visible files have changed, at most once a second. A build that takes long runs on a
thread of its own, at most one at a time and a tenth of the time, while clients get the version
before; a table that was never built is waited for. Plans come from the visible files themselves, so
they have rows that running tasks have announced and are as new as the metadata.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, NotFound, PenstockError
from penstock.core.intervals import Interval
from penstock.core.threads import OnDeath, OwnedThread
from penstock.core.uuids import RandomUuids
from penstock.segments.iceberg.client_files import ABANDONED_MS, ClientFiles
from penstock.segments.iceberg.column_bounds import FooterBounds
from penstock.segments.iceberg.manifest_files import POSITION_DELETES, ManifestEntry
from penstock.segments.iceberg.scan_filters import ScanFilter
from penstock.segments.iceberg.table_files import TableFiles, uri_of
from penstock.segments.iceberg.table_versions import TableVersion, TableVersions
from penstock.segments.visible_rows import TIME_COLUMN, VisibleFile, VisibleRows
from penstock.services.api.published_rows import published_files, visible_files
from penstock.spark.tables import TableSource, why_empty
from penstock.spark.tables.table_columns import KnownColumns
from penstock.spark.tables.table_files import Columns, TableFile
from penstock.storage.metadata import MetadataStore

_log = logging.getLogger(__name__)

SLOW_S: Final = 0.1
"""A build that took longer is not waited for the next time."""
REST_S: Final = 1.0
"""After a build the table rests for this time, and clients get the version that was built.

The files of versions stay for an hour, so their number would grow with the number of loads.
"""
REST_FACTOR: Final = 9.0
"""After a slow build the table rests this many times as long as the build took."""
REMOVAL_S: Final = 600.0
"""Time between two removals of unneeded files of a table."""
PLAN_TASKS_MAX: Final = 2_000
"""Files in one answer to a plan; clients request the rest by its tokens."""
PLANNED_FILES_MAX: Final = 500_000
"""Files in the parts of plans that are kept for clients; the oldest plan is dropped first.

The newest plan is always kept whole, so that it can be read.
"""
PLAN_AGE_S: Final = 600.0
"""Maximum age of a part of a plan that no client has requested."""

BOUNDS_READ_S: Final = 0.5
"""Longest time for which a plan reads footers; files whose bounds are not known then are kept."""

DROPPED_S: Final = 3_600.0
"""Time for which a datasource must have no data until the files of its table are deleted."""

_SWEEP_S: Final = 600.0
_ABANDONED_S: Final = 3_600.0
_POINTERS: Final = "iceberg/"


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A file to read, and the file with its hidden rows."""

    file: ManifestEntry
    hidden: ManifestEntry | None = None


# A file that is visible as a whole, one that is visible in part, or one of a snapshot.
_ScannedFile: TypeAlias = TableFile | VisibleFile
_PlannedFile: TypeAlias = _ScannedFile | ScanTask


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """A part of the files to read, and the tokens for the rest."""

    tasks: Sequence[ScanTask]
    rest: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _PlanPart:
    """Files of a plan that a client may still request.

    Attributes:
        files: The files.
        planned_at_s: When the scan was planned.
    """

    files: Sequence[_PlannedFile]
    planned_at_s: float


class _ConfigPointer:
    """The pointer of a table, in the dynamic configuration of the metadata store."""

    def __init__(self, store: MetadataStore, datasource: str) -> None:
        self._store = store
        self._name = f"{_POINTERS}{datasource}"

    def get(self) -> bytes | None:
        """Return the stored value."""
        return self._store.config.get(self._name)

    def compare_and_set(self, old: bytes | None, new: bytes) -> bool:
        """Exchange the value if it is still `old`."""
        return self._store.config.compare_and_set(self._name, old, new)


@dataclass(slots=True)
class _Table:
    """A table of this router. The mutex is held during a build, which all its readers wait for."""

    versions: TableVersions
    mutex: threading.Lock = field(default_factory=threading.Lock)
    files: Sequence[TableFile] = ()
    visible: Sequence[VisibleFile] = ()
    columns: Columns = ()
    in_files: frozenset[Columns] = frozenset()
    version: TableVersion | None = None
    revision: int = -1
    built_at_s: float = 0.0
    took_s: float = 0.0
    removed_at_s: float = 0.0


class CatalogTables:
    """The tables of a catalog. Any thread may call.

    Args:
        source: The visible files.
        store: The metadata store, for the pointers of tables.
        deep_storage: Root of the deep storage.
        clock: Dates versions, and measures builds.
    """

    def __init__(
        self, source: TableSource, store: MetadataStore, deep_storage: str, clock: Clock
    ) -> None:
        self._source = source
        self._store = store
        self._deep_storage = deep_storage
        self._clock = clock
        self._columns = KnownColumns()
        self._footers = FooterBounds(clock)
        # Guards the dictionaries below; requests are on many threads.
        self._mutex = threading.Lock()
        self._tables: dict[str, _Table] = {}
        self._plans: OrderedDict[tuple[str, str], _PlanPart] = OrderedDict()
        self._changed = threading.Condition(self._mutex)
        self._waiting: dict[str, None] = {}  # tables to build or to clear, in order
        # Of the thread: since when datasources with files of a table have no data.
        self._empty_since_s: dict[str, float] = {}
        self._sweep_at_s = self._abandoned_at_s = clock.monotonic_s()
        self._thread = OwnedThread("iceberg", self._run, on_death=OnDeath.RESTART)
        self._token = RandomUuids()

    def start(self) -> None:
        """Start the thread of slow builds and removals."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a build that runs is awaited for a second."""
        self._thread.end(self._changed, 1.0)

    def names(self) -> list[str]:
        """Return the names of all datasources with data."""
        return sorted(name for name, files in self._source.tables().files.items() if files)

    def is_known(self, datasource: str) -> bool:
        """Return whether there is a datasource of exactly this name with data."""
        return bool(self._source.tables().files.get(datasource))

    def version(self, datasource: str) -> TableVersion:
        """Return the current version of a table, built now if that is quick.

        Raises:
            NotFound: There is no such datasource with data.
            Unavailable: The metadata or the deep storage does not answer.
            CorruptData: A metadata file is damaged.
        """
        with self._mutex:
            known = self._tables.get(datasource)
        # Before the version, which is that of this revision or of a later one then.
        revision = 0 if known is None else known.revision
        if known is not None and known.version is not None and known.took_s > SLOW_S:
            version = self._slow_version(datasource, known, known.version)
            return self._existing(datasource, known, version, revision)
        files = self._files(datasource)
        table = self._table(datasource)
        version = self._quick_version(datasource, table, files)
        return self._existing(datasource, table, version, revision)

    def _quick_version(
        self, datasource: str, table: _Table, files: Sequence[TableFile]
    ) -> TableVersion:
        """Return the version of a table with these files, or one that was built just now."""
        if table.version is not None and self._is_same(table, datasource, files):
            if self._clock.monotonic_s() >= table.removed_at_s + REMOVAL_S:
                self._later(datasource)
            return table.version
        if table.version is not None and self._clock.monotonic_s() < table.built_at_s + REST_S:
            return table.version
        with table.mutex:
            return self._built(table, datasource)

    def newest_version(self, datasource: str) -> TableVersion:
        """Return the version with the current rows of a table, built now.

        Raises as `version`.
        """
        self._files(datasource)
        table = self._table(datasource)
        with table.mutex:
            return self._built(table, datasource)

    def _existing(
        self, datasource: str, table: _Table, version: TableVersion, revision: int
    ) -> TableVersion:
        """Return a version without the snapshots whose files may be deleted.

        A kill raises the oldest revision before it deletes files. It may have deleted files of the
        current snapshot, if the version was compared with an earlier revision only.
        """
        oldest = self._store.history.oldest(datasource)
        if revision < oldest:
            with table.mutex:
                version = self._built(table, datasource)
        if (shown := version.since(oldest)) is not version:
            self._later(datasource)  # writes the metadata file without them
        return shown

    def columns(self, datasource: str) -> Columns:
        """Return the columns of a datasource. Raises NotFound without data."""
        return self._columns.of(datasource, self._files(datasource))

    def plan(self, datasource: str, request: Mapping[str, object]) -> ScanPlan:
        """Return the files that a scan reads.

        Args:
            datasource: The datasource.
            request: The client's request in the catalog's JSON form.

        Raises:
            NotFound: There is no such datasource with data, or no such snapshot.
            InvalidRequest: The request asks for the changes between two snapshots.
            Unavailable: The deep storage does not answer.
            CorruptData: A file is damaged.
        """
        for place in ("start-snapshot-id", "end-snapshot-id"):
            if request.get(place) is not None:
                raise InvalidRequest(
                    "changes between two snapshots are not planned here: read one snapshot",
                    place=place,
                )
        files = self._files(datasource)
        chosen = ScanFilter(
            request.get("filter"),
            [name for name, _ in self._columns.of(datasource, files)],
            TIME_COLUMN,
            is_case_sensitive=request.get("case-sensitive") is not False,
        )
        snapshot_id = request.get("snapshot-id")
        found: Sequence[_PlannedFile]
        if snapshot_id is None:
            found = self._matching(files, chosen)
        else:
            if isinstance(snapshot_id, bool) or not isinstance(snapshot_id, int):
                raise InvalidRequest("must be a whole number", place="snapshot-id")
            found = self._tasks_of(datasource, snapshot_id, chosen.time)
        first, rest = found[:PLAN_TASKS_MAX], found[PLAN_TASKS_MAX:]
        tokens = self._kept(datasource, rest) if rest else ()
        return ScanPlan(self._scan_tasks(datasource, first), tokens)

    def rest(self, datasource: str, token: str) -> ScanPlan:
        """Return the next files of a plan.

        Raises:
            NotFound: The plan was dropped, or never existed.
            Unavailable: The deep storage does not answer.
            CorruptData: A file is damaged.
        """
        with self._mutex:
            part = self._plans.pop((datasource, token), None)
        if part is None:
            raise NotFound("this part of a plan is not kept any longer: plan the scan again")
        return ScanPlan(self._scan_tasks(datasource, part.files))

    def _slow_version(self, datasource: str, table: _Table, version: TableVersion) -> TableVersion:
        """Return the version of a table that takes long to build, and have the next one built.

        To find its files takes long, too, so the request does not wait for that.
        """
        now_s = self._clock.monotonic_s()
        may_change = self._source.revision() != table.revision
        is_rested = now_s >= table.built_at_s + REST_FACTOR * table.took_s
        if (may_change and is_rested) or now_s >= table.removed_at_s + REMOVAL_S:
            self._later(datasource)
        return version

    def _files(self, datasource: str) -> Sequence[TableFile]:
        tables = self._source.tables()
        if not tables.files.get(datasource) and (why := why_empty(self._source, datasource)):
            raise NotFound(why)
        if not (found := tables.files.get(datasource)):
            # Without the names of others: the principal may not be allowed to see them.
            raise NotFound(
                f'there is no datasource "{datasource}" with data: list the tables of the namespace'
            )
        return found

    def _table(self, datasource: str) -> _Table:
        with self._mutex:
            found = self._tables.get(datasource)
            if found is None:
                files = TableFiles(self._deep_storage, datasource)
                pointer = _ConfigPointer(self._store, datasource)
                versions = TableVersions(files, pointer, self._clock, footers=self._footers)
                found = _Table(versions)
                self._tables[datasource] = found
            return found

    def _is_same(self, table: _Table, datasource: str, files: Sequence[TableFile]) -> bool:
        """Return whether the published files and the columns of a table are as they were built."""
        columns, published = self._columns.of(datasource, files), published_files(files)
        return (
            columns == table.columns
            and len(published) == len(table.files)
            and published == table.files
            and all(file.columns in table.in_files for file in files[len(published) :])
        )

    def _built(self, table: _Table, datasource: str) -> TableVersion:
        """Build a table with its mutex, unless another thread has done so meanwhile."""
        begun_s = self._clock.monotonic_s()
        tables = self._source.tables()
        if not (files := tables.files.get(datasource)):
            self._forget_others(tables.files)
            raise NotFound(f'there is no datasource "{datasource}" with data any longer')
        oldest = self._store.history.oldest(datasource)
        version = table.version
        if (
            version is not None
            and version.since(oldest) is version
            and self._is_same(table, datasource, files)
        ):
            table.revision = tables.revision
            return version
        published = published_files(files)
        visible = visible_files(published, table.visible)
        columns = self._columns.of(datasource, files)
        in_files = _distinct_columns(files)
        rows = VisibleRows(tables.revision, visible, columns, in_files)
        changed_ms = self._store.history.changed_ms(datasource, tables.revision)
        made = table.versions.build(rows, oldest, changed_ms)
        table.files, table.visible, table.columns = published, visible, columns
        table.version = made
        table.in_files, table.revision = frozenset(in_files), tables.revision
        table.built_at_s = self._clock.monotonic_s()
        table.took_s = table.built_at_s - begun_s
        if table.built_at_s >= table.removed_at_s + REMOVAL_S:
            self._later(datasource)
        self._forget_others(tables.files)
        return made

    def _forget_others(self, datasources: Container[str]) -> None:
        """Forget tables of datasources without data. They are read again if they come back."""
        with self._mutex:
            self._tables = {
                name: table for name, table in self._tables.items() if name in datasources
            }
            self._columns.keep(self._tables.keys())

    def _later(self, datasource: str) -> None:
        with self._changed:
            self._waiting[datasource] = None
            self._changed.notify()

    def _run(self) -> None:
        while not self._thread.is_end_expected:
            with self._changed:
                name = next(iter(self._waiting), None)
                due_s = self._sweep_at_s - self._clock.monotonic_s()
                if name is None and due_s > 0:
                    if not self._thread.is_end_expected:
                        self._clock.wait(self._changed, due_s)
                    continue
                self._waiting.pop(name or "", None)
            try:
                if name is not None:
                    self._maintain(name)
                else:
                    self._sweep_at_s = self._clock.monotonic_s() + _SWEEP_S
                    self._sweep()
            except PenstockError as error:  # narrow: a later request has it tried again
                _log.warning(
                    "the files of the Iceberg table of %s are not brought up to date: %s",
                    name or "a datasource without data",
                    error,
                )

    def _maintain(self, datasource: str) -> None:
        """Build the version of a table, and remove files that it does not need."""
        table = self._table(datasource)
        with table.mutex:
            self._built(table, datasource)
            now_s = self._clock.monotonic_s()
            if now_s >= table.removed_at_s + REMOVAL_S:
                table.removed_at_s = now_s
                table.versions.remove_unneeded()

    def _sweep(self) -> None:
        """Delete files of datasources without data, and those that clients have abandoned."""
        now_s = self._clock.monotonic_s()
        with_data = self._source.tables().files
        pointers = self._store.config.names(_POINTERS)
        empty = [name for one in pointers if not with_data.get(name := one[len(_POINTERS) :])]
        self._empty_since_s = {name: self._empty_since_s.get(name, now_s) for name in empty}
        for name, since_s in list(self._empty_since_s.items()):
            if now_s >= since_s + DROPPED_S and self._tried(name, self._clear):
                self._empty_since_s[name] = math.inf  # until it has data again
        if now_s >= self._abandoned_at_s:
            self._abandoned_at_s = now_s + _ABANDONED_S
            for name in (one[len(_POINTERS) :] for one in pointers):
                self._tried(name, self._delete_abandoned)

    def _tried(self, datasource: str, work: Callable[[str], None]) -> bool:
        """Do some work on a table; return whether it succeeded."""
        try:
            work(datasource)
        except PenstockError as error:  # narrow: the next sweep tries again
            _log.warning("files of the Iceberg table of %s are not deleted: %s", datasource, error)
            return False
        return True

    def _clear(self, datasource: str) -> None:
        """Delete the files of a table without rows."""
        table = self._table(datasource)
        with table.mutex:
            if not self._source.tables().files.get(datasource):
                table.version = None
                table.versions.remove_all()
                self._client_files(datasource).delete_abandoned(self._clock.now_ms())

    def _delete_abandoned(self, datasource: str) -> None:
        """Delete files of clients that no commit has taken over."""
        self._client_files(datasource).delete_abandoned(self._clock.now_ms() - ABANDONED_MS)

    def _client_files(self, datasource: str) -> ClientFiles:
        return ClientFiles(self._deep_storage, datasource)

    def _scan_tasks(self, datasource: str, files: Sequence[_PlannedFile]) -> list[ScanTask]:
        versions = self._table(datasource).versions
        tasks = []
        for one in files:
            if isinstance(one, ScanTask):
                tasks.append(one)
                continue
            (file,) = visible_files([one]) if isinstance(one, TableFile) else (one,)
            entry = ManifestEntry(uri_of(file.location), file.rows, file.size_bytes, 0, 0)
            tasks.append(ScanTask(entry, versions.hidden_rows(file, 0, 0)))
        return tasks

    def _matching(self, files: Sequence[TableFile], chosen: ScanFilter) -> Sequence[_ScannedFile]:
        """Return the visible files that may have matching rows."""
        found = _files_in(files, chosen.time)
        if not chosen.columns:
            return found
        # A task may write a file again under its name, and its host may be another one.
        announced = {file.path for file in files[len(published_files(files)) :]}
        deadline_s = self._footers.deadline(BOUNDS_READ_S)
        kept = []
        for file in found:
            bounds = None
            path = file.path if isinstance(file, TableFile) else file.location
            if path not in announced:
                bounds = self._footers.of(path, chosen.columns, deadline_s)
            if bounds is None or chosen.may_match(bounds, file.interval):
                kept.append(file)
        return kept

    def _tasks_of(self, datasource: str, snapshot_id: int, time: Interval) -> list[ScanTask]:
        self._files(datasource)
        if (
            snapshot_id < self._store.history.oldest(datasource)
            and snapshot_id != self.version(datasource).snapshot_id
        ):
            raise NotFound(f"files of the snapshot {snapshot_id} are deleted: load the table again")
        entries = self._table(datasource).versions.entries(snapshot_id, time)
        hidden = {one.referenced: one for one in entries if one.content == POSITION_DELETES}
        return [
            ScanTask(one, hidden.get(one.path))
            for one in entries
            if one.content != POSITION_DELETES
        ]

    def _kept(self, datasource: str, files: Sequence[_PlannedFile]) -> list[str]:
        """Keep the parts of a plan, and return their tokens."""
        tokens = []
        now_s = self._clock.monotonic_s()
        with self._mutex:
            room = PLANNED_FILES_MAX - len(files)
            kept: OrderedDict[tuple[str, str], _PlanPart] = OrderedDict()
            for key, part in reversed(self._plans.items()):
                room -= len(part.files)
                if room < 0 or now_s >= part.planned_at_s + PLAN_AGE_S:
                    break
                kept[key] = part
                kept.move_to_end(key, last=False)
            for start in range(0, len(files), PLAN_TASKS_MAX):
                tokens.append(token := self._token())
                kept[datasource, token] = _PlanPart(files[start : start + PLAN_TASKS_MAX], now_s)
            self._plans = kept
        return tokens


def _distinct_columns(files: Sequence[TableFile]) -> list[Columns]:
    """Return the distinct columns of files; most of very many have those of the file before."""
    found: dict[Columns, None] = {}
    last: Columns = ()
    for file in files:
        if file.columns != last or not found:
            last = file.columns
            found[last] = None
    return list(found)


def _files_in(files: Sequence[TableFile], time: Interval) -> list[_ScannedFile]:
    """Return the files that may have visible rows in an interval, each once.

    Most are wholly visible, and the source has them in memory already.
    """
    # All pieces of a file count together, so that its hidden rows are those of a snapshot.
    cut = {one.location: one for one in visible_files([file for file in files if file.clip])}
    whole: dict[str, TableFile] = {}
    for file in files:
        if file.clip is None:
            cut.pop(file.path, None)
            if _overlaps(file.interval, time):
                whole[file.path] = file
    parts = (one for one in cut.values() if any(_overlaps(part, time) for part in one.visible))
    return [*whole.values(), *parts]


def _overlaps(one: Interval, other: Interval) -> bool:
    return one.end_ms > other.start_ms and one.start_ms < other.end_ms
