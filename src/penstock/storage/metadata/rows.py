"""What the metadata store takes and gives: frozen records, free of SQL and all but free of meaning.

Payloads are JSON objects that the store keeps and never looks into. Times are epoch milliseconds,
intervals half open. `created_ms` and its like are stamped by the store when a row goes in; a row
that is handed in may leave them at 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec

from penstock.core.intervals import format_time

if TYPE_CHECKING:
    from penstock.core.intervals import Interval

JsonObject: TypeAlias = Mapping[str, object]
Offsets: TypeAlias = Mapping[int, int]  # stream partition -> offset
PublishKind: TypeAlias = Literal["insert", "append", "replace"]
PartitionSpace: TypeAlias = Literal["root", "overwrite"]

OVERWRITE_START: Final = 32_768
"""Partition numbers from here up to `OVERWRITE_END` - 1 are of segments that overwrite."""

OVERWRITE_END: Final = 65_536


def segment_id(datasource: str, interval: Interval, version: str, partition_number: int) -> str:
    """Return the id of the segment of a place; `penstock.segments.model` reads it."""
    text = f"{datasource}_{format_time(interval.start_ms)}_{format_time(interval.end_ms)}_{version}"
    return f"{text}_{partition_number}" if partition_number else text


@dataclass(frozen=True, slots=True, order=True)
class RootRange:
    """The root numbers from `start` up to, but not including, `end` that a segment stands for.

    Of an ordinary one that is its own number. One that overwrites others says which: the
    `group_size` segments of equal range and `minor_version` are visible at once, or not at all.
    """

    start: int
    end: int
    minor_version: int = 0
    group_size: int = 1

    def overlaps(self, other: RootRange) -> bool:
        """Tell whether the two have a root number in common."""
        return self.start < other.end and other.start < self.end

    def covers(self, other: RootRange) -> bool:
        """Tell whether every root number of the other is of this one."""
        return self.start <= other.start and other.end <= self.end

    def overshadows(self, other: RootRange) -> bool:
        """Tell whether a full group of this range hides the other."""
        return self.minor_version > other.minor_version and self.covers(other)


@dataclass(frozen=True, slots=True)
class TaskRow:
    """An indexing task: what it is (`payload`), its state, and what is known of it (`status`).

    `status` holds location, error message and the like; it may change while `active`.
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
    """What lists of tasks show: a `TaskRow` without its payload.

    There may be ten thousand: so they are made in a tenth of a dataclass's time.
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
    """Which tasks a list has; what is None does not matter.

    Attributes:
        active: Only those that are active, or only those that are complete.
        state: Only of this state.
        datasource: Only of this one.
        type: Only of this type.
        created_from_ms: Only those created at this time or later.
        created_before_ms: Only those created before this time.
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

    Task, datasource, granularity, type, interval, version and segment partition together name it;
    the other fields may change. `granularity` and `type` are what the lockbox calls them.
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
    """A time of leadership: `holder` leads `service`; a larger number is a later term."""

    service: str
    holder: str
    number: int
    expires_ms: int
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class SupervisorRow:
    """One version of a supervisor's spec; versions count up from 1, all are kept."""

    id: str
    payload: JsonObject
    version: int = 0
    tombstone: bool = False
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A published segment. Only `used` rows can be visible.

    `upgraded_from` is the id of the segment whose file this one shares, empty if it has its own.
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
    """A used segment whose payload was not read: one of very many, most of which nobody asks."""

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
    """A time with so many used segments of a datasource in it."""

    interval: Interval
    rows: int


@dataclass(frozen=True, slots=True)
class SegmentChanges:
    """What happened to the segments of a datasource since an earlier revision.

    Attributes:
        times: Where segments came, went or changed, disjoint and in order.
        used: How many are used now.
    """

    times: tuple[Interval, ...]
    used: int


