"""Records of segments, announced files, and the snapshot of both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.core.intervals import format_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.intervals import Interval
    from penstock.storage.metadata.payloads import JsonObject, Offsets


def segment_id(datasource: str, interval: Interval, version: str, partition_number: int) -> str:
    """Return the id of a segment; `penstock.segments.segment` parses it."""
    text = f"{datasource}_{format_time(interval.start_ms)}_{format_time(interval.end_ms)}_{version}"
    return f"{text}_{partition_number}" if partition_number else text


class SegmentRow(msgspec.Struct, frozen=True, gc=False):
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


class ListedSegment(NamedTuple):
    """A used segment in a list of very many, with its payload unparsed, or empty.

    Attributes:
        bytes: Its size.
        row_count: Number of its rows.
    """

    id: str
    datasource: str
    start_ms: int
    end_ms: int
    version: str
    partition_number: int
    bytes: int
    row_count: int
    payload: str


class SegmentGroup(NamedTuple):
    """Sums over the segments of one interval and version, those in use or those not in use.

    Attributes:
        start_ms: Start of the interval.
        end_ms: End of the interval.
        version: The version.
        used: Whether they are in use.
        segments: Number of segments.
        bytes: Sum of their sizes.
        rows: Sum of their rows.
        newest_ms: When the last one was created, in epoch milliseconds.
        is_complete: Whether all core partitions exist, as far as the columns say.
        is_special: Whether only the payloads say what is visible: a segment rewrites others of its
            version, or does not record the number of core partitions.
    """

    start_ms: int
    end_ms: int
    version: str
    used: bool
    segments: int
    bytes: int
    rows: int
    newest_ms: int
    is_complete: bool
    is_special: bool


@dataclass(frozen=True, slots=True)
class IntervalCount:
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
    """Sums over the used or the visible segments of a datasource, or of one of its intervals.

    Attributes:
        interval: From the earliest start to the latest end.
        count: Number of segments.
        bytes: Sum of their sizes.
        rows: Sum of their rows.
        newest_ms: When the last one was created, in epoch milliseconds; 0 if not asked for.
    """

    interval: Interval
    count: int
    bytes: int
    rows: int = 0
    newest_ms: int = 0


class NewestData(NamedTuple):
    """How new the data of datasources is, by their names. Times are in milliseconds.

    Attributes:
        revision: The revision at which segments last changed.
        used: Number of used segments, and the end of the newest one: that with the latest start,
            and the latest end among those; None: as at the revision that was given.
        published: Time at which the newest used segment was inserted; 0 if none is used.
        running: Newest `__time` in announced files.
    """

    revision: int
    used: Mapping[str, tuple[int, int]] | None
    published: Mapping[str, int]
    running: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KilledSegments:
    """Unused segments whose rows were deleted.

    Attributes:
        rows: All of them.
        files_free: Those whose file no other row names, so that it may be deleted.
    """

    rows: tuple[SegmentRow, ...]
    files_free: tuple[SegmentRow, ...]


@dataclass(frozen=True, slots=True)
class AnnouncedFile:
    """A persisted file that is not published yet; `payload` has its columns, bytes and times."""

    path: str
    interval: Interval
    rows: int
    payload: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnnouncedOffsets:
    """The events in announced files: offsets [start, end) of a supervisor's stream.

    Attributes:
        supervisor_id: The supervisor whose committed offsets they are compared with.
        start: Start offsets of the sequence.
        end: End offsets of its files.
        topic_id: The id of the topic of the offsets; empty means any.
        priority: A snapshot shows a replica with the highest priority among those that keep up.
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
class AnnouncedSequence:
    """The files that one task announces for one sequence.

    Attributes:
        task_id: The task.
        sequence_name: The sequence.
        reading: The offsets of their events, None if unknown.
        files: The files.
        is_shown: Whether queries read them: of replicas, one is shown.
    """

    task_id: str
    sequence_name: str
    reading: AnnouncedOffsets | None
    files: tuple[AnnouncedFile, ...]
    is_shown: bool


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
