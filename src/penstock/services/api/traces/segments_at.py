"""Segments of a datasource at one instant: those that queries read there, and the hidden ones.

Owns the lookup by time in the metadata, which reads only the segments that overlap the instant, and
the search for equal rows in their files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from penstock.core.errors import CorruptData, InvalidRequest, Unavailable
from penstock.core.intervals import (
    END_OF_TIME_MS,
    START_OF_TIME_MS,
    Interval,
    format_time,
    parse_time,
)
from penstock.core.timeline.timeline import Timeline
from penstock.segments.segment import Segment, SegmentId
from penstock.segments.segment_summary import summarized
from penstock.spark.tables.table_files import TableFile, columns_from_json
from penstock.spark.traces.equal_rows import Values, count_equal

if TYPE_CHECKING:
    from penstock.storage.metadata import (
        AnnouncedSequence,
        MetadataStore,
        PublishRecord,
        SegmentText,
    )
    from penstock.storage.metadata.segment_overview import SegmentOverview

SEARCHED_BYTES_MAX: Final = 1 << 30
"""Sum of the sizes of the files in which one request searches rows."""


class ReadableFiles(Protocol):
    """Deep storage, as traces use it."""

    def location(self, load_spec: Mapping[str, object]) -> str:
        """Return the path or URL of a file."""
        ...


class ReadableLocalFiles:
    """Segments whose load specs have paths of this host."""

    def location(self, load_spec: Mapping[str, object]) -> str:
        """Return the path of a file; empty if there is none."""
        return str(load_spec.get("path", ""))


@dataclass(frozen=True, slots=True)
class SegmentsAt:
    """The used segments of a datasource at one instant, and the announced files.

    Attributes:
        datasource: The datasource.
        time_ms: The instant.
        visible: The segments that queries read there; tombstones, which have no rows, included.
        others: The other used segments.
        sequences: Announcements of running tasks, of any time.
    """

    datasource: str
    time_ms: int
    visible: Sequence[SegmentText]
    others: Sequence[SegmentText]
    sequences: Sequence[AnnouncedSequence]

    def shown_copy(self, segment_id: str) -> SegmentText | None:
        """Return the visible segment that has the file of a segment: it, or a copy of it."""
        named = (one for one in self.visible if segment_id in {one.id, one.upgraded_from})
        return next(named, None)


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows with equal time and values.

    Attributes:
        segments: Number of them in each visible segment that has any.
        sequences: Number of them in the announced files of each shown sequence that has any.
        unread: Why some files could not be searched; empty if all were.
    """

    segments: Mapping[str, int] = field(default_factory=dict)
    sequences: Mapping[str, int] = field(default_factory=dict)
    unread: str = ""

    @property
    def count(self) -> int:
        """The number of all of them."""
        return sum(self.segments.values()) + sum(self.sequences.values())


def segments_at(store: MetadataStore, datasource: str, time_ms: int) -> SegmentsAt:
    """Return the segments of a datasource at an instant. Raises as `MetadataStore.snapshot`."""
    # First: a sequence that is published meanwhile is then in both, and not in neither.
    sequences = store.publishes.unpublished(datasource)
    return store.segment_overviews.read(partial(_read, datasource, time_ms, sequences))


def _read(
    datasource: str,
    time_ms: int,
    sequences: Sequence[AnnouncedSequence],
    overview: SegmentOverview,
) -> SegmentsAt:
    at = Interval(time_ms, min(time_ms + 1, END_OF_TIME_MS))
    if at.is_empty:
        return SegmentsAt(datasource, time_ms, (), (), sequences)
    texts = [one for one in overview.texts(datasource, at) if one.start_ms < one.end_ms]
    timeline = Timeline.of(summarized(texts))
    shown = {chunk.item.id for piece in timeline.lookup(at) for chunk in piece.chunks}
    return SegmentsAt(
        datasource,
        time_ms,
        tuple(one for one in texts if one.id in shown),
        tuple(one for one in texts if one.id not in shown),
        sequences,
    )


