"""State of a channel: undelivered, in-flight, waiting and finished messages.

`ChannelState` owns NSQ's rules (FIN, REQ, TOUCH, time-outs, deferral) over message ids.
`PartitionProgress` has, for each stream partition, the next offset to read and the finished
messages. `RedeliveryQueue` orders the requeued, timed-out and deferred messages by due time and
then by id; its memory is bounded by their number. `StaleDeliveries` has the deliveries from before
a seek. `ChangeRecorder` merges the changes since the journal was last written: thousands of
finished messages become a few ranges, and a message that waited and is finished leaves no record.
The states of a message and the events that change them are a table in `message_states`, which is
the specification of the code here. Does not own the messages, the journal encoding
(`journal_records`) or when the journal is written (`persistence`).

Invariants:

- Pure: no sockets, files or clock.
- Each message below `next` of its stream partition is in exactly one state: in flight, waiting
  or finished. The message at `next` is in none of them. A finished message stays finished until
  a seek.
- The next offset of a stream partition is not finished; finished offsets ahead of it are
  skipped when it reaches them.
- After a seek, a consumer may still hold an old delivery of a message that is delivered to it
  again, so two responses arrive for one id. The first one belongs to the old delivery and does
  not finish the new one. A stale delivery ends with its response or its time-out, so at worst a
  finished message is delivered once more, and no message is finished without being processed.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from penstock.broker import message_id
from penstock.broker.channel import journal_records
from penstock.broker.channel.in_flight import InFlight
from penstock.broker.channel.offset_ranges import OffsetRangeSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from penstock.broker.channel.in_flight import HeldMessages

__all__ = ["ChannelState", "Redelivery"]


class PartitionProgress:
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

    def __init__(self, partition: int, start: int, recorder: ChangeRecorder) -> None:
        self._partition = partition
        self._recorder = recorder
        self.next = start
        self.done = OffsetRangeSet(start)

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
        """Record that every message below `end` was delivered."""
        self.next = end = self.done.end_of(end)
        self._recorder.delivered(self._partition, end)

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
        self.done = OffsetRangeSet(offset)

    def effect_of(self, offset: int, earliest: int) -> tuple[int, int]:
        """Return how many messages a seek to this offset would repeat, and how many it would skip.

        Args:
            offset: The new offset.
            earliest: The offset of the first message that exists.
        """
        done = self.done
        repeated = max(0, done.floor - offset) + done.count(
            max(offset, done.floor), message_id.OFFSET_MASK
        )
        start = max(done.floor, earliest)
        return repeated, max(0, offset - start - done.count(start, offset))

    def cut(self, start: int, end: int) -> bool:
        """Clip the progress to the existing messages [start, end); return whether it was beyond."""
        self.done.add(-1, start)
        was_past = self.done.cut(end) or self.next > end
        self.next = self.done.end_of(max(min(self.next, end), self.done.floor))
        return was_past


class StaleDeliveries:
    """The stale deliveries of one channel; few, and only until their deadlines."""

    def __init__(self) -> None:
        self._of: dict[int, dict[int, int]] = {}  # client -> id -> deadline
        self._earliest = 0

    def __bool__(self) -> bool:
        return bool(self._of)

    def put(self, held: HeldMessages, first: int) -> None:
        """Add stale deliveries; only ids from `first` on can be delivered again."""
        rows = zip(held.owners.tolist(), held.ids.tolist(), held.deadlines.tolist(), strict=True)
        for client, number, deadline in rows:
            if number >= first:
                known = self._of.setdefault(client, {})
                known[number] = max(deadline, known.get(number, 0))
        self._earliest = 0

    def take(self, client: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of a client's answers are for stale deliveries; each counts once."""
        known = self._of.get(client)
        if not known:
            return np.zeros(len(ids), np.bool_)
        taken = [known.pop(number, None) is not None for number in ids.tolist()]
        if not known:
            del self._of[client]
        return np.array(taken, np.bool_)

    def release(self, client: int) -> None:
        """Remove a client that has disconnected."""
        self._of.pop(client, None)

    def expire(self, now_ms: int) -> None:
        """Remove entries whose deadline has passed."""
        if not self._of or now_ms < self._earliest:
            return
        left = {
            client: {number: deadline for number, deadline in known.items() if deadline > now_ms}
            for client, known in self._of.items()
        }
        self._of = {client: known for client, known in left.items() if known}
        deadlines = (min(known.values()) for known in self._of.values())
        self._earliest = min(deadlines, default=0)


