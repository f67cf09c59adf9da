"""What goes of a stream partition in memory, for topics that are not to outlive the broker.

Owns how messages go, and the count of those that somebody may have wanted. Does not own which are
wanted nor how many there is room for (`room`): the topic knows who still wants what.

Invariants: what goes unasked is counted; offsets go on, whatever goes.
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
    """Lets go of batches of one queue; on any thread, but for `trim`, which is the event loop's.

    Args:
        batches: Those of the queue.
        clock: For the pauses of `trim`.

    Attributes:
        trim_above_bytes: Trimming pays where the queue is larger.
        dropped: How many messages went, or were not even appended, though they were wanted.
    """

    def __init__(self, batches: Batches, clock: Clock) -> None:
        self.trim_above_bytes = _TRIM_BYTES
        self.dropped = 0
        self._batches = batches
        self._clock = clock
        self._trim_again_s = 0.0

    @property
    def has_work(self) -> bool:
        """Say that there is nothing to look for: its topic lets messages go."""
        return False

    def retain(
        self,
        now_ms: int,  # noqa: ARG002 - named as the disk's retention has it
        *,
        held: Mapping[str, int] | None = None,  # noqa: ARG002 - as above
        consumed: bool = False,  # noqa: ARG002 - as above
    ) -> RetentionReport:
        """Do nothing: its topic lets messages go."""
        with self._batches.mutex:
            return RetentionReport(0, self._batches.earliest, None)

    def drop_oldest(self, max_bytes: int) -> int:
        """Let go of the oldest until it is no larger; returns how many messages are gone."""
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
        """Let go of every message. Offsets go on."""
        with self._batches.mutex:
            self._batches.keep([])

    def trim(self, is_wanted: Callable[[int, int], bool]) -> None:
        """Let go of batches that nobody wants any more, wherever they stand."""
        now_s = self._clock.monotonic_s()
        if now_s < self._trim_again_s:
            return
        batches = self._batches
        before = batches.size_bytes
        # Without the mutex: whoever is asked may look at the queue. What another thread lets go
        # meanwhile must not come back.
        unwanted = {b.base for b in batches.kept if not is_wanted(b.base, b.end)}
        with batches.mutex:
            batches.keep([batch for batch in batches.kept if batch.base not in unwanted])
        self.trim_above_bytes = max(_TRIM_BYTES, 2 * batches.size_bytes)
        if batches.size_bytes > before // 2:
            # Where consumers stand still, each publish would look through all.
            self._trim_again_s = now_s + _TRIM_PAUSE_S

    def count_dropped(self, count: int) -> None:
        """Take note of messages that were not even appended."""
        with self._batches.mutex:
            self.dropped += count
