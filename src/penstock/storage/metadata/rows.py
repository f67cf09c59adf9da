"""Frozen records that the metadata store takes and returns. They are free of SQL.

Payloads are JSON objects that the store does not interpret. Times are epoch milliseconds, intervals
half open. The store sets `created_ms` and similar fields when it inserts a row; the caller may
leave them at 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from penstock.core.intervals import format_time

if TYPE_CHECKING:
    from penstock.core.intervals import Interval

JsonObject: TypeAlias = Mapping[str, object]
Offsets: TypeAlias = Mapping[int, int]  # stream partition -> offset
PublishKind: TypeAlias = Literal["insert", "append", "replace"]
PartitionSpace: TypeAlias = Literal["root", "overwrite"]


def segment_id(datasource: str, interval: Interval, version: str, partition_number: int) -> str:
    """Return the id of a segment; `penstock.segments.model` parses it."""
    text = f"{datasource}_{format_time(interval.start_ms)}_{format_time(interval.end_ms)}_{version}"
    return f"{text}_{partition_number}" if partition_number else text


@dataclass(frozen=True, slots=True)
class TaskRow:
    """An indexing task: its definition (`payload`), its state, and its `status`.

    `status` holds location, error message and similar fields; it may change while `active`.
    """

    id: str
    datasource: str
    type: str
    group_id: str
    payload: JsonObject
    state: str = "RUNNING"
    status: JsonObject = field(default_factory=dict)
    active: bool = True
    created_ms: int = 0
    updated_ms: int = 0


class TaskSummary(msgspec.Struct, frozen=True, gc=False):
    """A `TaskRow` without its payload, for lists of tasks.

    A struct, because lists may hold ten thousand and a dataclass takes ten times as long to create.
    """

    id: str
    datasource: str
    type: str
    group_id: str
    state: str
    status: JsonObject
    active: bool
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Conditions for a list of tasks; None means any.

    Attributes:
        active: Only active tasks, or only complete ones.
        state: Only tasks in this state.
        datasource: Only tasks of this datasource.
        type: Only tasks of this type.
        created_from_ms: Only tasks created at this time or later.
        created_before_ms: Only tasks created before this time.
    """

    active: bool | None = None
    state: str | None = None
    datasource: str | None = None
    type: str | None = None
    created_from_ms: int | None = None
    created_before_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LockRow:
    """A lock as one task holds it.

    Task, datasource, granularity, type, interval, version and segment partition identify it; the
    other fields may change. `granularity` and `type` are values of the lockbox.
    """

    task_id: str
    datasource: str
    granularity: str
    type: str
    group_id: str
    interval: Interval
    version: str
    priority: int
    revoked: bool = False
    partition_number: int | None = None
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class Term:
    """A term of leadership: `holder` leads `service`; a later term has a larger number."""

    service: str
    holder: str
    number: int
    expires_ms: int
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class SupervisorRow:
    """One version of a supervisor's spec. Versions count up from 1; all are kept."""

    id: str
    payload: JsonObject
    version: int = 0
    tombstone: bool = False
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A published segment. Only `used` rows can be visible.

    `upgraded_from` is the id of the segment whose file this one shares, or empty.
    """

    id: str
    datasource: str
    interval: Interval
    version: str
    partition_number: int
    core_partitions: int
    payload: JsonObject
    used: bool = True
    created_ms: int = 0
    used_changed_ms: int = 0
    upgraded_from: str = ""


class SegmentText(NamedTuple):
    """A used segment with an unparsed payload, because most callers read few of very many."""

    id: str
    start_ms: int
    end_ms: int
    version: str
    partition_number: int
    core_partitions: int
    upgraded_from: str
    payload: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """An interval and the number of used segments of a datasource in it."""

    interval: Interval
    rows: int


@dataclass(frozen=True, slots=True)
class SegmentChanges:
    """Changes to the segments of a datasource since an earlier revision.

    Attributes:
        times: Intervals in which segments were added, removed or changed, disjoint and in order.
        used: Number of used segments now.
    """

    times: tuple[Interval, ...]
    used: int


@dataclass(frozen=True, slots=True)
class SegmentTotals:
    """Sums over the used segments of a datasource, or of one of its intervals.

    Attributes:
        interval: From the earliest start to the latest end.
        count: Number of segments.
        bytes: Sum of their sizes.
    """

    interval: Interval
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Occupied:
    """Time chunks that overlap an interval, those of the newest version first.

    Attributes:
        visible: Complete chunks that are not entirely hidden within the interval.
        pending: Chunks of pending segments, without duplicates.
    """

    visible: tuple[Interval, ...]
    pending: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class PendingRow:
    """A pending segment: an id that is allocated for a segment that is not published yet.

    `upgraded_from` is set in a copy: a replace put a newer version above the pending segment with
    that id, so a segment published under that id must appear under the copy's id, too.
    `minor_version` is for a segment that rewrites others; it is not stored, but computed on return.
    """

    datasource: str
    interval: Interval
    version: str
    partition_number: int
    core_partitions: int
    sequence_name: str
    created_ms: int = 0
    previous_id: str = ""
    allocator_id: str = ""
    upgraded_from: str = ""
    minor_version: int = 0

    @property
    def id(self) -> str:
        """The id that the segment will be published under."""
        return segment_id(self.datasource, self.interval, self.version, self.partition_number)


@dataclass(frozen=True, slots=True)
class AllocateRequest:
    """Request to allocate a pending segment of one sequence in a time chunk.

    Attributes:
        datasource: The datasource.
        interval: The time chunk.
        sequence_name: The sequence; the same request of a sequence returns the same segment.
        version: Version for a chunk that has no segments yet.
        previous_id: The segment before this one in the sequence, "" for the first. It identifies a
            segment of the sequence, unless `skip_lineage`.
        skip_lineage: The interval identifies it instead: a sequence has one segment in each.
        allocator_id: The owner, so that all pending segments of an owner can be deleted together.
        space: Range of partition numbers: of ordinary segments, or of those that rewrite others
            under segment locks.
    """

    datasource: str
    interval: Interval
    sequence_name: str
    version: str
    previous_id: str = ""
    skip_lineage: bool = True
    allocator_id: str = ""
    space: PartitionSpace = "root"


@dataclass(frozen=True, slots=True)
class AnnouncedFile:
    """A persisted file that is not published yet; `payload` has its columns, bytes and times."""

    path: str
    interval: Interval
    rows: int
    payload: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """The events in announced files: offsets [start, end) of a supervisor's stream.

    Attributes:
        supervisor_id: The supervisor whose committed offsets they are compared with.
        start: Start offsets of the sequence.
        end: End offsets of its files.
        topic_id: The id of the topic of the offsets; empty means any.
        priority: Of the replicas that keep up, one with the highest priority is shown.
        before: End offsets before the newest file was added; empty means unknown.
    """

    supervisor_id: str
    start: Offsets
    end: Offsets
    topic_id: str = ""
    priority: int = 0
    before: Offsets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnnouncedRow:
    """An announced file with its task and sequence."""

    task_id: str
    datasource: str
    sequence_name: str
    file: AnnouncedFile


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything visible at one revision: each event in a segment or an announced file, never both.

    `segments` are all used rows, including overshadowed ones. `announced` has the files of at most
    one task for each sequence, even if several replicas announced some, and no offsets that are
    committed or in the files of another sequence. `segments_revision` is the revision at which
    `segments` last changed.
    """

    revision: int
    segments_revision: int
    segments: tuple[SegmentRow, ...]
    announced: tuple[AnnouncedRow, ...]
    datasource: str | None = None