class ChangeRecorder:
    """Collects changes until they are written.

    Attributes:
        urgent: A change must be written at once, because waiting messages must not be redelivered
            too early after a crash.
    """

    def __init__(self) -> None:
        self.urgent = False
        self._log: list[bytes] = []  # records that must precede later changes
        self._next: dict[int, int] = {}
        self._done: dict[int, OffsetRangeSet] = {}
        self._retries: dict[int, tuple[int, int]] = {}

    @property
    def changed(self) -> bool:
        """Whether there are records to write."""
        return bool(self._log or self._next or self._done or self._retries)

    def delivered(self, partition: int, end: int) -> None:
        """Record that every message below `end` was delivered."""
        self._next[partition] = end

    def waits(self, number: int, due_ms: int, attempts: int) -> None:
        """Record that a message waits, or must wait after a crash."""
        self._retries[number] = (due_ms, attempts)

    def done(self, partition: int, start: int, end: int) -> None:
        """Record that messages are finished."""
        ranges = self._done.get(partition)
        if ranges is None:
            ranges = self._done[partition] = OffsetRangeSet(-1)
        ranges.add(start, end)
        remove_range(self._retries, message_id.of(partition, start), message_id.of(partition, end))

    def repositioned(self, partition: int, offset: int) -> None:
        """Record that a stream partition continues at another offset."""
        self._log += self._merged()
        self._next, self._done, self._retries = {}, {}, {}
        self._log.append(journal_records.seek(partition, offset))
        self.urgent = True

    def pending(self) -> bytes:
        """Return all changes as one blob of records; empty if there are none."""
        return b"".join([*self._log, *self._merged()])

    def clear(self) -> None:
        """Clear the changes after they were written."""
        self._log = []
        self._next, self._done, self._retries = {}, {}, {}
        self.urgent = False

    def _merged(self) -> list[bytes]:
        parts = [journal_records.next_(partition, end) for partition, end in self._next.items()]
        parts += [journal_records.retry(number, *wait) for number, wait in self._retries.items()]
        parts += [
            journal_records.done(partition, start, end)
            for partition, ranges in self._done.items()
            for start, end in ranges
        ]
        return parts


def remove_range(known: dict[int, tuple[int, int]], first: int, last: int) -> list[int]:
    """Remove the ids [first, last) from a mapping, and return the removed ones."""
    if not known:
        return []
    if last - first < len(known):
        found = [number for number in range(first, last) if number in known]
    else:
        found = [number for number in known if first <= number < last]
    for number in found:
        del known[number]
    return found


class Redelivery(NamedTuple):
    """A waiting message: its id, and its number of deliveries."""

    id: int
    attempts: int


