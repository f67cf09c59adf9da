"""What a channel delivers no more: too old, tried too often, too many, lost or deleted.

Owns the counts of these, and the way of dead letters into their topic. Does not own when a message
is looked at (`channel`) nor how it is done with (`state`).

Invariants: used on the broker's event loop only; a dead letter is done with here when the other
topic has it durably, until then it is in flight for nobody's connection, so that a crash brings it
back here. What is on its way is bounded; the next ones wait.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa

from penstock.core.errors import PenstockError
from penstock.core.looptasks import start_job

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.broker.channel.feed import Slice
    from penstock.broker.channel.options import ChannelOptions
    from penstock.broker.channel.state.state import ChannelState, Retry

_logger = logging.getLogger(__name__)

_NANOSECONDS_PER_MS: Final = 1_000_000
_CLIENT: Final = -1
_TIMEOUT_MS: Final = 3_600_000
_RETRY_MS: Final = 1_000
_PUT_BYTES_MAX: Final = 4 << 20
_PUT_MESSAGES_MAX: Final = 10_000


class DeadLetters(Protocol):
    """Where messages go that were tried too often."""

    async def put(self, topic: str, messages: pa.BinaryArray) -> None:
        """Append messages to a topic, which is made if there is none.

        Raises:
            PenstockError: It cannot be done now; nothing was appended.
        """
        ...


@dataclass(slots=True)
class ChannelCounters:
    """What happened since the broker started.

    Attributes:
        journal_damaged: 1: its journal was damaged or gone then, so that finished messages come
            again.
    """

    lost: int = 0
    expired: int = 0
    dead_lettered: int = 0
    given_up: int = 0
    shed: int = 0
    journal_damaged: int = 0


class GiveUp:
    """What one channel gives up.

    Args:
        state: What the channel knows of its messages.
        dead_letters: Takes what was tried too often.
        go_on: Called when there may be something to do again.
    """

    def __init__(
        self,
        state: ChannelState,
        dead_letters: DeadLetters,
        go_on: Callable[[], None],
    ) -> None:
        self.counters = ChannelCounters()
        self._state = state
        self._dead_letters = dead_letters
        self._go_on = go_on
        self._closed = False
        self._puts: set[asyncio.Task[None]] = set()
        self._put_messages = 0
        self._put_bytes = 0

    def close(self) -> None:
        """Stop. What is on its way to another topic stays in this channel, too."""
        self._closed = True
        for task in self._puts:
            task.cancel()

    def count_missing(self, place: Slice) -> None:
        """Count messages that are not there any more."""
        count = place.end - place.start
        if place.deleted:
            # For a bound's sake: nothing else deletes what a channel still wants.
            self.counters.shed += count
        else:
            self.counters.lost += count

    def shed(self, ends: Sequence[int], max_backlog: int) -> None:
        """Let an ephemeral channel fall behind no further than it may: the newest go, as in NSQ."""
        for partition, end in enumerate(ends):
            progress = self._state.progress[partition]
            over = end - progress.next - max_backlog
            if over > 0:
                over = progress.fresh(end) - max_backlog
            if over > 0:
                # It was not over before, so that these are behind all that went so far.
                self._state.skip(partition, max(end - over, progress.next), end)
                self.counters.shed += over

    def bury(
        self, found: list[tuple[Retry, Slice]], options: ChannelOptions, now_ms: int
    ) -> tuple[list[tuple[Retry, Slice]], int]:
        """Give up what was delivered too often; returns what was not, and how many went.

        Where too much is on its way to the dead-letter topic the others stay as they are, and the
        channel goes on when that is there.
        """
        limit = options.max_attempts
        dead = [entry for entry in found if entry[0].attempts >= limit] if limit else []
        if not dead:
            return found, 0
        alive = [entry for entry in found if entry[0].attempts < limit]
        retries = [retry for retry, _ in dead]
        topic = options.dead_letter_topic
        if topic is None:
            self._state.drop(retries)
            self.counters.given_up += len(dead)
        elif self._put_messages >= _PUT_MESSAGES_MAX or self._put_bytes >= _PUT_BYTES_MAX:
            return alive, 0
        else:
            messages = pa.concat_arrays([place.messages for _, place in dead])
            putting = self._put(topic, retries, messages, now_ms + _RETRY_MS)
            # It begins in a later turn of the loop, when the messages are in flight for it.
            task = start_job("dead letters", putting)
            try:
                self._state.redeliver(retries, _CLIENT, now_ms, _TIMEOUT_MS)
            except BaseException:
                task.cancel()
                raise
            self._puts.add(task)
            self._put_messages += len(messages)
            self._put_bytes += messages.nbytes
            task.add_done_callback(self._puts.discard)
        return alive, len(dead)

    async def _put(
        self, topic: str, retries: list[Retry], messages: pa.BinaryArray, again_ms: int
    ) -> None:
        done = False
        try:
            await self._dead_letters.put(topic, messages)
            done = True
        except PenstockError as error:
            _logger.warning("messages cannot be put into topic %s, tried again: %s", topic, error)
        except Exception:
            # The top of a task. The messages come again, as after any other failure.
            _logger.exception("messages cannot be put into topic %s, tried again", topic)
        finally:
            self._put_messages -= len(messages)
            self._put_bytes -= messages.nbytes
            if done:
                ids = np.array([retry.id for retry in retries], np.int64)
                self._state.finish(_CLIENT, ids)
                self.counters.dead_lettered += len(retries)
            elif not self._closed:
                for retry in retries:
                    self._state.requeue(_CLIENT, retry.id, again_ms)
            self._go_on()


def too_old(place: Slice, ttl_ms: int, now_ms: int) -> int:
    """Return how many of the first messages of a slice are too old; with a ttl of 0 none are."""
    if not ttl_ms:
        return 0
    latest_ns = (now_ms - ttl_ms) * _NANOSECONDS_PER_MS
    times_ns = place.times_ns
    if isinstance(times_ns, int):
        return place.end - place.start if times_ns <= latest_ns else 0
    return int(np.searchsorted(times_ns, latest_ns, side="right"))