@dataclass(frozen=True, slots=True)
class CountsRow:
    """Rows of a supervisor, summed over all its publishes."""

    processed: int = 0
    unparseable: int = 0
    thrown_away_late: int = 0
    thrown_away_early: int = 0
    thrown_away_filtered: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class CommittedRow:
    """The committed offset of each stream partition, and the topic that the offsets belong to.

    A topic that is deleted and created again under its name has another id. An empty `topic_id`
    means that the id is unknown.
    """

    topic_id: str
    offsets: Offsets


class Covering(NamedTuple):
    """The REPLACE lock that covers an appended segment: its owner and version."""

    task_id: str
    version: str


@dataclass(frozen=True, slots=True)
class Basis:
    """The segments that a replacing task listed; its output contains only their rows.

    Attributes:
        intervals: Intervals of the list; the task's locks cover them.
        shown: Ids of visible segments, including tombstones.
        hidden: Ids of the others, which newer segments hid entirely.
    """

    intervals: Sequence[Interval]
    shown: Collection[str]
    hidden: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """Segments of one datasource and, for a stream, the offsets that they contain.

    Attributes:
        task_id: The task that publishes.
        datasource: The datasource of all segments.
        segments: If empty, only the offsets are committed.
        supervisor_id: The supervisor of the offsets; given together with `start_offsets` and
            `end_offsets`, or not at all.
        start_offsets: Start of the sequence.
        end_offsets: End of the sequence.
        sequence_name: The sequence whose pending segments and announced files the publish deletes.
            A batch task uses its id, so that a second publish detects the first.
        counts: Rows to add to the supervisor's sums.
        topic_id: The id of the topic of the offsets, if known.
        kind: How the segments relate to those of other tasks: `insert` under exclusive locks,
            `append` under APPEND locks, `replace` under a REPLACE lock.
        covering: For an append: ids of segments within the REPLACE lock of another task, with that
            lock.
        basis: For a replace of segments that the task read: those segments. None: it replaces all
            existing segments.
        overwritten: Ids of the segments that those of `segments` with an overwriting partition
            number rewrite: both have the same version and the same root numbers.
    """

    task_id: str
    datasource: str
    segments: tuple[SegmentRow, ...] = ()
    supervisor_id: str | None = None
    start_offsets: Offsets | None = None
    end_offsets: Offsets | None = None
    sequence_name: str = ""
    counts: CountsRow = CountsRow()
    topic_id: str = ""
    kind: PublishKind = "insert"
    covering: Mapping[str, Covering] = field(default_factory=dict)
    basis: Basis | None = None
    overwritten: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """Result of a publish.

    ok: committed now; `inserted` are the ids of the segments that did not exist before, including
        copies under the version of a replace. `upgraded` are the copies that a replace made of the
        pending segments of appending tasks.
    retryable: nothing changed; an earlier sequence must publish first, so retry later.
    already_published: nothing changed; this sequence, with the same start and end, was committed
        before, by a replica or by this task before it was killed. Its rows are stored.
    Neither: refused permanently; nothing changed. `outdated_by` are then segments that became
        hidden, or visible again, after the task had listed them as its basis.
    """

    ok: bool
    retryable: bool = False
    already_published: bool = False
    reason: str = ""
    inserted: tuple[str, ...] = ()
    upgraded: tuple[PendingRow, ...] = ()
    outdated_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Killed:
    """Unused segments whose rows were deleted.

    Attributes:
        rows: All of them.
        files_free: Those whose file no other row names, so that it may be deleted.
    """

    rows: tuple[SegmentRow, ...]
    files_free: tuple[SegmentRow, ...]


@dataclass(frozen=True, slots=True)
class RuleRow:
    """The retention rules of a datasource, in order, as JSON; `_default` has the cluster's."""

    datasource: str
    rules: Sequence[JsonObject]
    updated_ms: int = 0


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """An instance of a service that renewed its lease recently; the service defines `extra`."""

    service: str
    instance: str
    host: str
    port: int
    expires_ms: int
    extra: JsonObject = field(default_factory=dict)
    started_ms: int = 0


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Audit entry: author, change, time and reason."""

    key: str
    type: str
    author: str
    comment: str
    payload: JsonObject
    created_ms: int = 0
