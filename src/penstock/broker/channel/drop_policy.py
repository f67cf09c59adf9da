"""Policy for messages that a channel drops, and the options of a channel.

Owns which messages are dropped (expired, over the maximum number of attempts, over the backlog
limit, lost or deleted), their counters, and the transfer of dead letters to their topic.
`ChannelOptions` has the settings of a channel. Does not own when a message is checked
(`channel`) or how it is finished (`channel_state`).

Invariants: used on the broker's event loop only. A dead letter is finished here once it is
durable in the other topic; until then it is in flight without a connection, so a crash returns
it to this channel. The number of dead letters in transfer is bounded; further ones wait.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa

from penstock.broker.channel.in_flight import DEAD_LETTERS
from penstock.core.errors import PenstockError
from penstock.core.loop_tasks import start_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.channel.channel_state import ChannelState, Redelivery
    from penstock.broker.channel.feed import Slice


_logger = logging.getLogger(__name__)

_NANOSECONDS_PER_MS: Final = 1_000_000
_TIMEOUT_MS: Final = 3_600_000
_RETRY_MS: Final = 1_000
_PUT_BYTES_MAX: Final = 4 << 20
_PUT_MESSAGES_MAX: Final = 10_000


class DeadLetterStore(Protocol):
    """Receiver of messages with too many delivery attempts."""

    async def put(self, topic: str, messages: pa.BinaryArray) -> None:
        """Append messages to a topic, which is created if it does not exist.

        Raises:
            PenstockError: The append failed; nothing was appended.
        """
        ...


@dataclass(slots=True)
class ChannelCounters:
    """Counters since the start of the broker.

    Attributes:
        journal_damaged: 1 if the journal was damaged or missing at the start, so that finished
            messages are delivered again.
    """

    lost: int = 0
    expired: int = 0
    dead_lettered: int = 0
    out_of_attempts: int = 0
    trimmed: int = 0
    journal_damaged: int = 0


class DropPolicy:
    """Drops the messages of one channel.

    Args:
        state: State of the channel's messages.
        dead_letters: Receives messages with too many delivery attempts.
    """

    def __init__(
        self,
        state: ChannelState,
        dead_letters: DeadLetterStore,
    ) -> None:
        self.counters = ChannelCounters()
        self._state = state
        self._dead_letters = dead_letters
        self._closed = False
        self._puts: set[asyncio.Task[None]] = set()
        self._begun: list[asyncio.Task[None]] = []
        self._put_messages = 0
        self._put_bytes = 0

    def close(self) -> None:
        """Stop. Messages under way to another topic also stay in this channel."""
        self._closed = True
        for task in self._puts:
            task.cancel()

    def begun_transfers(self) -> list[asyncio.Task[None]]:
        """Return the transfers of dead letters begun since the last call; each ends by itself.

        When one has ended, the channel's state has changed, and further transfers may begin.
        """
        begun, self._begun = self._begun, []
        return begun

    def count_missing(self, place: Slice) -> None:
        """Count messages that no longer exist."""
        count = place.end - place.start
        if place.deleted:
            # Deleted because of a size bound: no other deletion removes unread messages.
            self.counters.trimmed += count
        else:
            self.counters.lost += count

    def trim_backlog(self, ends: Sequence[int], max_backlog: int) -> None:
        """Limit the backlog of an ephemeral channel by dropping the newest messages, as in NSQ."""
        for partition, end in enumerate(ends):
            progress = self._state.progress[partition]
            over = end - progress.next - max_backlog
            if over > 0:
                over = progress.fresh(end) - max_backlog
            if over > 0:
                # The limit was not exceeded before, so these messages follow all dropped ones.
                self._state.skip(partition, max(end - over, progress.next), end)
                self.counters.trimmed += over

    def dead_letter(
        self, found: list[tuple[Redelivery, Slice]], options: ChannelOptions, now_ms: int
    ) -> tuple[list[tuple[Redelivery, Slice]], int]:
        """Give up messages with too many attempts; return the others and the number given up.

        If too many dead letters are under way already, these messages stay as they are until a
        transfer has ended.
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
            self.counters.out_of_attempts += len(dead)
        elif self._put_messages >= _PUT_MESSAGES_MAX or self._put_bytes >= _PUT_BYTES_MAX:
            return alive, 0
        else:
            messages = pa.concat_arrays([place.messages for _, place in dead])
            putting = self._put(topic, retries, messages, now_ms + _RETRY_MS)
            # It begins in a later iteration of the loop, when the messages are in flight for it.
            task = start_job("dead letters", putting)
            try:
                self._state.redeliver(retries, DEAD_LETTERS, now_ms, _TIMEOUT_MS)
            except BaseException:
                task.cancel()
                raise
            self._puts.add(task)
            self._begun.append(task)
            self._put_messages += len(messages)
            self._put_bytes += messages.nbytes
            task.add_done_callback(self._puts.discard)
        return alive, len(dead)

    async def _put(
        self, topic: str, retries: list[Redelivery], messages: pa.BinaryArray, again_ms: int
    ) -> None:
        done = False
        try:
            await self._dead_letters.put(topic, messages)
            done = True
        except PenstockError as error:
            _logger.warning("cannot append messages to topic %s, will retry: %s", topic, error)
        except Exception:
            # The outermost handler of a task. The messages are retried, as after any other failure.
            _logger.exception("cannot append messages to topic %s, will retry", topic)
        finally:
            self._put_messages -= len(messages)
            self._put_bytes -= messages.nbytes
            if done:
                ids = np.array([retry.id for retry in retries], np.int64)
                self._state.finish(DEAD_LETTERS, ids)
                self.counters.dead_lettered += len(retries)
            elif not self._closed:
                for retry in retries:
                    self._state.requeue(DEAD_LETTERS, retry.id, again_ms)


def too_old(place: Slice, ttl_ms: int, now_ms: int) -> int:
    """Return how many messages at the beginning of a slice expired; with a TTL of 0, none."""
    if not ttl_ms:
        return 0
    latest_ns = (now_ms - ttl_ms) * _NANOSECONDS_PER_MS
    times_ns = place.times_ns
    if isinstance(times_ns, int):
        return place.end - place.start if times_ns <= latest_ns else 0
    return int(np.searchsorted(times_ns, latest_ns, side="right"))


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """Options of a channel.

    Attributes:
        max_attempts: Maximum deliveries of a message before it is given up; 0 means unlimited.
        dead_letter_topic: Topic that receives such messages; None: they are dropped and counted.
        message_ttl_ms: Age at which a message expires; 0: never.
        requeue_on_disconnect: Requeue a consumer's messages as soon as it disconnects, instead of
            after their time-out.
        max_backlog: Maximum backlog of an ephemeral channel; the newest messages beyond are
            dropped.
    """

    max_attempts: int = 0
    dead_letter_topic: str | None = None
    message_ttl_ms: int = 0
    requeue_on_disconnect: bool = True
    max_backlog: int = 10_000
