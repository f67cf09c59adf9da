"""Protocol of a stream for supervisors and tasks, independent of its source.

A stream has stream partitions, each a series of records with increasing offsets. Defines the
protocol only. Guarantees of every supplier:

- it reports only durable records, so a committed offset never refers to another record later;
- the records [start, end) of a stream partition are the same whenever they are read;
- a stream that is deleted and created again has another id, unless its source has no ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.indexing.engine import StreamRange
    from penstock.indexing.read_plan import SeenTopic
    from penstock.indexing.sequences import Offsets


class RecordSupplier(Protocol):
    """One stream. Calls block, come from one thread at a time, and may be repeated."""

    @property
    def stream(self) -> str:
        """Name of the topic, or path of the folder."""
        ...

    def available(
        self, *, after: Offsets | None = None, wait_ms: int = 0, stream_id: str = ""
    ) -> SeenTopic:
        """Return the id of the stream and the durable records of its partitions.

        With `after`, waits until there are records at or after these offsets or the time runs out;
        returns at once if they belong to `stream_id` and another stream now has the name.

        Args:
            after: The known end offsets.
            wait_ms: How long to wait for new records, in milliseconds.
            stream_id: The id of the stream that `after` belongs to, empty if unknown.

        Raises:
            NotFound: The stream does not exist.
            Unavailable: The source does not answer.
        """
        ...

    def ranges(self, start: Offsets, end: Offsets, seen: SeenTopic) -> tuple[StreamRange, ...]:
        """Return ranges for an engine that reads the records [start, end), without empty ones.

        Args:
            start: First offset of each stream partition.
            end: End of each, at most the end in `seen`.
            seen: The last result of `available`.
        """
        ...

    def spans_ms(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, int | None]:
        """Return the time between the first and the last records of ranges.

        May be called from another thread than the other methods. Reads a few records of each
        stream partition, the first and the last.

        Args:
            ranges: The offsets [start, end) of each stream partition, not empty.

        Returns:
            Milliseconds between the times at which the first and the last record were appended, 0
            or more, by stream partition; None if the times are unknown. Partitions that were not
            reached in time are left out and come first in the next call.

        Raises:
            Unavailable: The source does not answer.
        """
        ...

    def hold(self, name: str, offsets: Offsets) -> None:
        """Have the source keep records from these offsets onwards, if it can.

        Raises:
            Unavailable: The source does not answer.
        """
        ...

    def let_go(self, name: str, partitions: Sequence[int]) -> None:
        """Stop keeping records under this name; unknown names are ignored."""
        ...
