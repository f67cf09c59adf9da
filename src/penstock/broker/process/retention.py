"""Periodic deletion of old log files.

Owns when a stream partition is checked. Does not own what may be deleted (`Retention.retain`) nor
which readers still need it (`Topic.held_back`).

Invariants: files are deleted beside the event loop; a round yields to the loop after every few
topics, and costs almost nothing for a stream partition with only its current log file.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError
from penstock.core.looptasks import run_on_thread
from penstock.core.rate_limited_log import SparseLog

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock

_logger = logging.getLogger(__name__)

_TOPICS_AT_ONCE: Final = 256


async def retain_now_and_then(topics: Iterable[Topic], interval_ms: int, clock: Clock) -> NoReturn:
    """Delete consumed and old messages periodically until cancelled.

    Args:
        topics: The topics; iterated again in each round.
        interval_ms: The pause between rounds.
        clock: For the age of log files.
    """
    trouble = SparseLog(_logger, clock)
    while True:
        await asyncio.sleep(interval_ms / 1000)
        for number, topic in enumerate(topics):
            if number % _TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
            await _retain(topic, clock, trouble)


async def _retain(topic: Topic, clock: Clock, trouble: SparseLog) -> None:
    for partition, queue in enumerate(topic.queues):
        try:
            if not queue.retention.has_work:
                continue
            held, consumed = topic.held_back(partition)
            retain = queue.retention.retain
            await run_on_thread(partial(retain, clock.now_ms(), held=held, consumed=consumed))
        except PenstockError as error:
            if not topic.closed:
                trouble.warning("%s: cannot check old log files: %s", topic.folder, error)
        except Exception:
            # The outermost handler of a task that must not end: otherwise the disk fills up.
            if not topic.closed:
                _logger.exception("%s: cannot check old log files", topic.folder)
