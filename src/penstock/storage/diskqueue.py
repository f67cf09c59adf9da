"""The durable queue of one stream partition: a folder of log files with one writer process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from penstock.core.clock import Clock, SystemClock
from penstock.storage.blocks import Block, OffsetRange
from penstock.storage.filesystem import FileSystem, OsFileSystem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class DiskQueueOptions:
    """How a disk queue rolls, syncs and keeps.

    Args:
        max_bytes_per_file: A log file is rolled before a block would pass this. May change at any
            time.
        sync_every_messages: An fsync starts when this many messages are not synced.
        sync_interval_ms: An fsync starts when the oldest message not synced is this old.
        retention_ms: Keep consumed log files until their newest message is this old; None: keep.
        retention_bytes: Keep consumed log files while the queue is not larger; None: keep.
        max_block_bytes: A batch larger than this is refused.
        sync_in_background: False syncs on the appending thread, as the tests need it; the interval
            is then only looked at by the next append.
    """

    max_bytes_per_file: int = 100 * 1024 * 1024
    sync_every_messages: int = 2500
    sync_interval_ms: int = 2000
    retention_ms: int | None = None
    retention_bytes: int | None = None
    max_block_bytes: int = 64 * 1024 * 1024
    sync_in_background: bool = True


@dataclass(frozen=True, slots=True)
class DiskQueueStatistics:
    """An immutable snapshot of a disk queue."""

    earliest: int
    latest: int
    durable: int
    log_files: int
    bytes: int
    unsynced_messages: int
    messages_lost: int
    damaged_places: int
    bytes_quarantined: int
    torn_bytes: int
    cursors: dict[str, int]
    cursors_reset: int
    syncs: int
    sync_failures: int


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What one call of `retain` deleted, and the cursor that holds back the next file, if any."""

    files_deleted: int
    bytes_deleted: int
    earliest: int
    held_back_by: str | None


class Cursor:
    """A named reader's position, which holds retention back."""

    @property
    def position(self) -> int:
        """Return the offset of the next message to read."""
        raise NotImplementedError

    def advance(self, offset: int) -> None:
        """Move forward to `offset`; a lower one changes nothing. Saved with the next sync."""
        raise NotImplementedError

    def seek(self, offset: int) -> None:
        """Move to any offset between earliest and latest."""
        raise NotImplementedError

    def delete(self) -> None:
        """Forget the cursor durably."""
        raise NotImplementedError


class DiskQueue:
    """See `docs/seams.md`: the interface; the implementation follows."""

    @classmethod
    def open(
        cls,
        folder: str,
        options: DiskQueueOptions | None = None,
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Open or create the queue in `folder`."""
        raise NotImplementedError(folder, options, fs or OsFileSystem(), clock or SystemClock())

    @property
    def earliest(self) -> int:
        """Return the offset of the first message that is kept."""
        raise NotImplementedError

    @property
    def latest(self) -> int:
        """Return the offset the next message gets."""
        raise NotImplementedError

    @property
    def durable(self) -> int:
        """Return the offset below which everything is fsynced."""
        raise NotImplementedError

    def append(
        self, messages: Sequence[bytes] | pa.BinaryArray, *, durable: bool = False
    ) -> OffsetRange:
        """Append a batch as one block; all or nothing."""
        raise NotImplementedError

    def sync(self) -> int:
        """Fsync now, shared by all waiters; return `durable`."""
        raise NotImplementedError

    def request_sync(self) -> Future[int]:
        """Ask for an fsync without waiting; the future gives `durable`."""
        raise NotImplementedError

    def read(self, offset: int, max_bytes: int) -> list[Block]:
        """Return whole blocks from the one that holds `offset` on; at least one if there is one."""
        raise NotImplementedError

    def offset_at(self, time_ms: int) -> int:
        """Return the first offset appended at or after a wall time; `latest` when none was."""
        raise NotImplementedError

    def cursor(self, name: str, start: Literal["earliest", "latest"] | int = "earliest") -> Cursor:
        """Return the named cursor, made at `start` when there is none."""
        raise NotImplementedError

    def retain(self, now_ms: int) -> RetentionReport:
        """Delete log files behind every cursor and outside the window."""
        raise NotImplementedError

    def statistics(self) -> DiskQueueStatistics:
        """Return a snapshot."""
        raise NotImplementedError

    def close(self) -> None:
        """Sync, save the cursors, release the folder. Closing twice is fine."""
        raise NotImplementedError
