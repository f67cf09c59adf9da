"""What a topic in memory has room for.

Owns how much one stream partition may have, and what gives way to new messages. Does not own the
messages (`queue`), nor the bound of all memory (`ledger`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.memory.ledger import MemoryLedger
    from penstock.broker.memory.queue import MemoryQueue

_PARTITION_BYTES: Final = 33_554_432


def admitted(
    queue: MemoryQueue,
    batch: pa.BinaryArray,
    ledger: MemoryLedger,
    most_messages: int | None,
    is_wanted: Callable[[int, int], bool],
) -> pa.BinaryArray:
    """Return what of a batch there is room for, and hold so much; the newest go, as in NSQ.

    Args:
        queue: Where it goes; it lets go of what nobody wants, and counts what there is no room for.
        batch: The messages.
        ledger: What all topics together may hold.
        most_messages: No more than so many; None: as many as there are bytes for.
        is_wanted: Says whether somebody still wants messages from one offset up to another.
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
        # A copy, or what went would still be held.
        batch = pa.concat_arrays([batch[:count]])
    ledger.hold(queue, queue.size_bytes + batch.nbytes)
    return batch
