"""Admission of messages to a topic in memory.

Owns the limit of one stream partition, and which messages are deleted for new ones. Does not own
the messages (`queue`), nor the limit of all memory (`ledger`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.memory.budget import MemoryLedger
    from penstock.broker.memory.queue import MemoryQueue

_PARTITION_BYTES: Final = 33_554_432


def admitted(
    queue: MemoryQueue,
    batch: pa.BinaryArray,
    ledger: MemoryLedger,
    most_messages: int | None,
    is_wanted: Callable[[int, int], bool],
) -> pa.BinaryArray:
    """Return the part of a batch that fits, and reserve its memory.

    The newest messages are dropped, as in NSQ.

    Args:
        queue: The queue of the batch; it deletes unwanted messages and counts dropped ones.
        batch: The messages.
        ledger: Memory budget of all topics.
        most_messages: Maximum number of messages; None: limited only by bytes.
        is_wanted: Returns whether a reader still needs messages from one offset up to another.
    """
    spare = ledger.limit_bytes // 2 - ledger.held_bytes
    most = min(_PARTITION_BYTES, queue.size_bytes + spare) - batch.nbytes
    if queue.size_bytes > min(queue.retention.trim_above_bytes, most):
        queue.retention.trim(is_wanted)
    count = len(batch)
    if queue.size_bytes > most:
        count = 0
    elif most_messages is not None:
        count = min(count, max(0, most_messages))
    if count < len(batch):
        queue.retention.count_dropped(len(batch) - count)
        # A copy; otherwise the dropped messages would stay in memory.
        batch = pa.concat_arrays([batch[:count]])
    ledger.hold(queue, queue.size_bytes + batch.nbytes)
    return batch