class RedeliveryQueue:
    """Messages that wait for their due time, and due ones that wait for a consumer."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}  # id -> (due, attempts)
        # Heaps of (due, id, ticket). A message that is added, removed and added again, even in the
        # same millisecond, gets a new ticket each time: entries with an old one are ignored.
        self._later: list[tuple[int, int, int]] = []
        self._ready: list[tuple[int, int, int]] = []
        self._offered: list[tuple[int, int, int]] = []
        self._tickets: dict[int, int] = {}
        self._ticket = 0
        self._ready_ids: set[int] = set()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, number: int) -> bool:
        return number in self._known

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield (id, due, attempts)."""
        return ((number, due, attempts) for number, (due, attempts) in self._known.items())

    def ids(self) -> list[int]:
        """Return all ids."""
        return list(self._known)

    def find(self, number: int) -> tuple[int, int] | None:
        """Return a message's due time and its number of deliveries; None: it does not wait."""
        return self._known.get(number)

    @property
    def ready(self) -> int:
        """Number of messages that `make_due_ready` has made ready."""
        return len(self._ready_ids)

    @property
    def next_ms(self) -> int | None:
        """Earliest due time of messages that `make_due_ready` has not made ready yet."""
        while self._later and not self._stands(self._later[0]):
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else None

    def is_ready(self, number: int) -> bool:
        """Return whether `make_due_ready` has made a message ready."""
        return number in self._ready_ids

    def put(self, number: int, due_ms: int, attempts: int) -> None:
        """Add a message."""
        self._known[number] = (due_ms, attempts)
        self._ready_ids.discard(number)
        self._ticket += 1
        self._tickets[number] = self._ticket
        heapq.heappush(self._later, (due_ms, number, self._ticket))

    def shift(self, step_ms: int) -> None:
        """Shift the due times of messages that are not ready yet."""
        self._later = [
            (due_ms + step_ms, number, ticket)
            for due_ms, number, ticket in self._later
            if self._tickets.get(number) == ticket
        ]
        heapq.heapify(self._later)
        for due_ms, number, _ in self._later:
            self._known[number] = (due_ms, self._known[number][1])

    def make_due_ready(self, now_ms: int) -> None:
        """Make messages ready that are due now."""
        while self._later and self._later[0][0] <= now_ms:
            entry = self._later[0]
            if self._stands(entry):
                # Added to one heap before it leaves the other: an exception loses no entry.
                self._ready_ids.add(entry[1])
                heapq.heappush(self._ready, entry)
            heapq.heappop(self._later)

    def first(self, limit: int) -> list[Redelivery]:
        """Return the first due messages; they stay until they are removed."""
        offered = self._offered
        while offered:
            entry = offered[-1]
            if self._stands(entry) and entry[1] in self._ready_ids:
                heapq.heappush(self._ready, entry)
            offered.pop()
        found: list[Redelivery] = []
        while self._ready and len(found) < limit:
            entry = self._ready[0]
            if self._stands(entry) and entry[1] in self._ready_ids:
                found.append(Redelivery(entry[1], self._known[entry[1]][1]))
                offered.append(entry)
            heapq.heappop(self._ready)
        return found

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove messages; ignore those that do not exist."""
        for number in numbers:
            if self._known.pop(number, None) is not None:
                del self._tickets[number]
                self._ready_ids.discard(number)

    def remove_range(self, first: int, last: int) -> None:
        """Remove the messages with ids [first, last)."""
        gone = remove_range(self._known, first, last)
        self._ready_ids.difference_update(gone)
        for number in gone:
            del self._tickets[number]

    def _stands(self, entry: tuple[int, int, int]) -> bool:
        return self._tickets.get(entry[1]) == entry[2]


if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.broker.channel.in_flight import HeldMessages

    Ids = npt.NDArray[np.int64]

ATTEMPTS_MAX: Final = 65_535
_RETRY_BYTES: Final = 320


@dataclass(frozen=True, slots=True)
class ChannelCounts:
    """Number of a channel's messages in each state.

    Attributes:
        fresh: Never delivered.
        ready: Delivered before, or deferred, and due.
        deferred: Not due yet.
        in_flight: Delivered to a consumer.
    """

    fresh: int
    ready: int
    deferred: int
    in_flight: int

    @property
    def depth(self) -> int:
        """Return how many messages wait for a consumer, without those in flight or deferred."""
        return self.fresh + self.ready


class ChannelState:
    """State of the messages of a channel.

    Args:
        starts: For each stream partition, the offset of the channel's first message.

    Attributes:
        progress: Progress of each stream partition; other modules skip fresh messages there.
        in_flight: Messages of consumers; other modules read them and extend their time-outs.
        retries: Waiting messages; other modules read them and shift their times if the clock
            was set.
        recorder: Changes that the journal does not contain yet.
    """

    def __init__(self, starts: Sequence[int]) -> None:
        self.requeued_count = 0
        self.timed_out_count = 0
        self._begun = self._done = 0  # changes
        self.recorder = ChangeRecorder()
        self.progress = [
            PartitionProgress(partition, start, self.recorder)
            for partition, start in enumerate(starts)
        ]
        self.in_flight = InFlight()
        self.retries = RedeliveryQueue()
        self._stale = StaleDeliveries()

    @property
    def is_whole(self) -> bool:
        """Whether no exception, such as a `MemoryError`, has interrupted a change.

        A state that is not whole stays so, and must not be served. A restart restores a whole state
        from the journal.
        """
        return self._begun == self._done

    # -- fresh messages

    def deliver(
        self, partition: int, start: int, end: int, client: int, now_ms: int, timeout_ms: int
    ) -> None:
        """Deliver the fresh messages [start, end), which begin at `next`, to a client."""
        first = message_id.of(partition, start)
        self._begun += 1
        self.in_flight.put_range(first, first + end - start, client, now_ms, timeout_ms)
        self.progress[partition].advance(end)
        self._done += 1

    def defer(self, partition: int, start: int, end: int, due_ms: int) -> None:
        """Defer the fresh messages [start, end), which begin at `next`, until they are due."""
        self._begun += 1
        for number in range(message_id.of(partition, start), message_id.of(partition, end)):
            self._wait(number, due_ms, 0)
        self.progress[partition].advance(end)
        self.recorder.urgent = True
        self._done += 1

    def skip(self, partition: int, start: int, end: int) -> None:
        """Finish the fresh messages [start, end), at or after `next`, without delivery."""
        self._begun += 1
        self.progress[partition].skip(start, end)
        self._done += 1

    # -- messages that wait

    def due(self, now_ms: int, limit: int) -> list[Redelivery]:
        """Return the first due messages, ordered by due time and id; do not remove them."""
        self.retries.make_due_ready(now_ms)
        return self.retries.first(limit)

    def redeliver(
        self, retries: Sequence[Redelivery], client: int, now_ms: int, timeout_ms: int
    ) -> None:
        """Deliver due messages to a client again."""
        self._begun += 1
        self.retries.remove(retry.id for retry in retries)
        for retry in retries:
            attempts = min(retry.attempts + 1, ATTEMPTS_MAX)
            self.in_flight.put(retry.id, attempts, client, now_ms, timeout_ms)
            # After a crash the message is due at once.
            self.recorder.waits(retry.id, 0, attempts)
        self._done += 1

    def drop(self, retries: Sequence[Redelivery]) -> None:
        """Finish waiting messages without delivery."""
        self._begun += 1
        self.retries.remove(retry.id for retry in retries)
        for retry in retries:
            partition, offset = message_id.split(retry.id)
            self.progress[partition].finish(offset, offset + 1)
        self._done += 1

    # -- commands of clients

    def finish(self, client: int, ids: Ids) -> npt.NDArray[np.bool_]:
        """Finish messages of a client; return for each whether it was in flight for the client."""
        self._begun += 1
        taken = self._take(client, ids)
        done = ids if taken.all() else ids[taken]
        if not len(done):
            self._done += 1
            return taken
        breaks = np.flatnonzero(done[1:] != done[:-1] + 1) + 1
        if len(breaks) > 8:
            done = np.sort(done)
            breaks = np.flatnonzero(done[1:] != done[:-1] + 1) + 1
        borders = [0, *breaks.tolist(), len(done)]
        for first, last in itertools.pairwise(borders):
            partition, start = message_id.split(int(done[first]))
            self.progress[partition].finish(start, start + last - first)
        self._done += 1
        return taken

    def requeue(self, client: int, number: int, due_ms: int) -> bool:
        """Defer a message of a client until it is due; False if it is not in flight for it."""
        if self.in_flight.of(client) == 0:
            return False
        attempts, ids = self.in_flight.attempts_of(number), np.array([number], np.int64)
        self._begun += 1
        taken = bool(self._take(client, ids)[0])
        if taken:
            self._wait(number, due_ms, attempts)
            self.requeued_count += 1
            self.recorder.urgent = True
        self._done += 1
        return taken

    # -- time-outs, and consumers that leave

    def expire(self, now_ms: int) -> dict[int, int]:
        """Requeue timed-out messages, due at once; return their number by client."""
        self.retries.make_due_ready(now_ms)
        self._stale.expire(now_ms)
        self._begun += 1
        held = self.in_flight.expire(now_ms)
        if not len(held.ids):
            self._done += 1
            return {}
        self.timed_out_count += len(held.ids)
        self._take_back(held, now_ms)
        self._done += 1
        self.retries.make_due_ready(now_ms)
        owners, counts = np.unique(held.owners, return_counts=True)
        return dict(zip(owners.tolist(), counts.tolist(), strict=True))

    def release(self, client: int, now_ms: int) -> int:
        """Requeue all messages of a client, due at once; return their number."""
        self._stale.release(client)
        self._begun += 1
        held = self.in_flight.release(client)
        self._take_back(held, now_ms)
        self._done += 1
        return len(held.ids)

    def next_event_ms(self) -> int | None:
        """Return the next time-out or due time, or an earlier time; None: never."""
        times = [t for t in (self.in_flight.earliest_ms, self.retries.next_ms) if t is not None]
        return min(times, default=None)

    # -- seek and trim

    def seek(self, partition: int, offset: int) -> None:
        """Continue at an offset, and drop the state of the stream partition.

        Later commands of clients for messages that were in flight have no effect.
        """
        self._begun += 1
        self.recorder.repositioned(partition, offset)
        self._stale.put(self.forget(partition, offset), message_id.of(partition, offset))
        self._done += 1

    def forget(self, partition: int, offset: int) -> HeldMessages:
        """Seek without recording it or remembering stale deliveries; return the messages held."""
        self.progress[partition].restart(offset)
        first, last = message_id.of(partition, 0), message_id.of(partition + 1, 0)
        self.retries.remove_range(first, last)
        return self.in_flight.clear(first, last)

    def drop_below(self, partition: int, offset: int) -> int:
        """Finish waiting and fresh messages below an offset; return their number."""
        first, last = message_id.of(partition, 0), message_id.of(partition, offset)
        waiting = [number for number, _, _ in self.retries if first <= number < last]
        self.drop([Redelivery(number, 0) for number in waiting])
        progress = self.progress[partition]
        fresh = progress.fresh(offset)
        if progress.next < offset:
            self.skip(partition, progress.next, offset)
        return len(waiting) + fresh

    @property
    def memory_bytes(self) -> int:
        """Return the approximate memory use of the messages in flight and waiting."""
        return self.in_flight.memory_bytes + len(self.retries) * _RETRY_BYTES

    def counts(self, ends: Sequence[int]) -> ChannelCounts:
        """Count the messages below the ends of the stream partitions by state."""
        fresh = sum(progress.fresh(end) for progress, end in zip(self.progress, ends, strict=True))
        ready = self.retries.ready
        return ChannelCounts(fresh, ready, len(self.retries) - ready, len(self.in_flight))

    # -- inside

    def _wait(self, number: int, due_ms: int, attempts: int) -> None:
        self.retries.put(number, due_ms, attempts)
        self.recorder.waits(number, due_ms, attempts)

    def _take_back(self, held: HeldMessages, due_ms: int) -> None:
        for number, attempts in zip(held.ids.tolist(), held.attempts.tolist(), strict=True):
            self.retries.put(number, due_ms, attempts)

    def _take(self, client: int, ids: Ids) -> npt.NDArray[np.bool_]:
        """Take messages from a client; return for each whether it was in flight for the client."""
        if not self._stale:
            return self.in_flight.take(client, ids)
        taken = ~self._stale.take(client, ids)
        taken[taken] = self.in_flight.take(client, ids[taken])
        return taken
