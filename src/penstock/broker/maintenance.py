"""Periodic and start-up maintenance of the broker's disk queues.

Owns three jobs: fsyncing the queues and journals that a killed broker left unsynced (no other code
syncs them if nothing is appended to them); the rounds that delete old, consumed log files; and the
size limits of topics, at which publishes are refused or the oldest messages are dropped. Does not
own which files may be deleted (`Retention.retain`), which messages are still needed
(`Topic.held_back`) or the limits (`penstock.broker.topics.options`).

Invariants: files are deleted and synced outside the event loop, one pass for a stream partition
at a time. A round uses the event loop for a few topics at a time and costs almost nothing for a
stream partition with a single log file. Before a publish is refused, everything that all
channels have passed is deleted. Messages that a channel or cursor still needs are dropped only
if the topic's options allow it, and are then counted.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from penstock.broker.topics.options import WhenFull
from penstock.core.backoff import RetryPolicy
from penstock.core.errors import Closed, PenstockError, Unavailable
from penstock.core.loop_tasks import call_each, run_on_thread, start_job
from penstock.core.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import NoReturn

    from penstock.broker.channel.channel import Channel
    from penstock.broker.memory.memory_queue import MessageQueue
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_registry import Topics
    from penstock.core.clock import Clock


_logger = logging.getLogger(__name__)


# Pauses between attempts to sync unsynced data on a disk that fails.
_LEFTOVER_RETRIES: Final = RetryPolicy(1_000, 60_000)


async def sync_leftovers(topics: Topics, may_continue: Callable[[], bool], clock: Clock) -> None:
    """Fsync the queues and journals that a killed broker left unsynced, if any, in the background.

    Retries until all are durable or deleted. A queue or journal that cannot be synced
    does not delay the others.

    Args:
        topics: The topics, which know whether the previous broker was killed.
        may_continue: Returns whether to continue; after a stop, the next start repeats the work.
        clock: For the log.
    """
    if not topics.left_unsynced:
        return
    failure_log = RateLimitedLog(_logger, clock)
    queues = [(topic, queue) for topic in topics for queue in topic.queues]
    channels = [(topic, channel) for topic in topics for channel in topic.channels.values()]
    for attempt in itertools.count(1):
        queues = await run_on_thread(partial(_sync_queues, queues, may_continue, failure_log))
        channels = [
            one for one in channels if not await _sync_channel(*one, may_continue, failure_log)
        ]
        if not may_continue():
            return
        if not queues and not channels:
            topics.left_unsynced = False
            return
        await asyncio.sleep(_LEFTOVER_RETRIES.delay_ms(attempt) / 1_000)


def _sync_queues(
    queues: Iterable[tuple[Topic, MessageQueue]],
    may_continue: Callable[[], bool],
    failure_log: RateLimitedLog,
) -> list[tuple[Topic, MessageQueue]]:
    """Fsync queues on another thread; return those that are not durable yet."""
    left: list[tuple[Topic, MessageQueue]] = []
    for topic, queue in queues:
        if may_continue() and queue.durable < queue.latest:
            try:
                queue.request_sync().result()
            except Closed:
                pass  # the topic was deleted meanwhile
            except PenstockError as error:
                if not topic.closed:
                    failure_log.warning("%s: not synced yet: %s", topic.folder, error)
                    left.append((topic, queue))
    return left


async def _sync_channel(
    topic: Topic, channel: Channel, may_continue: Callable[[], bool], failure_log: RateLimitedLog
) -> bool:
    """Fsync the journal of a channel; return whether it is durable or was deleted."""
    if not may_continue():
        return False
    try:
        await channel.keep(durable=True)
    except PenstockError as error:
        # The channels of a deleted topic are closed, but still belong to it.
        if topic.channels.get(channel.name) is channel and not topic.closed:
            failure_log.warning("%s, %s: not synced yet: %s", topic.name, channel.name, error)
            return False
    return True


_TOPICS_AT_ONCE: Final = 256


async def retention_rounds(topics: Iterable[Topic], interval_ms: int, clock: Clock) -> NoReturn:
    """Delete consumed and old messages periodically until cancelled.

    Args:
        topics: The topics; iterated again in each round.
        interval_ms: The pause between rounds.
        clock: For the age of log files.
    """
    failure_log = RateLimitedLog(_logger, clock)
    while True:
        await asyncio.sleep(interval_ms / 1000)
        for number, topic in enumerate(topics):
            if number % _TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
            await _retain(topic, clock, failure_log)


async def _retain(topic: Topic, clock: Clock, failure_log: RateLimitedLog) -> None:
    for partition, queue in enumerate(topic.queues):
        try:
            if not queue.retention.has_work:
                continue
            held, consumed = topic.held_back(partition)
            retain = queue.retention.retain
            await run_on_thread(partial(retain, clock.now_ms(), held=held, consumed=consumed))
        except PenstockError as error:
            if not topic.closed:
                failure_log.warning("%s: cannot check old log files: %s", topic.folder, error)
        except Exception:
            # The outermost handler of a task that must not end: otherwise the disk fills up.
            if not topic.closed:
                _logger.exception("%s: cannot check old log files", topic.folder)


_PAUSE_S: Final = 0.1


class SizeBounds:
    """Enforces the size limits of one broker's topics.

    Args:
        clock: For the pauses, and the age of log files.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._passes: dict[tuple[Topic, int], asyncio.Task[None]] = {}
        # Weak keys, so that nothing remains of deleted topics.
        self._idle_until_s: WeakKeyDictionary[Topic, dict[int, float]] = WeakKeyDictionary()

    def require(self, topic: Topic, partition: int, count: int, size_bytes: int) -> None:
        """Accept messages if they fit, and start deleting files early enough.

        Raises:
            Unavailable: The topic is full.
        """
        share = topic.options.share_bytes(len(topic.queues))
        if not share:
            return
        queue = topic.queues[partition]
        size = queue.size_bytes + size_bytes
        file_bytes = queue.options.max_bytes_per_file
        if size <= share - file_bytes:
            return
        self._begin(topic, partition)
        drops = topic.options.when_full is WhenFull.DROP_OLDEST
        # Unsynced messages cannot be deleted, so dropping may lag; publishers wait for it first.
        if size <= (share + 2 * file_bytes if drops else share):
            return
        topic.messages_refused += count
        if drops and size_bytes > 2 * file_bytes:
            remedy = f"publish at most {2 * file_bytes} bytes at once, or raise max_bytes"
        else:
            remedy = "publish again when consumers have made progress, or raise max_bytes"
        raise Unavailable(
            f"topic {topic.name} is full: stream partition {partition} may have {share} bytes of "
            f"max_bytes={topic.options.max_bytes}: {remedy}"
        )

    def when_room(self, topic: Topic, size_bytes: int) -> Awaitable[object] | None:
        """Return the running deletion to await; None: a wait is not needed or would not help."""
        if topic.options.when_full is not WhenFull.DROP_OLDEST:
            return None
        share = topic.options.share_bytes(len(topic.queues))
        for partition, queue in enumerate(topic.queues):
            spare = 2 * queue.options.max_bytes_per_file
            if share and size_bytes <= spare and queue.size_bytes + size_bytes > share:
                self._begin(topic, partition)
                running = self._passes.get((topic, partition))
                if running is not None:
                    return asyncio.wait([running])
        return None

    async def stop(self) -> None:
        """Wait until no pass runs."""
        while self._passes:
            await asyncio.wait(tuple(self._passes.values()))

    def _begin(self, topic: Topic, partition: int) -> None:
        key = (topic, partition)
        idle_until_s = self._idle_until_s.get(topic, {}).get(partition, 0.0)
        if key in self._passes or self._clock.monotonic_s() < idle_until_s:
            return
        self._passes[key] = start_job("size bound", self._pass(topic, partition))

    async def _pass(self, topic: Topic, partition: int) -> None:
        key = (topic, partition)
        try:
            before = topic.queues[partition].size_bytes
            await _free(topic, partition, self._clock)
            waits = topic.options.when_full is not WhenFull.DROP_OLDEST
            if waits and topic.queues[partition].size_bytes >= before:
                # Otherwise each publish would start a pass until a reader makes progress.
                self._pause(topic, partition)
        except Closed:
            pass
        except PenstockError as error:
            self._pause(topic, partition)
            _logger.warning("topic %s: cannot free disk space: %s", topic.name, error)
        except Exception:
            # The outermost handler of a task: the next publish starts another pass.
            self._pause(topic, partition)
            _logger.exception("topic %s: cannot free disk space", topic.name)
        finally:
            del self._passes[key]

    def _pause(self, topic: Topic, partition: int) -> None:
        until_s = self._clock.monotonic_s() + _PAUSE_S
        self._idle_until_s.setdefault(topic, {})[partition] = until_s


async def _free(topic: Topic, partition: int, clock: Clock) -> None:
    queue = topic.queues[partition]
    # Only synced messages can be deleted.
    await asyncio.wrap_future(queue.request_sync())
    held, consumed = topic.held_back(partition)
    retain = partial(queue.retention.retain, clock.now_ms(), held=held, consumed=consumed)
    await run_on_thread(retain)
    share = topic.options.share_bytes(len(topic.queues))
    if not share or topic.options.when_full is not WhenFull.DROP_OLDEST:
        return
    # Below the size at which the next pass begins.
    most_bytes = share - 2 * queue.options.max_bytes_per_file
    if await run_on_thread(partial(queue.retention.drop_oldest, most_bytes)):
        earliest = queue.earliest
        call_each(
            [
                partial(channel.trim_below, partition, earliest)
                for channel in topic.channels.values()
            ]
        )
