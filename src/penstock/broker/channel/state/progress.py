"""How far a channel is in one stream partition: what was given out, and what is done with.

Owns two things: the offset that is read next, and the set of those that are done. Does not own what
is between them, in flight or waiting (`state`).

Invariants: the offset that is read next is not done; who skips ahead is passed when it is reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.channel.state.ranges import RangeSet

if TYPE_CHECKING:
    from penstock.broker.channel.state.recorder import Recorder


class Progress:
    """Where a channel stands in a stream partition.

    Args:
        partition: The stream partition's number.
        start: The offset of the first message that the channel is to have.
        recorder: Takes note of what is given out and done, for the journal.

    Attributes:
        next: The offset to be read next.
        done: What is done with; others look.
    """

    __slots__ = ("_partition", "_recorder", "done", "next")

    def __init__(self, partition: int, start: int, recorder: Recorder) -> None:
        self._partition = partition
        self._recorder = recorder
        self.next = start
        self.done = RangeSet(start)

    @property
    def floor(self) -> int:
        """Return the offset below which everything is done with."""
        return min(self.done.floor, self.next)

    def fresh(self, end: int) -> int:
        """Return how many messages below `end` were never given out, and are wanted."""
        return max(0, end - self.next) - self.done.count(self.next, end)

    def fresh_until(self, end: int) -> int:
        """Return up to where, from `next` on, nothing was skipped ahead."""
        return self.done.next_start(self.next, end)

    def advance(self, end: int) -> None:
        """Note that everything below `end` was given out."""
        self.next = end = self.done.end_of(end)
        self._recorder.given_out(self._partition, end)

    def finish(self, start: int, end: int) -> None:
        """Be done with messages of [start, end) that were given out."""
        self.done.add(start, end)
        self._recorder.done(self._partition, start, end)

    def skip(self, start: int, end: int) -> None:
        """Be done with fresh messages of [start, end), at `next` or ahead of it."""
        self.finish(max(start, self.next), end)
        self.advance(self.next)

    def restart(self, offset: int) -> None:
        """Go on at an offset, and forget what was done; the journal is told by who asks for it."""
        self.next = offset
        self.done = RangeSet(offset)

    def cut(self, start: int, end: int) -> bool:
        """Keep to the messages that there are, [start, end); says whether it was past the end."""
        self.done.add(-1, start)
        was_past = self.done.cut(end) or self.next > end
        self.next = self.done.end_of(max(min(self.next, end), self.done.floor))
        return was_past
