"""Fsync of data that a killed broker had not synced, by the next broker.

Owns the order. Queues and journals with new appends are synced soon anyway; without this module,
idle ones would stay unsynced.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.errors import Closed, PenstockError
from penstock.core.looptasks import run_on_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.topics.registry import Topics

_logger = logging.getLogger(__name__)


async def sync_leftovers(topics: Topics, going_on: Callable[[], bool]) -> None:
    """Fsync leftovers, if there are any; slow, beside other work.

    Args:
        topics: The topics, which know whether the previous broker was killed.
        going_on: Returns whether to continue; otherwise the next start begins again.
    """
    if not topics.left_unsynced or not await run_on_thread(partial(_sync_queues, topics, going_on)):
        return
    for topic in topics:
        for channel in tuple(topic.channels.values()):
            if not going_on():
                return
            try:
                await channel.keep(durable=True)
            except PenstockError as error:
                if topic.channels.get(channel.name) is channel:
                    _logger.warning("%s, %s: not synced yet: %s", topic.name, channel.name, error)
                    return
    topics.left_unsynced = False


def _sync_queues(topics: Topics, going_on: Callable[[], bool]) -> bool:
    """Fsync the queues, beside the event loop; False if some are not durable."""
    for topic in topics:
        for queue in topic.queues:
            if not going_on():
                return False
            if queue.durable < queue.latest:
                try:
                    queue.request_sync().result()
                except Closed:
                    continue  # the topic was deleted meanwhile
                except PenstockError as error:
                    _logger.warning("%s: not synced yet: %s", topic.folder, error)
                    return False
    return True
