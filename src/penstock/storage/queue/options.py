"""Options and statistics of a disk queue."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.errors import InvalidRequest
from penstock.storage.queue.blocks import BLOCK_LIMIT_BYTES
from penstock.storage.queue.producers import PRODUCERS_LIMIT


@dataclass(frozen=True, slots=True)
class DiskQueueOptions:
    """How a disk queue rolls, syncs and retains log files.

    Args:
        max_bytes_per_file: A log file is rolled before a block would exceed this. May change at any
            time; readers ignore it.
        sync_every_messages: An fsync begins when this many messages are not synced.
        sync_interval_ms: An fsync begins when the oldest message not synced is this old.
        sync_pause_ms: Minimum time between two fsyncs that no caller waits for.
        retention_ms: Keep consumed log files until their newest message is this old; None: keep.
        retention_bytes: Keep consumed log files while the queue is not larger; None: keep.
        max_block_bytes: A batch that makes a larger block is refused.
        max_producers: Number of producers whose last sequence numbers are remembered, 1 to 65,535.
        sync_in_background: False syncs on the appending thread, for tests; only the next append
            then checks the interval.
    """

    max_bytes_per_file: int = 100 * 1024 * 1024
    sync_every_messages: int = 2500
    sync_interval_ms: int = 2000
    sync_pause_ms: int = 10
    retention_ms: int | None = None
    retention_bytes: int | None = None
    max_block_bytes: int = 64 * 1024 * 1024
    max_producers: int = 1000
    sync_in_background: bool = True

    def __post_init__(self) -> None:
        for name in ("max_bytes_per_file", "sync_every_messages", "sync_interval_ms"):
            _check(name, getattr(self, name), 1)
        for name in ("sync_pause_ms", "retention_ms", "retention_bytes"):
            _check(name, getattr(self, name) or 0, 0)
        _check("max_block_bytes", self.max_block_bytes, 1, BLOCK_LIMIT_BYTES)
        _check("max_producers", self.max_producers, 1, PRODUCERS_LIMIT)


def _check(name: str, value: int, least: int, most: int | None = None) -> None:
    if value < least or (most is not None and value > most):
        span = f"at least {least}" if most is None else f"between {least} and {most}"
        raise InvalidRequest(f"is {value}: must be {span}", place=name)


@dataclass(frozen=True, slots=True)
class DiskQueueStatistics:
    """An immutable snapshot of a disk queue.

    Losses are those detected since it was opened: while recovering the last file, by readers, or by
    `verify`, which detects all. `torn_bytes` were cut off at opening. `messages_dropped` were
    deleted since it was opened to keep the queue within a limit.
    """

    earliest: int
    latest: int
    durable: int
    log_files: int
    bytes: int
    unsynced_messages: int
    messages_dropped: int
    messages_lost: int
    damaged_places: int
    bytes_quarantined: int
    torn_bytes: int
    cursors: dict[str, int]
    cursors_reset: int
    syncs: int
    sync_failures: int
    producers: int
    producers_forgotten: int
