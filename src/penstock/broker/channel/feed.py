"""The messages of one stream partition for its channels: new ones from memory, others from disk.

Owns a window of the newest batches as they were appended, and the last few pieces that were read
from the disk, for channels whose positions are close to each other. Does not own the messages (the
queue) nor the positions of readers (`channel`).

Invariants: used on the broker's event loop only; cached messages may be released at any time if the
broker is short of memory (`penstock.broker.memory`); the disk is read on another thread, one piece
at a time; a slice reports every missing message.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa

from penstock.broker.memory.memory_budget import MemoryBudget
from penstock.core.clock import SystemClock
from penstock.core.errors import Closed, PenstockError
from penstock.core.loop_tasks import call_each, run_on_thread, start_job
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.storage.queue.log_files import OffsetsDeleted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from penstock.storage.queue.disk_queue import Block

_logger = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 1 << 21  # very small blocks need far more memory than disk space
_DELIVERY_BYTES: Final = 1 << 20
_SLICE_BYTES: Final = 512  # memory of a batch in addition to its messages
_UNBOUNDED: Final = 1 << 62
_PIECES: Final = 8
_RETRY_S: Final = 1.0
_NANOSECONDS_PER_MS: Final = 1_000_000


class MessageSource(Protocol):
    """Source of messages that are not in memory: a `DiskQueue`."""

    @property
    def latest(self) -> int:
        """Return the offset that the next message gets."""
        ...

    def read(self, offset: int, max_bytes: int) -> list[Block]:
        """Return whole blocks, starting with the one that contains the offset."""
        ...


class SubscribedTopic(Protocol):
    """A topic, as seen by its channels."""

    @property
    def feeds(self) -> Sequence[Feed]:
        """The messages of each stream partition."""
        ...

    def fed(self, partition: int) -> int:
        """Return the offset up to which its channels may have its messages."""
        ...

    def position(self) -> tuple[int, ...]:
        """Return `fed` of each stream partition."""
        ...


@dataclass(frozen=True, slots=True)
class Slice:
    """The messages [start, end), or the information that they no longer exist.

    Attributes:
        start: Offset of the first.
        end: The offset after the last.
        messages: Their bodies; None if they were lost or deleted.
        times_ns: Times of their appends, epoch nanoseconds: a scalar for all, or an array.
        due_ms: Their due time, epoch ms; 0: at once.
        deleted: They were deleted, not lost by the disk.
    """

    start: int
    end: int
    messages: pa.BinaryArray | None
    times_ns: int | npt.NDArray[np.int64] = 0
    due_ms: int = 0
    deleted: bool = False

    def part(self, start: int, end: int) -> Slice:
        """Return the part [start, end) of these messages."""
        if self.messages is None:
            return Slice(start, end, None, deleted=self.deleted)
        times = self.times_ns
        if not isinstance(times, int):
            times = times[start - self.start : end - self.start]
        messages = self.messages.slice(start - self.start, end - start)
        return Slice(start, end, messages, times, self.due_ms)


_LET_GO: Final = Slice(0, 0, None)


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """Options of the messages that topics keep in memory for their channels.

    Attributes:
        keep_messages: Number of the newest messages of a topic; 0: none.
        keep_bytes: Maximum bytes of these, for each stream partition.
        budget: Memory budget of all topics.
        failure_log: Logs failed reads of all topics.
    """

    keep_messages: int = 10_000
    keep_bytes: int = 8 << 20
    budget: MemoryBudget = field(default_factory=lambda: MemoryBudget(_UNBOUNDED))
    failure_log: RateLimitedLog = field(
        default_factory=lambda: RateLimitedLog(_logger, SystemClock())
    )

    def feeds(self, sources: Sequence[MessageSource]) -> tuple[Feed, ...]:
        """Return a feed for each stream partition of a topic."""
        share = -(-self.keep_messages // max(1, len(sources)))
        # A single feed must not use the whole budget.
        keep_bytes = min(self.keep_bytes, self.budget.limit_bytes // 4)
        return tuple(
            Feed(source, share, keep_bytes, self.budget, self.failure_log) for source in sources
        )


class Feed:
    """The messages of one stream partition.

    Args:
        source: The queue.
        keep_messages: Number of the newest messages kept in memory.
        keep_bytes: Maximum bytes of these, and of pieces read from the disk.
        budget: Memory budget of all feeds.
        failure_log: Logs failed reads.
    """

    def __init__(
        self,
        source: MessageSource,
        keep_messages: int,
        keep_bytes: int,
        budget: MemoryBudget | None = None,
        failure_log: RateLimitedLog | None = None,
    ) -> None:
        self._source = source
        self._budget = budget or MemoryBudget(_UNBOUNDED)
        self._failure_log = failure_log or RateLimitedLog(_logger, SystemClock())
        self._keep_messages = keep_messages
        self._keep_bytes = keep_bytes
        self._newest: list[Slice] = []
        self._starts: list[int] = []
        self._sizes: list[int] = []
        self._head = 0  # earlier entries of the three lists have been released
        self._bytes = 0
        self._pieces: OrderedDict[int, list[Slice]] = OrderedDict()
        self._piece_bytes: dict[int, int] = {}
        self._waiting: dict[Callable[[], None], None] = {}
        self._reading: asyncio.Task[None] | None = None

    @property
    def end(self) -> int:
        """Return the offset that the next message gets."""
        return self._source.latest

    @property
    def oldest(self) -> int:
        """Return the first offset in memory; the end if there is none."""
        return self._newest[self._head].start if self._head < len(self._newest) else self.end

    def appended(
        self, start: int, messages: pa.BinaryArray, time_ms: int, size_bytes: int, due_ms: int = 0
    ) -> None:
        """Add a batch that was just appended.

        Raises only exceptions that end the program: the batch is stored, and if it cannot be kept
        here, it is read from the disk.
        """
        try:
            self._keep(start, messages, time_ms, size_bytes, due_ms)
        except BaseException as error:
            self.forget()
            if not isinstance(error, Exception):
                raise
            self._failure_log.warning("cannot keep published messages in memory: %r", error)

    def _keep(
        self, start: int, messages: pa.BinaryArray, time_ms: int, size_bytes: int, due_ms: int
    ) -> None:
        if self._newest and self._newest[-1].end != start:
            self.forget()
        if not self._keep_messages:
            return
        size_bytes += _SLICE_BYTES
        end = start + len(messages)
        self._newest.append(Slice(start, end, messages, time_ms * _NANOSECONDS_PER_MS, due_ms))
        self._starts.append(start)
        self._sizes.append(size_bytes)
        self._bytes += size_bytes
        while self._head < len(self._newest) - 1 and (
            self._bytes > self._keep_bytes
            or end - self._newest[self._head].start > self._keep_messages
        ):
            self._bytes -= self._sizes[self._head]
            self._newest[self._head] = _LET_GO  # frees the memory now, and list entries in bulk
            self._head += 1
        if self._head > 1024 and self._head > len(self._newest) // 2:
            del self._newest[: self._head], self._starts[: self._head], self._sizes[: self._head]
            self._head = 0
        self._report_held()

    def forget(self) -> None:
        """Release all memory after the queue was cleared."""
        self.release()
        self._report_held()

    def release(self) -> None:
        """Release everything: messages that are needed again are read from the disk."""
        self._newest, self._starts, self._sizes = [], [], []
        self._head = self._bytes = 0
        self._pieces.clear()
        self._piece_bytes.clear()

    def _report_held(self) -> None:
        self._budget.cache(self, self._bytes + sum(self._piece_bytes.values()))

    def slice(self, start: int, end: int) -> Slice | None:
        """Return messages from `start` up to `end`, at least one; None: not in memory.

        They take at most one mebibyte, unless a single message is larger. Batches that were
        appended separately are joined; a deferred or lost batch is returned by itself.
        """
        if start >= end:
            return None
        # Messages that were appended while there was no channel are not in the window.
        newest = self._newest
        if self._head < len(newest) and newest[self._head].start <= start < newest[-1].end:
            return _bounded(self._joined(start, end))
        for key, piece in self._pieces.items():
            if piece[0].start <= start < piece[-1].end:
                self._pieces.move_to_end(key)
                index = bisect_right(piece, start, key=lambda part: part.start) - 1
                found = piece[index]
                return _bounded(found.part(start, min(end, found.end)))
        return None

    def when_read(self, offset: int, callback: Callable[[], None]) -> None:
        """Read the messages at an offset from the disk, and call back when they are in memory."""
        if self._reading is None:
            self._reading = start_job("channel read", self._read(offset))
        self._waiting[callback] = None

    def close(self) -> None:
        """Drop all callbacks, and release the memory."""
        self._waiting.clear()
        if self._reading is not None:
            self._reading.cancel()
        self.forget()

    def _joined(self, start: int, end: int) -> Slice:
        index = bisect_right(self._starts, start, lo=self._head) - 1
        first = self._newest[index]
        stop = index + 1
        size = self._sizes[index]
        if not first.due_ms:
            while stop < len(self._newest) and self._newest[stop].start < end:
                if self._newest[stop].due_ms or size > _DELIVERY_BYTES:
                    break
                size += self._sizes[stop]
                stop += 1
        if stop == index + 1:
            return first.part(start, min(end, first.end))
        parts = self._newest[index:stop]
        whole = Slice(
            first.start,
            parts[-1].end,
            pa.concat_arrays([part.messages for part in parts if part.messages is not None]),
            np.repeat(
                np.array([part.times_ns for part in parts], np.int64),
                [part.end - part.start for part in parts],
            ),
        )
        return whole.part(start, min(end, whole.end))

    async def _read(self, offset: int) -> None:
        try:
            try:
                piece = await run_on_thread(partial(self._read_piece, offset))
                self._keep_piece(offset, piece)
            except Closed:
                self._waiting.clear()  # the topic was deleted
            except PenstockError as error:
                self._failure_log.warning("cannot read offset %d, will retry: %s", offset, error)
                await asyncio.sleep(_RETRY_S)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self._failure_log.warning("cannot read offset %d, will retry: %r", offset, error)
                # Before any end of this job, because the channels below request the same read.
                await asyncio.sleep(_RETRY_S)
                if not isinstance(error, Exception):
                    raise
        finally:
            # In every case, waiting channels check again, and request another read if needed.
            self._reading = None
            waiting, self._waiting = self._waiting, {}
            call_each(waiting)

    def _keep_piece(self, offset: int, piece: list[Slice]) -> None:
        try:
            self._piece_bytes[offset] = sum(map(_size_bytes, piece))
            self._pieces[offset] = piece
            while len(self._pieces) > 1 and (
                len(self._pieces) > _PIECES or sum(self._piece_bytes.values()) > self._keep_bytes
            ):
                gone, _ = self._pieces.popitem(last=False)
                del self._piece_bytes[gone]
            self._report_held()
        except BaseException:
            self.forget()  # both tables must contain the same pieces
            raise

    def _read_piece(self, offset: int) -> list[Slice]:
        latest = self._source.latest
        try:
            blocks: Sequence[Block] = self._source.read(offset, _READ_BYTES)
        except OffsetsDeleted as error:
            return [Slice(offset, error.earliest, None, deleted=True)]
        piece: list[Slice] = []
        position = offset
        size = 0
        for block in blocks:
            if size > _PIECE_BYTES:
                break
            if block.base_offset > position:
                piece.append(Slice(position, block.base_offset, None))
            position = block.base_offset + block.count
            piece.append(
                Slice(
                    block.base_offset,
                    position,
                    block.messages,
                    block.append_time_ms * _NANOSECONDS_PER_MS,
                    block.due_ms,
                )
            )
            size += _size_bytes(piece[-1])
        return piece or [Slice(offset, latest, None)]


def _size_bytes(part: Slice) -> int:
    return _SLICE_BYTES + (0 if part.messages is None else part.messages.nbytes)


def _bounded(found: Slice) -> Slice:
    """Limit messages to the size of one delivery, at least one message."""
    messages = found.messages
    if messages is None or messages.nbytes <= _DELIVERY_BYTES:
        return found
    count = len(messages)
    starts = np.frombuffer(messages.buffers()[1], np.int32, count + 1, messages.offset * 4)
    fitting = int(np.searchsorted(starts, int(starts[0]) + _DELIVERY_BYTES, side="right")) - 1
    return found.part(found.start, found.start + min(count, max(1, fitting)))
