"""A topic of Penstock's broker as a `RecordSupplier`; a cursor keeps its unread messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.indexing.engine import TopicRange
from penstock.indexing.source.partition_rotation import StreamPartitionRotation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.indexing.ports import BrokerPort
    from penstock.indexing.read_plan import SeenTopic
    from penstock.indexing.sequences import Offsets


class TopicSupplier:
    """One topic. One thread at a time, and another for `spans_ms`.

    Args:
        broker: The broker.
        clock: Limits the time of `spans_ms`.
        topic: Its name.
    """

    def __init__(self, broker: BrokerPort, clock: Clock, topic: str) -> None:
        self._broker = broker
        self._rotation = StreamPartitionRotation(clock)  # For `spans_ms`.
        self.stream = topic

    def available(
        self, *, after: Offsets | None = None, wait_ms: int = 0, stream_id: str = ""
    ) -> SeenTopic:
        """Return the id of the topic and its durable messages."""
        return self._broker.available(self.stream, after=after, wait_ms=wait_ms, topic_id=stream_id)

    def ranges(self, start: Offsets, end: Offsets, seen: SeenTopic) -> tuple[TopicRange, ...]:
        """Return the ranges of log files."""
        return tuple(
            TopicRange(p, seen.partitions[p].folder, start[p], end[p])
            for p in sorted(start)
            if start[p] < end[p]
        )

    def spans_ms(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, int | None]:
        """Return the time between the first and the last messages of ranges, in milliseconds.

        Stream partitions that are not reached within ten seconds are left out.
        """
        found: dict[int, int | None] = {}
        for p in self._rotation.among(ranges):
            start, end = ranges[p]
            first = self._broker.append_time_ms(self.stream, p, start)
            last = self._broker.append_time_ms(self.stream, p, end - 1)
            # The clock may have been set back.
            found[p] = None if first is None or last is None else max(0, last - first)
        return found

    def hold(self, name: str, offsets: Offsets) -> None:
        """Keep messages from these offsets onwards."""
        self._broker.set_cursor(self.stream, name, offsets)

    def let_go(self, name: str, partitions: Sequence[int]) -> None:
        """Delete the cursor."""
        self._broker.drop_cursor(self.stream, name, partitions)
