"""Outlines: the few fields of a payload that decisions about very many segments need.

Owns the list of these fields. An outline is a fraction of a segment in memory and in parsing time;
a timeline of outlines has the same visibility as one of segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import orjson

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval
from penstock.core.timeline.chunks import UNKNOWN_CORE, PartitionChunk
from penstock.core.timeline.timeline import Timeline
from penstock.segments.shard_spec import ShardSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.core.timeline.timeline import Member
    from penstock.storage.metadata import SegmentText
    from penstock.storage.metadata.segment_overview import SegmentOverview

# For these kinds number and core count are sufficient, and both are columns of the row.
_PLAIN_KINDS: Final = frozenset(
    {"none", "numbered", "linear", "hashed", "single", "single_dim", "range", "dim_value_set"}
)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentSummary:
    """The fields of a segment for decisions about many.

    Attributes:
        id: Its id.
        interval: Its interval.
        size: Bytes of its file.
        rows: Number of its rows.
        upgraded_from: The id that its rows were appended under, empty if it is the first.
        compaction_state: JSON of how it was compacted; empty if it was not.
    """

    id: str
    interval: Interval
    size: int
    rows: int
    upgraded_from: str
    compaction_state: bytes


class _Shard(msgspec.Struct, gc=False):
    type: str = ""


class _Payload(msgspec.Struct, gc=False, rename="camel"):
    shard_spec: _Shard | None = None
    size: int | None = None
    total_rows: int | None = None
    upgraded_from_segment_id: str | None = None
    last_compaction_state: msgspec.Raw = msgspec.Raw(b"null")


_read = msgspec.json.Decoder(_Payload).decode


def hidden_ids(overview: SegmentOverview, datasource: str, interval: Interval) -> list[str]:
    """Return the ids of used segments that others hide completely within an interval.

    A segment that crosses an end of the interval is never reported as hidden.

    Raises:
        InvalidRequest: A payload cannot be read; the message names its segment.
        Conflict: Two segments exclude each other.
    """
    timeline = Timeline.of(summarized(overview.texts(datasource, interval)))
    hidden = timeline.find_fully_overshadowed()
    return [chunk.item.id for piece in hidden for chunk in piece.chunks]


def summarized(rows: Iterable[SegmentText]) -> Iterator[Member[SegmentSummary]]:
    """Yield the members of a timeline for rows of one datasource.

    Raises:
        InvalidRequest: A payload cannot be read; the message names its segment.
    """
    states: dict[bytes, bytes] = {b"null": b""}  # few differ
    for row in rows:
        try:
            member = _member(row, states)
        except (msgspec.DecodeError, InvalidRequest) as error:
            raise InvalidRequest(
                f"the payload of segment {row.id!r} in the metadata cannot be read ({error}): "
                "mark the segment unused and load its interval again"
            ) from error
        yield member


def _member(row: SegmentText, states: dict[bytes, bytes]) -> Member[SegmentSummary]:
    payload = _read(row.payload)
    state = bytes(payload.last_compaction_state)
    interval = Interval(row.start_ms, row.end_ms)
    outline = SegmentSummary(
        row.id,
        interval,
        payload.size or 0,
        payload.total_rows or 0,
        row.upgraded_from or payload.upgraded_from_segment_id or "",
        states.setdefault(state, state),
    )
    return interval, row.version, _chunk(row, payload.shard_spec, outline)


def _chunk(
    row: SegmentText, shard: _Shard | None, outline: SegmentSummary
) -> PartitionChunk[SegmentSummary]:
    number, core = row.partition_number, row.core_partitions
    if core != UNKNOWN_CORE and (shard is None or shard.type in _PLAIN_KINDS):
        return PartitionChunk(number, core, outline)
    spec = ShardSpec.from_json(orjson.loads(row.payload)["shardSpec"])
    if spec.kind == "tombstone":
        return PartitionChunk(spec.partition_number, spec.core_partitions, outline, no_data=True)
    if (spec.partition_number, spec.core_partitions) != (number, core):
        spec = spec.renumbered(number, core)
    return PartitionChunk(number, core, outline, place=spec.place)
