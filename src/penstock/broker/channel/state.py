"""The state of a channel: what was never given out, who has what, what comes again, what is done.

Owns the rules of NSQ's channels (FIN, REQ, TOUCH, time-outs, deferral) over message ids, and what
of it goes into the journal. Pure: no sockets, files or clock; does not know the messages.

Invariants: each message below `next` of its stream partition is in exactly one of three states: in
flight, waiting (`Retries`), done; the message at `next` is none of them. What is done stays done
until a seek. A replay of the records gives the state at the last one written, but that what was in
flight waits then, due at once.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from penstock.broker import messageid
from penstock.broker.channel import records
from penstock.broker.channel.inflight import InFlight
from penstock.broker.channel.ranges import RangeSet
from penstock.broker.channel.recorder import Recorder
from penstock.broker.channel.retries import Retries, Retry
from penstock.broker.channel.stale import StaleDeliveries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from penstock.broker.channel.inflight import Held

    Ids = npt.NDArray[np.int64]

__all__ = ["ChannelState", "Retry"]

ATTEMPTS_MAX: Final = 65_535
_RETRY_BYTES: Final = 320


@dataclass(frozen=True, slots=True)
class ChannelCounts:
    """How many messages of a channel are in which state.

    Attributes:
        fresh: Never given out.
        ready: Given out before, or deferred, and due.
        deferred: Not due yet.
        in_flight: With a consumer.
    """

    fresh: int
    ready: int
    deferred: int
    in_flight: int


class ChannelState:
    """What a channel knows of its messages.

    Args:
        starts: The offset of the first message of each stream partition that it is to have.

    Attributes:
        in_flight: What consumers have; others than the state look, and may give more time.
        retries: What waits; others look, and move its times when the clock was set.
        done: What is done with, by stream partition; others look.
    """

    def __init__(self, starts: Sequence[int]) -> None:
        self.requeued_count = 0
        self.timed_out_count = 0
        self._next = list(starts)
        self.done = [RangeSet(start) for start in starts]
        self.in_flight = InFlight()
        self._stale = StaleDeliveries()
        self.retries = Retries()
        self.recorder = Recorder()
        self.was_cut = False  # a restore found the queue shorter than the journal

    @classmethod
    def restore(
        cls,
        snapshot: bytes,
        journal: Iterable[bytes],
        starts: Sequence[int],
        ends: Sequence[int],
    ) -> Self:
        """Return the state that a journal tells of, cut to what the stream partitions hold now.

        After a power loss the queue may be shorter than the journal thinks: what is beyond its end
        is forgotten, or new messages with these offsets would count as done. So write a new
        snapshot before anything is appended.

        Args:
            snapshot: What the journal begins with; empty: nothing.
            journal: The records behind it.
            starts: The first offset of each stream partition.
            ends: The offset after its last message.

        Raises:
            InvalidRequest: The snapshot is of a newer format.
            CorruptData: A record is none.
        """
        state = cls(starts)
        replayed = _Replay(state._next, state.done, state.retries, state._forget)
        records.replay_snapshot(snapshot, replayed)
        for blob in journal:
            records.replay(blob, replayed)
        state._settle(starts, ends)
        return state

    # -- fresh messages

    def next(self, partition: int) -> int:
        """Return the offset to be read next."""
        return self._next[partition]

    def floor(self, partition: int) -> int:
        """Return the offset below which everything is done with."""
        return min(self.done[partition].floor, self._next[partition])

    def deliver(
        self, partition: int, start: int, end: int, client: int, now_ms: int, timeout_ms: int
    ) -> None:
        """Give a client the fresh messages [start, end), which begin at `next`."""
        first = messageid.of(partition, start)
        self.in_flight.put_range(first, first + end - start, client, now_ms, timeout_ms)
        self._advance(partition, end)

    def defer(self, partition: int, start: int, end: int, due_ms: int) -> None:
        """Let the fresh messages [start, end), which begin at `next`, wait until they are due."""
        for number in range(messageid.of(partition, start), messageid.of(partition, end)):
            self._wait(number, due_ms, 0)
        self._advance(partition, end)
        self.recorder.urgent = True

    def fresh_until(self, partition: int, end: int) -> int:
        """Return up to where, from `next` on, nothing was skipped ahead."""
        return self.done[partition].next_start(self._next[partition], end)

    def skip(self, partition: int, start: int, end: int) -> None:
        """Be done with fresh messages of [start, end), at `next` or ahead of it."""
        self._finish_range(partition, max(start, self._next[partition]), end)
        self._advance(partition, self._next[partition])

    # -- messages that wait

    def due(self, now_ms: int, limit: int) -> list[Retry]:
        """Return the first that are due, by the time they are due and then by id; they stay."""
        self.retries.ripen(now_ms)
        return self.retries.first(limit)

    def redeliver(
        self, retries: Sequence[Retry], client: int, now_ms: int, timeout_ms: int
    ) -> None:
        """Give a client messages that are due."""
        self.retries.remove(retry.id for retry in retries)
        for retry in retries:
            attempts = min(retry.attempts + 1, ATTEMPTS_MAX)
            self.in_flight.put(retry.id, attempts, client, now_ms, timeout_ms)
            # After a crash it is due at once.
            self.recorder.waits(retry.id, 0, attempts)

    def drop(self, retries: Sequence[Retry]) -> None:
        """Be done with messages that wait."""
        self.retries.remove(retry.id for retry in retries)
        for retry in retries:
            partition, offset = messageid.split(retry.id)
            self._finish_range(partition, offset, offset + 1)

    # -- what clients say

    def finish(self, client: int, ids: Ids) -> npt.NDArray[np.bool_]:
        """Be done with messages of a client; says of each whether the client had it."""
        taken = self._take(client, ids)
        done = ids if taken.all() else ids[taken]
        if not len(done):
            return taken
        breaks = np.flatnonzero(done[1:] != done[:-1] + 1) + 1
        if len(breaks) > 8:
            done = np.sort(done)
            breaks = np.flatnonzero(done[1:] != done[:-1] + 1) + 1
        borders = [0, *breaks.tolist(), len(done)]
        for first, last in itertools.pairwise(borders):
            partition, start = messageid.split(int(done[first]))
            self._finish_range(partition, start, start + last - first)
        return taken

    def requeue(self, client: int, number: int, due_ms: int) -> bool:
        """Let a message of a client wait until it is due; False if the client has it not."""
        if self.in_flight.of(client) == 0:
            return False
        attempts = self.in_flight.attempts_of(number)
        if not self._take(client, np.array([number], np.int64))[0]:
            return False
        self._wait(number, due_ms, attempts)
        self.requeued_count += 1
        self.recorder.urgent = True
        return True

    # -- time, and consumers that leave

    def expire(self, now_ms: int) -> dict[int, int]:
        """Let what was held too long wait, due at once; says how many each client lost."""
        self.retries.ripen(now_ms)
        self._stale.expire(now_ms)
        held = self.in_flight.expire(now_ms)
        if not len(held.ids):
            return {}
        self.timed_out_count += len(held.ids)
        self._take_back(held, now_ms)
        self.retries.ripen(now_ms)
        owners, counts = np.unique(held.owners, return_counts=True)
        return dict(zip(owners.tolist(), counts.tolist(), strict=True))

    def release(self, client: int, now_ms: int) -> int:
        """Let all messages of a client wait, due at once; says how many."""
        self._stale.release(client)
        held = self.in_flight.release(client)
        self._take_back(held, now_ms)
        return len(held.ids)

    def next_event_ms(self) -> int | None:
        """Return when something next times out or is due; None: never. It may be too early."""
        times = [t for t in (self.in_flight.earliest_ms, self.retries.next_ms) if t is not None]
        return min(times, default=None)

    # -- the whole

    def seek(self, partition: int, offset: int) -> None:
        """Go on at an offset, and forget what is known of the stream partition.

        What clients still say of messages that were in flight counts for nothing.
        """
        self.recorder.sought(partition, offset)
        self._stale.put(self._forget(partition, offset), messageid.of(partition, offset))

    def drop_below(self, partition: int, offset: int) -> int:
        """Be done with what waits or is fresh below an offset; says how many there were."""
        first, last = messageid.of(partition, 0), messageid.of(partition, offset)
        waiting = [number for number, _, _ in self.retries if first <= number < last]
        self.drop([Retry(number, 0) for number in waiting])
        start = self._next[partition]
        if start >= offset:
            return len(waiting)
        fresh = offset - start - self.done[partition].count(start, offset)
        self.skip(partition, start, offset)
        return len(waiting) + fresh

    @property
    def memory_bytes(self) -> int:
        """Return what the messages in flight and those that wait take, more or less."""
        return self.in_flight.memory_bytes + len(self.retries) * _RETRY_BYTES

    def counts(self, ends: Sequence[int]) -> ChannelCounts:
        """Return how many messages are in which state, of those below the ends."""
        fresh = sum(
            max(0, end - start) - done.count(start, end)
            for start, end, done in zip(self._next, ends, self.done, strict=True)
        )
        ready = self.retries.ready
        return ChannelCounts(fresh, ready, len(self.retries) - ready, len(self.in_flight))

    def snapshot(self) -> bytes:
        """Return the whole state; what the recorder holds is in it, and forgotten there."""
        self.recorder.clear()
        parts = []
        for partition, done in enumerate(self.done):
            parts.append(records.seek(partition, done.floor))
            parts.append(records.next_(partition, self._next[partition]))
        held = self.in_flight.all()
        for number, attempts in zip(held.ids.tolist(), held.attempts.tolist(), strict=True):
            if attempts > 1:
                parts.append(records.retry(number, 0, attempts))
        parts += [records.retry(*entry) for entry in self.retries]
        parts += [
            records.done(partition, start, end)
            for partition, done in enumerate(self.done)
            for start, end in done
        ]
        return records.snapshot(parts)

    # -- inside

    def _advance(self, partition: int, end: int) -> None:
        end = self.done[partition].end_of(end)
        self._next[partition] = end
        self.recorder.given_out(partition, end)

    def _wait(self, number: int, due_ms: int, attempts: int) -> None:
        self.retries.put(number, due_ms, attempts)
        self.recorder.waits(number, due_ms, attempts)

    def _take_back(self, held: Held, due_ms: int) -> None:
        for number, attempts in zip(held.ids.tolist(), held.attempts.tolist(), strict=True):
            self.retries.put(number, due_ms, attempts)

    def _finish_range(self, partition: int, start: int, end: int) -> None:
        self.done[partition].add(start, end)
        self.recorder.done(partition, start, end)

    def _take(self, client: int, ids: Ids) -> npt.NDArray[np.bool_]:
        """Take messages from a client; says of each whether the client had it."""
        if not self._stale:
            return self.in_flight.take(client, ids)
        taken = ~self._stale.take(client, ids)
        taken[taken] = self.in_flight.take(client, ids[taken])
        return taken

    def _forget(self, partition: int, offset: int) -> Held:
        self._next[partition] = offset
        self.done[partition] = RangeSet(offset)
        first, last = messageid.of(partition, 0), messageid.of(partition + 1, 0)
        self.retries.remove_range(first, last)
        return self.in_flight.clear(first, last)

    def _settle(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """Cut to what there is; what was given out and is not done waits, due at once."""
        waiting = {number for number, _, _ in self.retries}
        for partition, (start, end) in enumerate(zip(starts, ends, strict=True)):
            done = self.done[partition]
            done.add(-1, start)
            self.was_cut |= done.cut(end) or self._next[partition] > end
            self._next[partition] = done.end_of(max(min(self._next[partition], end), done.floor))
            for first, last in done.gaps(self._next[partition]):
                for offset in range(first, last):
                    number = messageid.of(partition, offset)
                    if number not in waiting:
                        self.retries.put(number, 0, 1)
        gone = []
        for number, _, _ in self.retries:
            partition, offset = messageid.split(number)
            self.was_cut |= offset >= ends[partition]
            if offset >= self._next[partition] or offset in self.done[partition]:
                gone.append(number)
        self.retries.remove(gone)
        self.retries.ripen(0)


class _Replay:
    """Applies records to the parts of a state that has nothing in flight."""

    def __init__(
        self,
        offsets: list[int],
        done: list[RangeSet],
        retries: Retries,
        forget: Callable[[int, int], object],
    ) -> None:
        self._next = offsets
        self._done = done
        self._retries = retries
        self._forget = forget

    def on_seek(self, partition: int, offset: int) -> None:
        if partition < len(self._next):
            self._forget(partition, offset)

    def on_next(self, partition: int, offset: int) -> None:
        if partition < len(self._next):
            self._next[partition] = max(self._next[partition], offset)

    def on_retry(self, number: int, due_ms: int, attempts: int) -> None:
        if number >> messageid.OFFSET_BITS < len(self._next):
            self._retries.put(number, due_ms, attempts)

    def on_done(self, partition: int, start: int, end: int) -> None:
        if partition < len(self._next):
            self._done[partition].add(start, end)
            first = messageid.of(partition, start)
            self._retries.remove_range(first, first + end - start)
