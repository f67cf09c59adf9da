"""The messages of one stream partition for its channels: new ones from memory, others from disk.

Owns a window of the newest batches as they were appended, and the last few pieces that were read
from the disk, for channels that are behind about as far as each other. Does not own the messages
(the queue) nor who has read what (`channel`).

Invariants: used on the broker's event loop only; what is kept may be let go at any time, when the
broker's memory is short (`penstock.broker.memory`); the disk is read beside it, one piece at a
time; a slice never leaves a message out without saying so.
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

from penstock.broker.memory.ledger import MemoryLedger
from penstock.core.clock import SystemClock
from penstock.core.errors import Closed, PenstockError
from penstock.core.looptasks import call_each, run_on_thread, start_job
from penstock.core.sparselog import SparseLog
from penstock.storage.logfiles import OffsetsDeleted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from penstock.storage.diskqueue import Block

_logger = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 1 << 21  # very small blocks take far more in memory than on the disk
_DELIVERY_BYTES: Final = 1 << 20
_SLICE_BYTES: Final = 512  # what a batch of one takes beside its message
_UNBOUNDED: Final = 1 << 62
_PIECES: Final = 8
_RETRY_S: Final = 1.0
_NANOSECONDS_PER_MS: Final = 1_000_000


class MessageSource(Protocol):
    """Where a feed reads what it has not in memory: a `DiskQueue`."""

    @property
    def latest(self) -> int:
        """Return the offset that the next message gets."""
        ...

    def read(self, offset: int, max_bytes: int) -> list[Block]:
        """Return whole blocks from the one that holds the offset on."""
        ...


class FeedingTopic(Protocol):
    """A topic, as its channels see it."""

    @property
    def feeds(self) -> Sequence[Feed]:
        """Return the messages of each stream partition."""
        ...

    def fed(self, partition: int) -> int:
        """Return the offset up to which its channels may have its messages."""
        ...

    def position(self) -> tuple[int, ...]:
        """Return `fed` of each stream partition."""
        ...


@dataclass(frozen=True, slots=True)
class Slice:
    """The messages [start, end), or that they are gone.

    Attributes:
        start: Offset of the first.
        end: The offset after the last.
        messages: Their bodies; None when they were lost or deleted.
        times_ns: When they were appended, epoch nanoseconds: of all, or of each.
        due_ms: When they are due, epoch ms; 0: at once.
        deleted: They are gone because they were deleted, not because the disk lost them.
    """

    start: int
    end: int
    messages: pa.BinaryArray | None
    times_ns: int | npt.NDArray[np.int64] = 0
    due_ms: int = 0
    deleted: bool = False

    def part(self, start: int, end: int) -> Slice:
        """Return the messages of [start, end) among these."""
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
    """What topics keep in memory for their channels.

    Attributes:
        keep_messages: Newest messages of a topic; 0: none.
        keep_bytes: Most bytes of these, for each stream partition.
        ledger: Bounds what all topics keep.
        trouble: Logs for all topics that messages cannot be read.
    """

    keep_messages: int = 10_000
    keep_bytes: int = 8 << 20
    ledger: MemoryLedger = field(default_factory=lambda: MemoryLedger(_UNBOUNDED))
    trouble: SparseLog = field(default_factory=lambda: SparseLog(_logger, SystemClock()))

    def feeds(self, sources: Sequence[MessageSource]) -> tuple[Feed, ...]:
        """Return what feeds the channels of a topic from its stream partitions."""
        share = -(-self.keep_messages // max(1, len(sources)))
        # One alone must not take all.
        keep_bytes = min(self.keep_bytes, self.ledger.limit_bytes // 4)
        return tuple(
            Feed(source, share, keep_bytes, self.ledger, self.trouble) for source in sources
        )


class Feed:
    """The messages of one stream partition.

    Args:
        source: The queue.
        keep_messages: Newest messages that are kept in memory.
        keep_bytes: Most bytes of these; and of what was read from the disk.
        ledger: Bounds what all feeds keep.
        trouble: Logs that messages cannot be read.
    """

    def __init__(
        self,
        source: MessageSource,
        keep_messages: int,
        keep_bytes: int,
        ledger: MemoryLedger | None = None,
        trouble: SparseLog | None = None,
    ) -> None:
        self._source = source
        self._ledger = ledger or MemoryLedger(_UNBOUNDED)
        self._trouble = trouble or SparseLog(_logger, SystemClock())
        self._keep_messages = keep_messages
        self._keep_bytes = keep_bytes
        self._newest: list[Slice] = []
        self._starts: list[int] = []
        self._sizes: list[int] = []
        self._head = 0  # what stands before it in the three lists is forgotten
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
        """Return the offset from which on messages are in memory; the end if none are."""
        return self._newest[self._head].start if self._head < len(self._newest) else self.end

    def appended(
        self, start: int, messages: pa.BinaryArray, time_ms: int, size_bytes: int, due_ms: int = 0
    ) -> None:
        """Take note of a batch that was appended just now.

        Raises nothing but what ends the program: the batch stands, and what cannot be kept here is
        read from the disk.
        """
        try:
            self._keep(start, messages, time_ms, size_bytes, due_ms)
        except BaseException as error:
            self.forget()
            if not isinstance(error, Exception):
                raise
            self._trouble.warning("what was published is not kept in memory: %r", error)

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
            self._newest[self._head] = _LET_GO  # its memory goes now, its place when there are many
            self._head += 1
        if self._head > 1024 and self._head > len(self._newest) // 2:
            del self._newest[: self._head], self._starts[: self._head], self._sizes[: self._head]
            self._head = 0
        self._tell_ledger()

    def forget(self) -> None:
        """Forget what is in memory, after the queue was cleared."""
        self.shed()
        self._tell_ledger()

    def shed(self) -> None:
        """Let go of everything: what is needed again is read from the disk."""
        self._newest, self._starts, self._sizes = [], [], []
        self._head = self._bytes = 0
        self._pieces.clear()
        self._piece_bytes.clear()

    def _tell_ledger(self) -> None:
        self._ledger.cache(self, self._bytes + sum(self._piece_bytes.values()))

    def slice(self, start: int, end: int) -> Slice | None:
        """Return messages from `start` on, `end` at most, at least one; None: not in memory.

        They take a mebibyte at most, unless one message does. Messages that were appended one by
        one come together; a batch that is deferred, or lost, comes alone.
        """
        if start >= end:
            return None
        # What was appended while there was no channel is not among the newest.
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
        """Read the place of an offset from the disk, and call back when it is in memory."""
        if self._reading is None:
            self._reading = start_job("channel read", self._read(offset))
        self._waiting[callback] = None

    def close(self) -> None:
        """Wake nobody any more."""
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
                self._waiting.clear()  # the topic is gone
            except PenstockError as error:
                self._trouble.warning("offset %d cannot be read, tried again: %s", offset, error)
                await asyncio.sleep(_RETRY_S)
            except Exception as error:  # noqa: BLE001 - the top of a task
                self._trouble.warning("offset %d cannot be read, tried again: %r", offset, error)
                await asyncio.sleep(_RETRY_S)
        finally:
            # Whatever happened: channels that wait look again, and ask again.
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
            self._tell_ledger()
        except BaseException:
            self.forget()  # both tables name the same pieces
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
    """Return as many of the messages as a consumer may be sent at once, at least one."""
    messages = found.messages
    if messages is None or messages.nbytes <= _DELIVERY_BYTES:
        return found
    count = len(messages)
    starts = np.frombuffer(messages.buffers()[1], np.int32, count + 1, messages.offset * 4)
    fitting = int(np.searchsorted(starts, int(starts[0]) + _DELIVERY_BYTES, side="right")) - 1
    return found.part(found.start, found.start + min(count, max(1, fitting)))
