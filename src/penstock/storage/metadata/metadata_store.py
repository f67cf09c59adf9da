"""The metadata store: access to the database, and the transactions that span several tables.

Owns opening, closing and the named transactions. Tables that no such transaction needs have stores
of their own (`tasks`, `supervisors`, `segments`, `leases`, `audit`). Payloads are not interpreted.

Invariant: every method is one transaction, and an error undoes all of it, with one exception: if
the connection to a server breaks during the commit, the transaction may be committed. A repeated
publish then returns `already_published`; other methods raise `Conflict` or are idempotent.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Self, TypeVar

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import Fenced
from penstock.storage.metadata.allocation import allocate
from penstock.storage.metadata.announced_files import announce
from penstock.storage.metadata.copies import read_copy, write_copy
from penstock.storage.metadata.migrations import migrate
from penstock.storage.metadata.publish.offsets import (
    begin_offsets,
    begin_topic,
    move_offsets,
    read_all_counts,
    read_committed,
    read_counts,
    write_committed,
)
from penstock.storage.metadata.publish.publish_log import PublishLog
from penstock.storage.metadata.publish.publish_transaction import publish
from penstock.storage.metadata.publish.query_batches import QueryBatches
from penstock.storage.metadata.publish.upgrades import SegmentUpgrades
from penstock.storage.metadata.revision import read_revision
from penstock.storage.metadata.rows.publish import CommittedRow
from penstock.storage.metadata.segment_history import SegmentHistory
from penstock.storage.metadata.segment_overview import SegmentOverviews
from penstock.storage.metadata.segments import Segments
from penstock.storage.metadata.snapshots import read_snapshot
from penstock.storage.metadata.sql_database import (
    BUSY_TIMEOUT_MS,
    Database,
    GuardedDatabase,
    Transactions,
)
from penstock.storage.metadata.tables.configuration import AuditLog, DynamicConfig, RetentionRules
from penstock.storage.metadata.tables.leadership import Leases, Terms, require_newest
from penstock.storage.metadata.tables.locks import StoredTaskLocks
from penstock.storage.metadata.tables.lookups import StoredLookups
from penstock.storage.metadata.tables.stream_cursors import StreamCursors
from penstock.storage.metadata.tables.supervisors import SupervisorTable
from penstock.storage.metadata.tables.tasks import Tasks
from penstock.storage.metadata.task_roots import TaskRoots

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from sqlalchemy import Connection

    from penstock.storage.metadata.payloads import Offsets
    from penstock.storage.metadata.rows.cluster import Term
    from penstock.storage.metadata.rows.pending_segments import AllocateRequest, PendingRow
    from penstock.storage.metadata.rows.publish import CountsRow, PublishOutcome, PublishRequest
    from penstock.storage.metadata.rows.segments import AnnouncedFile, AnnouncedOffsets, Snapshot

T = TypeVar("T")


class MetadataStore:
    """All metadata of one Penstock, on SQLite or PostgreSQL, for any thread and several processes.

    Attributes:
        tasks: Indexing tasks and their states.
        supervisors: Supervisor specs, every version.
        segments: Published segments by id, used and unused; pending segments.
        history: Segments that were used at earlier revisions.
        segment_overviews: All used segments: sums, changes, and reads in parts.
        leases: Live instances of services.
        roots: Folders that hold the folders of tasks.
        publishes: Log of publishes.
        query_batches: Last published batches of streaming queries of Spark.
        upgrades: Segments appended to an interval while a task replaces it.
        locks: Task locks, as stored for the lockbox.
        terms: Leaders of services.
        rules: Retention rules.
        config: Dynamic configuration by name.
        audit: Audit log of changes.
        lookups: Lookups with their rows.
        stream_cursors: How far streams have read datasources.
    """

    def __init__(self, database: Transactions) -> None:
        self._database = database
        self.tasks = Tasks(database)
        self.supervisors = SupervisorTable(database)
        self.segments = Segments(database)
        self.history = SegmentHistory(database)
        self.segment_overviews = SegmentOverviews(database)
        self.leases = Leases(database)
        self.roots = TaskRoots(database)
        self.publishes = PublishLog(database)
        self.query_batches = QueryBatches(database)
        self.upgrades = SegmentUpgrades(database)
        self.locks = StoredTaskLocks(database)
        self.terms = Terms(database)
        self.rules = RetentionRules(database)
        self.config = DynamicConfig(database)
        self.audit = AuditLog(database)
        self.lookups = StoredLookups(database)
        self.stream_cursors = StreamCursors(database)
        self._offset_writes: dict[str, int] = {}
        self._numbers = itertools.count(1)

    @classmethod
    def open(
        cls, url: str, *, clock: Clock | None = None, busy_timeout_ms: int = BUSY_TIMEOUT_MS
    ) -> MetadataStore:
        """Open the store and migrate its tables to this release's format.

        Args:
            url: ``sqlite:////absolute/path`` or ``postgresql+psycopg://user:secret@host/name``.
            clock: Clock for the times in rows.
            busy_timeout_ms: How long each of up to three attempts waits for other writers.

        Raises:
            InvalidRequest: The URL is invalid, the file is not a database of Penstock, it or its
                folder is not writable, or its format is newer than this release.
            Unavailable: The server or the disk does not answer now.
        """
        database = Database(url, clock or SystemClock(), busy_timeout_ms=busy_timeout_ms)
        try:
            migrate(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Later calls raise `Closed`."""
        self._database.close()

    def under(self, term: Term, *, on_fenced: Callable[[], None] = lambda: None) -> MetadataStore:
        """Return this store for the leader of a term: its writes fail once the next term begins.

        Every write first checks, in its own transaction, that the term is the newest one, even if
        it has expired. Reads are not checked. Closing the returned store does nothing.

        Args:
            term: The leader's term.
            on_fenced: Called with each refused write, on the writer's thread; it must not block.

        Raises:
            Fenced: By each write after another leader took over or this one resigned.
        """

        def check(connection: Connection) -> None:
            try:
                require_newest(connection, term)
            except Fenced:  # narrow: reports that the term ended
                on_fenced()
                raise

        guarded = GuardedDatabase(self._database, check)
        return MetadataStore(guarded)

    def write_copy(self, path: str, clock: Clock) -> list[tuple[dict[str, object], int]]:
        """Write all metadata as of one instant into a new SQLite file; see `copies`.

        Returns:
            Load spec and size of each segment, used or unused.
        """
        return write_copy(self._database, path, clock)

    def read_copy(self, path: str, clock: Clock) -> None:
        """Load all metadata of a copy into an empty database. Raises as `read_copy`."""
        read_copy(path, self._database, clock)

    def publish(self, request: PublishRequest) -> PublishOutcome:
        """Publish segments and move the supervisor's offsets, both or neither.

        The start offsets are compared with the committed ones (table: `docs/concepts/metadata.md`).
        On success the same transaction adds the counts and deletes the sequence's pending segments
        and announced files, so that a snapshot has each event once.

        Raises:
            InvalidRequest: The request contradicts itself.
            Conflict: A segment has the place of another one with a different id.
            Unavailable: The database does not answer. Repeat the call: if the first attempt was
                committed, the answer is `already_published`.
        """
        return self._moving(
            request.supervisor_id or "",
            lambda c: publish(c, request, self._database.now_ms()),
        )

    def allocate_segments(self, requests: Sequence[AllocateRequest]) -> list[PendingRow | None]:
        """Allocate a pending segment for each request; a repeated request returns the same one.

        The result is None if the time chunk cannot take the segment: the interval has more than
        one visible chunk, or segments of another interval. Equal requests share a segment.

        Raises:
            Conflict: The requested version was used before in this chunk; use a newer one.
            Unavailable: The database does not answer; repeat the call.
        """
        return self._database.write(lambda c: allocate(c, requests, self._database.now_ms()))

    def announce(
        self,
        task_id: str,
        datasource: str,
        sequence_name: str,
        files: Sequence[AnnouncedFile],
        reading: AnnouncedOffsets | None = None,
    ) -> bool:
        """Replace the files that this task announces for one sequence.

        Args:
            task_id: The task.
            datasource: The datasource of the rows.
            sequence_name: The sequence of the files; replicas use the same names.
            files: The files.
            reading: The offsets of their events, so that no snapshot shows an event twice, even if
                other tasks announce or publish it. Without offsets, only replicas of the sequence
                are recognized.

        Returns:
            False, and nothing is announced, if the sequence was published already or the task is
            complete: its rows would count twice.
        """
        return self._database.write(
            lambda c: announce(c, (task_id, datasource, sequence_name), files, reading)
        )

    def snapshot(self, datasource: str | None = None, *, known: Snapshot | None = None) -> Snapshot:
        """Read all used segments and announced files as of one instant.

        Args:
            datasource: Only this one.
            known: An earlier snapshot of the same datasource; unchanged parts are taken from it
                and not read again. If nothing changed, the same object is returned.
        """
        return self._database.read(lambda c: read_snapshot(c, datasource, known))

    def is_stored_name(self, name: str) -> bool:
        """Return whether anything is stored under this exact name (`SegmentOverview.has_name`)."""
        return self.segment_overviews.read(lambda overview: overview.has_name(name))

    def revision(self) -> int:
        """Return the revision of visible data, which grows with every change. One short query."""
        return self._database.read(lambda c: read_revision(c)[0])

    def committed(self, supervisor_id: str) -> CommittedRow | None:
        """Return the committed offsets and their topic, None before the first commit."""
        return self._database.read(lambda c: read_committed(c, supervisor_id))

    def offsets(self, supervisor_id: str) -> dict[int, int] | None:
        """Return the committed offset of each stream partition, None before the first."""
        found = self.committed(supervisor_id)
        return None if found is None else dict(found.offsets)

    def begin_offsets(
        self, supervisor_id: str, offsets: Offsets, topic_id: str = ""
    ) -> dict[int, int]:
        """Commit a first offset for each stream partition without one, and return all offsets.

        Call it before tasks start on new stream partitions. Without a committed offset any start
        is accepted, so a sequence that overtakes its predecessor would skip the predecessor's
        events. The topic's id is also committed, unless there is one.

        Raises:
            Conflict: The committed offsets are of a topic with another id.
        """
        first = CommittedRow(topic_id, offsets)
        found = self._moving(
            supervisor_id,
            lambda c: begin_offsets(c, supervisor_id, first, self._database.now_ms()),
        )
        return dict(found.offsets)

    def begin_topic(self, supervisor_id: str, was: str, topic_id: str, offsets: Offsets) -> bool:
        """Replace all committed offsets of the topic `was` by first ones in its successor.

        Later publishes of sequences that started in the old topic are refused.

        Returns:
            False, and nothing changes, if the committed offsets are not of the topic `was`.
        """
        first = CommittedRow(topic_id, offsets)
        return self._moving(
            supervisor_id,
            lambda c: begin_topic(c, supervisor_id, was, first, self._database.now_ms()),
        )

    def move_offsets(self, supervisor_id: str, offsets: Offsets) -> dict[int, int]:
        """Set the committed offsets of some stream partitions unconditionally; return all.

        The others stay unchanged, even if tasks publish concurrently.
        """
        return self._moving(
            supervisor_id,
            lambda c: move_offsets(c, supervisor_id, offsets, self._database.now_ms()),
        )

    def reset_offsets(
        self, supervisor_id: str, offsets: Offsets | None, topic_id: str = ""
    ) -> None:
        """Set the committed offsets and their topic unconditionally; None removes them."""
        wanted = None if offsets is None else CommittedRow(topic_id, offsets)
        self._moving(
            supervisor_id,
            lambda c: write_committed(c, supervisor_id, wanted, self._database.now_ms()),
        )

    def last_move(self, supervisor_id: str) -> int:
        """Return a number that changes with each write of the committed offsets by this object.

        It also changes with a failed write, which may be committed though its answer was lost.
        While it is unchanged, a leader's offsets are too: only the leader of a term writes them.
        """
        return self._offset_writes.get(supervisor_id, 0)

    def _moving(self, supervisor_id: str, write: Callable[[Connection], T]) -> T:
        try:
            return self._database.write(write)
        finally:
            self._offset_writes[supervisor_id] = next(self._numbers)

    def counts(self, supervisor_id: str) -> CountsRow:
        """Return the sum of rows over all publishes of a supervisor."""
        return self._database.read(lambda c: read_counts(c, supervisor_id))

    def all_counts(self) -> Mapping[str, CountsRow]:
        """Return the sum of rows over all publishes of each supervisor, by id."""
        return self._database.read(read_all_counts)
