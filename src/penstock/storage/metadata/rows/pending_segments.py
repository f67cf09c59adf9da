"""Records of pending segments and of their allocation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from penstock.storage.metadata.rows.segments import segment_id

if TYPE_CHECKING:
    from penstock.core.intervals import Interval

PartitionSpace: TypeAlias = Literal["root", "overwrite"]


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
class OccupiedChunks:
    """Time chunks that overlap an interval, those of the newest version first.

    Attributes:
        visible: Complete chunks that are not entirely hidden within the interval.
        pending: Chunks of pending segments, without duplicates.
    """

    visible: tuple[Interval, ...]
    pending: tuple[Interval, ...]
