"""State of a channel's messages: undelivered, in flight, waiting or finished.

Owns the rules of NSQ's channels (FIN, REQ, TOUCH, time-outs, deferral) over message ids, and passes
changes for the journal to the recorder. Pure: no sockets, files or clock; does not know the
payloads, nor the format of the journal (`journalled`).

Invariants: each message below `next` of its stream partition is in exactly one of three states: in
flight, waiting (`Retries`), finished (`Progress`); the message at `next` is in none of them. A
finished message stays finished until a seek.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.broker import message_id
from penstock.broker.channel.in_flight import InFlight
from penstock.broker.channel.state.progress import Progress
from penstock.broker.channel.state.recorder import Recorder
from penstock.broker.channel.state.retries import Retries, Retry
from penstock.broker.channel.state.stale import StaleDeliveries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.broker.channel.in_flight import Held

    Ids = npt.NDArray[np.int64]

__all__ = ["ChannelState", "Retry"]

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
        self.recorder = Recorder()
        self.progress = [
            Progress(partition, start, self.recorder) for partition, start in enumerate(starts)
        ]
        self.in_flight = InFlight()
        self.retries = Retries()
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

    def due(self, now_ms: int, limit: int) -> list[Retry]:
        """Return the first due messages, ordered by due time and id; do not remove them."""
        self.retries.ripen(now_ms)
        return self.retries.first(limit)

    def redeliver(
        self, retries: Sequence[Retry], client: int, now_ms: int, timeout_ms: int
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

    def drop(self, retries: Sequence[Retry]) -> None:
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
        self.retries.ripen(now_ms)
        self._stale.expire(now_ms)
        self._begun += 1
        held = self.in_flight.expire(now_ms)
        if not len(held.ids):
            self._done += 1
            return {}
        self.timed_out_count += len(held.ids)
        self._take_back(held, now_ms)
        self._done += 1
        self.retries.ripen(now_ms)
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
        self.recorder.sought(partition, offset)
        self._stale.put(self.forget(partition, offset), message_id.of(partition, offset))
        self._done += 1

    def forget(self, partition: int, offset: int) -> Held:
        """Seek without recording it or remembering stale deliveries; return the messages held."""
        self.progress[partition].restart(offset)
        first, last = message_id.of(partition, 0), message_id.of(partition + 1, 0)
        self.retries.remove_range(first, last)
        return self.in_flight.clear(first, last)

    def drop_below(self, partition: int, offset: int) -> int:
        """Finish waiting and fresh messages below an offset; return their number."""
        first, last = message_id.of(partition, 0), message_id.of(partition, offset)
        waiting = [number for number, _, _ in self.retries if first <= number < last]
        self.drop([Retry(number, 0) for number in waiting])
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

    def _take_back(self, held: Held, due_ms: int) -> None:
        for number, attempts in zip(held.ids.tolist(), held.attempts.tolist(), strict=True):
            self.retries.put(number, due_ms, attempts)

    def _take(self, client: int, ids: Ids) -> npt.NDArray[np.bool_]:
        """Take messages from a client; return for each whether it was in flight for the client."""
        if not self._stale:
            return self.in_flight.take(client, ids)
        taken = ~self._stale.take(client, ids)
        taken[taken] = self.in_flight.take(client, ids[taken])
        return taken
