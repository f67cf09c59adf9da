"""Progress of a channel in one stream partition: delivered and finished messages.

Owns the offset that is read next, and the set of finished messages. Does not own the messages
between them, in flight or waiting (`state`).

Invariants: the message that is read next is not finished; messages finished ahead of it are skipped
when they are reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.channel.offset_ranges import RangeSet

if TYPE_CHECKING:
    from penstock.broker.channel.state.recorder import Recorder


class Progress:
    """Progress of a channel in a stream partition.

    Args:
        partition: The stream partition's number.
        start: Offset of the channel's first message.
        recorder: Records delivered and finished messages for the journal.

    Attributes:
        next: The offset to be read next.
        done: The finished messages; read by other modules.
    """

    __slots__ = ("_partition", "_recorder", "done", "next")

    def __init__(self, partition: int, start: int, recorder: Recorder) -> None:
        self._partition = partition
        self._recorder = recorder
        self.next = start
        self.done = RangeSet(start)

    @property
    def floor(self) -> int:
        """Return the offset below which every message is finished."""
        return min(self.done.floor, self.next)

    def fresh(self, end: int) -> int:
        """Return the number of undelivered and unfinished messages below `end`."""
        return max(0, end - self.next) - self.done.count(self.next, end)

    def fresh_until(self, end: int) -> int:
        """Return the end of the unfinished messages that begin at `next`."""
        return self.done.next_start(self.next, end)

    def advance(self, end: int) -> None:
        """Note that every message below `end` was delivered."""
        self.next = end = self.done.end_of(end)
        self._recorder.given_out(self._partition, end)

    def finish(self, start: int, end: int) -> None:
        """Finish delivered messages of [start, end)."""
        self.done.add(start, end)
        self._recorder.done(self._partition, start, end)

    def skip(self, start: int, end: int) -> None:
        """Finish fresh messages of [start, end), at or after `next`."""
        self.finish(max(start, self.next), end)
        self.advance(self.next)

    def restart(self, offset: int) -> None:
        """Continue at an offset, and clear the finished set; the caller records the seek."""
        self.next = offset
        self.done = RangeSet(offset)

    def cut(self, start: int, end: int) -> bool:
        """Clip the progress to the existing messages [start, end); return whether it was beyond."""
        self.done.add(-1, start)
        was_past = self.done.cut(end) or self.next > end
        self.next = self.done.end_of(max(min(self.next, end), self.done.floor))
        return was_past