def find_rows(found: SegmentsAt, time_ms: int, values: Values, files: ReadableFiles) -> FoundRows:
    """Return the visible rows with a time and values, from the files that have the instant.

    Raises:
        InvalidRequest: A value cannot be of the type of its column.
    """
    segments: dict[str, int] = {}
    sequences: dict[str, int] = {}
    searched, unread = 0, ""

    def search(file: TableFile, into: dict[str, int], name: str) -> None:
        nonlocal searched, unread
        searched += file.size_bytes
        if searched > SEARCHED_BYTES_MAX:
            unread = f"the files have more than {SEARCHED_BYTES_MAX >> 20} MiB: query them with SQL"
            return
        try:
            if count := count_equal(file, time_ms, values):
                into[name] = into.get(name, 0) + count
        except (Unavailable, CorruptData):
            unread = "a file cannot be read now: try again, and see the log of the router"

    for text in found.visible:
        segment = Segment.from_json(orjson.loads(text.payload))
        if not segment.is_tombstone:
            search(file_of(segment, files), segments, text.id)
    for sequence in found.sequences:
        if sequence.is_shown:
            for file in sequence.files:
                if file.interval.start_ms <= time_ms < file.interval.end_ms:
                    columns = columns_from_json(file.payload.get("columns") or [])
                    size = file.payload.get("bytes")
                    shown = TableFile(
                        *(file.path, columns, file.interval),
                        size_bytes=size if isinstance(size, int) else 0,
                    )
                    search(shown, sequences, sequence.sequence_name)
    return FoundRows(segments, sequences, unread)


def file_of(segment: Segment, files: ReadableFiles) -> TableFile:
    """Return the file of a segment."""
    return TableFile(
        files.location(segment.load_spec),
        segment.columns,
        segment.interval,
        size_bytes=segment.size,
    )


def segment_json(one: SegmentText | SegmentId) -> dict[str, object]:
    """Return the place of a segment: interval, version and partition."""
    if isinstance(one, SegmentId):
        return {
            "segment": str(one),
            "interval": str(one.interval),
            "version": one.version,
            "partition": one.partition_number,
        }
    return {
        "segment": one.id,
        "interval": str(Interval(one.start_ms, one.end_ms)),
        "version": one.version,
        "partition": one.partition_number,
    }


def segment_ids(ids: Iterable[str], datasource: str) -> list[SegmentId]:
    """Return the parts of the ids of segments of a datasource."""
    found = (SegmentId.possible_readings(text, datasource) for text in ids)
    return [readings[0] for readings in found if readings]


def publish_json(record: PublishRecord) -> dict[str, object]:
    """Return a publish for an answer."""
    found: dict[str, object] = {
        "task": record.task_id,
        "publishedAt": format_time(record.published_ms),
    }
    if record.supervisor_id:
        found |= {
            "sequence": record.sequence_name,
            "supervisor": record.supervisor_id,
            "startOffsets": {str(p): at for p, at in record.start_offsets.items()},
            "endOffsets": {str(p): at for p, at in record.end_offsets.items()},
        }
    return found


def checked_time(given: object) -> int:
    """Return an instant of a request, text or epoch milliseconds, in epoch milliseconds.

    Raises:
        InvalidRequest: It is not a time, or not one that a row can have.
    """
    time_ms = given
    if isinstance(given, str):
        try:
            time_ms = parse_time(given)
        except InvalidRequest as error:
            raise InvalidRequest(str(error), place="time") from None
    if not isinstance(time_ms, int) or isinstance(time_ms, bool):
        raise InvalidRequest("must be a time such as 2024-01-01T12:00:00Z", place="time")
    if not START_OF_TIME_MS <= time_ms < END_OF_TIME_MS:
        raise InvalidRequest(
            f"must be from {format_time(START_OF_TIME_MS)} to {format_time(END_OF_TIME_MS)}",
            place="time",
        )
    return time_ms
