"""What supervisors and tasks ask of a stream, whatever it is made of.

A stream has stream partitions, each a row of records with offsets that only grow. Owns the protocol
alone. What every supplier promises:

- only durable records are told of, so a committed offset is never given to another record;
- the records [start, end) of a stream partition are the same whenever they are read;
- a stream that is made anew has another id, or its source knows none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.indexing.batches import SeenTopic
    from penstock.indexing.engine import StreamRange
    from penstock.indexing.sequences import Offsets


class RecordSupplier(Protocol):
    """One stream. Calls block, may come from any one thread, and may be repeated."""

    @property
    def stream(self) -> str:
        """Its name: a topic, or the folder."""
        ...

    def available(
        self, *, after: Offsets | None = None, wait_ms: int = 0, stream_id: str = ""
    ) -> SeenTopic:
        """Return which stream has the name, and what can be read durably of its partitions.

        With `after` it answers when there is something behind these offsets or the time is over,
        and at once if they are of `stream_id` and another stream has the name by now.

        Args:
            after: What is known already.
            wait_ms: How long to wait for news, in milliseconds.
            stream_id: The stream that `after` is of, empty if that is not known.

        Raises:
            NotFound: There is no such stream.
            Unavailable: The source does not answer.
        """
        ...

    def ranges(self, start: Offsets, end: Offsets, seen: SeenTopic) -> tuple[StreamRange, ...]:
        """Return what an engine reads as the records [start, end), empty ranges left out.

        Args:
            start: First offset of each stream partition.
            end: Where each ends; not behind what `seen` says is there.
            seen: The last answer of `available`.
        """
        ...

    def spans_ms(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, int | None]:
        """Return how much time lies between the first and the last of some records.

        It may be called from another thread than the rest. Of a stream partition a few records
        are looked at, the first and the last.

        Args:
            ranges: The offsets [start, end) of each stream partition; none is empty.

        Returns:
            Milliseconds between the two moments at which they were appended, 0 or more, by stream
            partition; None where their times are not known. Those that nobody came to look at are
            left out, and are the first the next time.

        Raises:
            Unavailable: The source does not answer.
        """
        ...

    def hold(self, name: str, offsets: Offsets) -> None:
        """Have the source keep records from these offsets on, if it can.

        Raises:
            Unavailable: The source does not answer.
        """
        ...

    def let_go(self, name: str, partitions: Sequence[int]) -> None:
        """Have the source keep nothing under this name any more; an unknown one is fine."""
        ...