@dataclass(frozen=True, slots=True)
class SegmentTotals:
    """Sums over the used segments of a datasource, or of one of its times.

    Attributes:
        interval: From the first instant to the last.
        count: How many segments.
        bytes: Their sizes together.
    """

    interval: Interval
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Occupied:
    """Which time chunks overlap an interval, those of the newest version first.

    Attributes:
        visible: Of complete chunks that are not wholly hidden within the interval.
        pending: Of places that are not published yet, each once.
    """

    visible: tuple[Interval, ...]
    pending: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class PendingRow:
    """An allocated place for a segment that is not published yet.

    `upgraded_from` is set in a twin: a replace put a newer version above the place with that id,
    and what is published there has to appear in the twin's place too. `minor_version` is for a
    segment that rewrites others; it is no part of the place, and worked out when it is given.
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
        """The id of the segment that is published in this place."""
        return segment_id(self.datasource, self.interval, self.version, self.partition_number)


@dataclass(frozen=True, slots=True)
class AllocateRequest:
    """Ask for a place of one sequence in a time chunk; `version` is for one without segments.

    Attributes:
        datasource: Whose time chunk.
        interval: The time chunk.
        sequence_name: Who asks; the same asker gets the same place.
        version: For a chunk that has none yet.
        previous_id: The segment before this one in the sequence, "" for the first. It tells the
            places of a sequence apart, unless `skip_lineage`.
        skip_lineage: The interval tells them apart: a sequence has one place in each.
        allocator_id: Whose places they are, so that they can be freed together.
        space: Which partition numbers: of ordinary segments, or of those that rewrite others under
            segment locks.
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
    """A persisted file that is not published yet; `payload` says its columns, bytes and times."""

    path: str
    interval: Interval
    rows: int
    payload: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """Whose events announced files hold: offsets [start, end) that a supervisor has read.

    Attributes:
        supervisor_id: With whose committed offsets they are compared.
        start: Where the sequence begins.
        end: Up to where its files reach.
        topic_id: The topic that the offsets are of; an empty one is any.
        priority: Of replicas that keep up, one with the highest is shown.
        before: Up to where they reached before the newest of them came; empty is not known.
    """

    supervisor_id: str
    start: Offsets
    end: Offsets
    topic_id: str = ""
    priority: int = 0
    before: Offsets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnnouncedRow:
    """An announced file with whose it is."""

    task_id: str
    datasource: str
    sequence_name: str
    file: AnnouncedFile


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is visible at one revision: each event in a segment or an announced file, never both.

    `segments` are all used rows, overshadowed ones too. `announced` holds one task's files for each
    sequence at most, however many replicas announced some, and no offsets that are committed or in
    another one's files. `segments_revision` is the revision at which
    `segments` last changed.
    """

    revision: int
    segments_revision: int
    segments: tuple[SegmentRow, ...]
    announced: tuple[AnnouncedRow, ...]
    datasource: str | None = None


@dataclass(frozen=True, slots=True)
class CountsRow:
    """Rows of a supervisor, added up over all its publishes."""

    processed: int = 0
    unparseable: int = 0
    thrown_away_late: int = 0
    thrown_away_early: int = 0
    thrown_away_filtered: int = 0
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class CommittedRow:
    """The committed offset of each stream partition, and the topic in which they mean something.

    A topic that is deleted and made again under its name has another id. An empty `topic_id` means
    that it is not known.
    """

    topic_id: str
    offsets: Offsets


class Covering(NamedTuple):
    """The REPLACE lock that encloses an appended segment: whose it is, and its version."""

    task_id: str
    version: str


@dataclass(frozen=True, slots=True)
class Basis:
    """The segments that a replacing task listed: what it read is in what it writes, no more.

    Attributes:
        intervals: Where it listed them; its locks cover that.
        shown: Ids of those that could be seen, tombstones too.
        hidden: Ids of the others, which newer ones hid entirely.
    """

    intervals: Sequence[Interval]
    shown: Collection[str]
    hidden: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """Segments of one datasource and, for a stream, the offsets they stand for.

    Attributes:
        task_id: Who publishes.
        datasource: Of all segments.
        segments: Without any, only the offsets move.
        supervisor_id: Whose offsets; given together with `start_offsets` and `end_offsets`, or
            not at all.
        start_offsets: Where the sequence began.
        end_offsets: Where it ended.
        sequence_name: Names the sequence whose pending places and announced files go away with the
            publish. A batch task gives its id, so that a second publish hears of the first.
        counts: Rows to add up.
        topic_id: Which topic the offsets are of, if that is known.
        kind: What the segments do beside those of other tasks: `insert` under exclusive locks,
            `append` under APPEND locks, `replace` under a REPLACE lock.
        covering: Of an append: for the ids of segments that lie in the REPLACE lock of another
            task, that lock.
        basis: Of what replaces segments that it has read: which those were. None: it replaces
            whatever is there.
        overwritten: Ids of the segments that those of `segments` rewrite whose number says that
            they do: both have the same version and stand for the same root numbers.
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
    """What became of a publish.

    ok: committed now; `inserted` are the ids of the segments that were not there before, copies
        under the version of a replace too. `upgraded` are the twins that a replace made of places
        that appending tasks hold.
    retryable: nothing changed; an earlier sequence has to publish first, ask again later.
    already_published: nothing changed; this very sequence, from the same start to the same end, was
        committed before, by a replica or by this task before it was cut. Its rows are in.
    Neither: refused for good; nothing changed. `outdated_by` are then segments that were taken out
        of view, or brought back into it, after the task had listed them as its basis.
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
    """Unused segments whose rows are gone.

    Attributes:
        rows: All of them.
        files_free: Those of them whose file no other row names: it may be deleted.
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
    """An instance of a service that said lately that it is there; `extra` is its own."""

    service: str
    instance: str
    host: str
    port: int
    expires_ms: int
    extra: JsonObject = field(default_factory=dict)
    started_ms: int = 0


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Who changed what, when and why."""

    key: str
    type: str
    author: str
    comment: str
    payload: JsonObject
    created_ms: int = 0
