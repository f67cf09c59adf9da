"""Records of a publish: its request and outcome, committed offsets, and sums of rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.core.intervals import Interval
    from penstock.storage.metadata.payloads import Offsets
    from penstock.storage.metadata.rows.pending_segments import PendingRow
    from penstock.storage.metadata.rows.segments import SegmentRow

PublishKind: TypeAlias = Literal["insert", "append", "replace"]


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


class ReplaceLock(NamedTuple):
    """The REPLACE lock that covers an appended segment: its owner and version."""

    task_id: str
    version: str


@dataclass(frozen=True, slots=True)
class PublishBasis:
    """The segments that a replacing task listed; its output contains only their rows.

    Attributes:
        intervals: Intervals of the list; the task's locks cover them.
        shown: Ids of visible segments, including tombstones.
        hidden: Ids of the others, which newer segments hid entirely.
    """

    intervals: Sequence[Interval]
    shown: Collection[str]
    hidden: Collection[str] = ()


class QueryBatch(NamedTuple):
    """A batch of a streaming query of Spark, which is published only once.

    Attributes:
        query_id: Id of the query.
        batch_id: Number of the batch.
        owner: Id of the principal whose query it is; empty: not known. Others may use the id for
            queries of their own.
    """

    query_id: str
    batch_id: int
    owner: str = ""


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
        batch: The batch of a streaming query that the segments are. If it is the query's last one
            in the datasource, it is already published; one before that is refused.
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
    covering: Mapping[str, ReplaceLock] = field(default_factory=dict)
    basis: PublishBasis | None = None
    overwritten: Collection[str] = ()
    batch: QueryBatch | None = None


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """Result of a publish.

    ok: committed now; `inserted` are the ids of the segments that did not exist before, including
        copies under the version of a replace. `upgraded` are the copies of pending segments of
        appending tasks that a replace created.
    retryable: nothing changed; an earlier sequence must publish first, so retry later.
    already_published: nothing changed; this sequence, with the same start and end, was committed
        before, by a replica or by this task before it was killed. Its rows are stored. If another
        task published this batch of a query, `earlier_task` is its id.
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
    earlier_task: str = ""


@dataclass(frozen=True, slots=True)
class PublishRecord:
    """One publish, as the log of publishes keeps it.

    Attributes:
        id: Its number; a later publish has a larger one.
        datasource: The datasource of its segments.
        task_id: The task that published.
        sequence_name: The sequence of a streaming task; the id of a batch task.
        kind: How the segments relate to those of other tasks.
        supervisor_id: The supervisor of a streaming task, else empty.
        topic_id: The id of the topic of the offsets; empty if unknown.
        start_offsets: Start of the sequence by stream partition, empty for a batch task.
        end_offsets: Exclusive end of the sequence.
        counts: The rows that the publish added to the supervisor's sums.
        segments: Ids of the segments of a sequence, also of those that were deleted since; empty
            for a batch task.
        published_ms: When it was committed.
    """

    id: int
    datasource: str
    task_id: str
    sequence_name: str
    kind: str
    supervisor_id: str
    topic_id: str
    start_offsets: Offsets
    end_offsets: Offsets
    counts: CountsRow
    segments: tuple[str, ...]
    published_ms: int


class WrittenSegment(NamedTuple):
    """Segment that names a publish.

    Attributes:
        id: Its id.
        start_ms: Start of its interval.
        end_ms: End of its interval.
        version: Its version.
        partition_number: Its number in the time chunk.
        bytes: Its size.
        row_count: Its rows.
        used: Whether it is in use.
    """

    id: str
    start_ms: int
    end_ms: int
    version: str
    partition_number: int
    bytes: int
    row_count: int
    used: bool
