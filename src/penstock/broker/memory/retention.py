"""Deletion of messages from a stream partition in memory, for topics that end with the broker.

Owns the deletion, and the count of wanted messages that were deleted. Does not own which messages
are wanted nor the size limit (`room`): the topic knows which readers need which messages.

Invariants: deletions of wanted messages are counted; offsets continue after deletions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.queue.retention import RetentionReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.memory.batches import Batches
    from penstock.core.clock import Clock

_TRIM_BYTES = 262_144
_TRIM_PAUSE_S = 0.1


class MemoryRetention:
    """Deletes batches of one queue; on any thread, except `trim`, which needs the event loop.

    Args:
        batches: Batches of the queue.
        clock: For the pauses of `trim`.

    Attributes:
        trim_above_bytes: Size of the queue above which trimming is worthwhile.
        dropped: Number of wanted messages that were deleted or not appended.
    """

    def __init__(self, batches: Batches, clock: Clock) -> None:
        self.trim_above_bytes = _TRIM_BYTES
        self.dropped = 0
        self._batches = batches
        self._clock = clock
        self._trim_again_s = 0.0

    @property
    def has_work(self) -> bool:
        """Always false: the topic trims its queue when messages are appended."""
        return False

    def retain(
        self,
        now_ms: int,  # noqa: ARG002 - the signature of the disk's retention
        *,
        held: Mapping[str, int] | None = None,  # noqa: ARG002 - as above
        consumed: bool = False,  # noqa: ARG002 - as above
    ) -> RetentionReport:
        """Do nothing: the topic trims its queue when messages are appended."""
        with self._batches.mutex:
            return RetentionReport(0, self._batches.earliest, None)

    def drop_oldest(self, max_bytes: int) -> int:
        """Delete the oldest messages down to a size; return the number of deleted messages."""
        dropped = 0
        with self._batches.mutex:
            size_bytes, kept = self._batches.size_bytes, self._batches.kept
            count = 0
            while count < len(kept) and size_bytes > max_bytes:
                size_bytes -= kept[count].size_bytes
                dropped += len(kept[count].messages)
                count += 1
            self._batches.keep(kept[count:])
            self.dropped += dropped
        return dropped

    def clear(self) -> None:
        """Delete every message. Offsets continue."""
        with self._batches.mutex:
            self._batches.keep([])

    def trim(self, is_wanted: Callable[[int, int], bool]) -> None:
        """Delete unwanted batches, at any position."""
        now_s = self._clock.monotonic_s()
        if now_s < self._trim_again_s:
            return
        batches = self._batches
        before = batches.size_bytes
        # Without the mutex, because `is_wanted` may read the queue. Batches that another thread
        # deletes meanwhile must not reappear.
        unwanted = {b.base for b in batches.kept if not is_wanted(b.base, b.end)}
        with batches.mutex:
            batches.keep([batch for batch in batches.kept if batch.base not in unwanted])
        self.trim_above_bytes = max(_TRIM_BYTES, 2 * batches.size_bytes)
        if batches.size_bytes > before // 2:
            # If consumers make no progress, each publish would check all batches.
            self._trim_again_s = now_s + _TRIM_PAUSE_S

    def count_dropped(self, count: int) -> None:
        """Count messages that were not appended."""
        with self._batches.mutex:
            self.dropped += count
