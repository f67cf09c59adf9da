"""The state of a channel: what was never given out, who has what, what comes again, what is done.

Owns the rules of NSQ's channels (FIN, REQ, TOUCH, time-outs, deferral) over message ids, and tells
the recorder what of it goes into the journal. Pure: no sockets, files or clock; does not know the
messages, nor how the journal says it (`journalled`).

Invariants: each message below `next` of its stream partition is in exactly one of three states: in
flight, waiting (`Retries`), done (`Progress`); the message at `next` is none of them. What is done
stays done until a seek.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.broker import messageid
from penstock.broker.channel.state.inflight import InFlight
from penstock.broker.channel.state.progress import Progress
from penstock.broker.channel.state.recorder import Recorder
from penstock.broker.channel.state.retries import Retries, Retry
from penstock.broker.channel.state.stale import StaleDeliveries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.broker.channel.state.inflight import Held

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

    @property
    def depth(self) -> int:
        """Return how many wait for a consumer, without those in flight and deferred."""
        return self.fresh + self.ready


class ChannelState:
    """What a channel knows of its messages.

    Args:
        starts: The offset of the first message of each stream partition that it is to have.

    Attributes:
        progress: How far each stream partition is; others skip what is fresh there.
        in_flight: What consumers have; others than the state look, and may give more time.
        retries: What waits; others look, and move its times when the clock was set.
        recorder: What the journal is still to be told.
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
        """Whether no change was ended half way by an exception, such as a `MemoryError`.

        A state that is not whole stays so, and nothing may be served from it. The journal only says
        what is done, so a restart restores a whole state from it.
        """
        return self._begun == self._done

    # -- fresh messages

    def deliver(
        self, partition: int, start: int, end: int, client: int, now_ms: int, timeout_ms: int
    ) -> None:
        """Give a client the fresh messages [start, end), which begin at `next`."""
        first = messageid.of(partition, start)
        self._begun += 1
        self.in_flight.put_range(first, first + end - start, client, now_ms, timeout_ms)
        self.progress[partition].advance(end)
        self._done += 1

    def defer(self, partition: int, start: int, end: int, due_ms: int) -> None:
        """Let the fresh messages [start, end), which begin at `next`, wait until they are due."""
        self._begun += 1
        for number in range(messageid.of(partition, start), messageid.of(partition, end)):
            self._wait(number, due_ms, 0)
        self.progress[partition].advance(end)
        self.recorder.urgent = True
        self._done += 1

    def skip(self, partition: int, start: int, end: int) -> None:
        """Be done with the fresh messages [start, end), at `next` or ahead of it."""
        self._begun += 1
        self.progress[partition].skip(start, end)
        self._done += 1

    # -- messages that wait

    def due(self, now_ms: int, limit: int) -> list[Retry]:
        """Return the first that are due, by the time they are due and then by id; they stay."""
        self.retries.ripen(now_ms)
        return self.retries.first(limit)

    def redeliver(
        self, retries: Sequence[Retry], client: int, now_ms: int, timeout_ms: int
    ) -> None:
        """Give a client messages that are due."""
        self._begun += 1
        self.retries.remove(retry.id for retry in retries)
        for retry in retries:
            attempts = min(retry.attempts + 1, ATTEMPTS_MAX)
            self.in_flight.put(retry.id, attempts, client, now_ms, timeout_ms)
            # After a crash it is due at once.
            self.recorder.waits(retry.id, 0, attempts)
        self._done += 1

    def drop(self, retries: Sequence[Retry]) -> None:
        """Be done with messages that wait."""
        self._begun += 1
        self.retries.remove(retry.id for retry in retries)
        for retry in retries:
            partition, offset = messageid.split(retry.id)
            self.progress[partition].finish(offset, offset + 1)
        self._done += 1

    # -- what clients say

    def finish(self, client: int, ids: Ids) -> npt.NDArray[np.bool_]:
        """Be done with messages of a client; says of each whether the client had it."""
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
            partition, start = messageid.split(int(done[first]))
            self.progress[partition].finish(start, start + last - first)
        self._done += 1
        return taken

    def requeue(self, client: int, number: int, due_ms: int) -> bool:
        """Let a message of a client wait until it is due; False if the client has it not."""
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

    # -- time, and consumers that leave

    def expire(self, now_ms: int) -> dict[int, int]:
        """Let what was held too long wait, due at once; says how many each client lost."""
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
        """Let all messages of a client wait, due at once; says how many."""
        self._stale.release(client)
        self._begun += 1
        held = self.in_flight.release(client)
        self._take_back(held, now_ms)
        self._done += 1
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
        self._begun += 1
        self.recorder.sought(partition, offset)
        self._stale.put(self.forget(partition, offset), messageid.of(partition, offset))
        self._done += 1

    def forget(self, partition: int, offset: int) -> Held:
        """As `seek`, but neither the journal is told nor who had what; returns what they had."""
        self.progress[partition].restart(offset)
        first, last = messageid.of(partition, 0), messageid.of(partition + 1, 0)
        self.retries.remove_range(first, last)
        return self.in_flight.clear(first, last)

    def drop_below(self, partition: int, offset: int) -> int:
        """Be done with what waits or is fresh below an offset; says how many there were."""
        first, last = messageid.of(partition, 0), messageid.of(partition, offset)
        waiting = [number for number, _, _ in self.retries if first <= number < last]
        self.drop([Retry(number, 0) for number in waiting])
        progress = self.progress[partition]
        fresh = progress.fresh(offset)
        if progress.next < offset:
            self.skip(partition, progress.next, offset)
        return len(waiting) + fresh

    @property
    def memory_bytes(self) -> int:
        """Return what the messages in flight and those that wait take, more or less."""
        return self.in_flight.memory_bytes + len(self.retries) * _RETRY_BYTES

    def counts(self, ends: Sequence[int]) -> ChannelCounts:
        """Return how many messages are in which state, of those below the ends."""
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
        """Take messages from a client; says of each whether the client had it."""
        if not self._stale:
            return self.in_flight.take(client, ids)
        taken = ~self._stale.take(client, ids)
        taken[taken] = self.in_flight.take(client, ids[taken])
        return taken
