"""What a broker that was killed had not synced: made durable by the next one.

Owns the order. Whoever appends to a queue or a journal has it synced soon; those that nobody writes
to any more would stay as the kill left them.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.errors import Closed, PenstockError
from penstock.core.looptasks import run_on_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.topics.folder import Topics

_logger = logging.getLogger(__name__)


async def sync_leftovers(topics: Topics, going_on: Callable[[], bool]) -> None:
    """Make durable what was left, if anything was; slow, beside everything else.

    Args:
        topics: The topics, which know whether the last broker was killed.
        going_on: Says whether to go on; otherwise the next start begins anew.
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
    """Make durable what queues hold, beside the event loop; False when not all of it is."""
    for topic in topics:
        for queue in topic.queues:
            if not going_on():
                return False
            if queue.durable < queue.latest:
                try:
                    queue.request_sync().result()
                except Closed:
                    continue  # deleted meanwhile
                except PenstockError as error:
                    _logger.warning("%s: not synced yet: %s", topic.folder, error)
                    return False
    return True
