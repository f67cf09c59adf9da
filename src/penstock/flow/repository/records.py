"""What the FlowFile repository writes: the records of its journal and of its snapshots.

Owns their layout (msgpack, fields by position; new ones come last) and encoding. Does not own what
they do to the state (`state`), nor the files (`journals`).

Invariant: one record is one commit, encoded in one call however many FlowFiles are in it; a swap
file is one record, whatever it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa

from penstock.core.errors import CorruptData
from penstock.flow.flowfile import FlowFile
from penstock.flow.swap.swapfile import SwapSummary
from penstock.storage.content.claims import ContentClaim, ResourceClaim

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

FORMAT_NUMBER: Final = 1

_CODEC: Final = pa.Codec("zstd", compression_level=3)
_ID_BYTES: Final = 8

ClaimCounts = list[tuple[ResourceClaim, int]]


class RowsDone(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a swap file that are not the home of a FlowFile any more.

    Attributes:
        name: Of the file.
        rows: Their numbers; none of them was done before.
        claims: How many of them refer to each resource claim, as far as known.
        damaged: They could not be read, and the file is to be kept aside when it is done with.
    """

    name: str
    rows: list[int]
    claims: ClaimCounts
    damaged: bool = False


class SwappedOut(msgspec.Struct, frozen=True, array_like=True):
    """A swap file that is the home of FlowFiles from now on.

    Attributes:
        name: Of the file.
        summary: Its summary, so that a start need not open the file.
        packed_ids: The ids of its rows, see `pack_ids`.
    """

    name: str
    summary: SwapSummary
    packed_ids: bytes


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """One commit.

    Attributes:
        number: Of the commit; each is one more than the one before.
        durable: The number up to which commits were durable when this one was written.
        puts: FlowFiles by queue.
        removes: Ids of FlowFiles that are gone.
        rows: Rows done with.
        written: Content that was written for this commit.
        swapped: A new swap file.
        states: State of processors; None deletes it.
    """

    number: int
    durable: int
    puts: dict[str, list[FlowFile]] = {}
    removes: list[int] = []
    rows: list[RowsDone] = []
    written: list[ContentClaim] = []
    swapped: SwappedOut | None = None
    states: dict[str, bytes | None] = {}


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """What a snapshot says of a swap file.

    Attributes:
        name: Of the file.
        summary: Its summary.
        packed_done: Which rows are done with, see `pack_rows`; empty: none.
        gone: How many of those refer to each resource claim.
        damaged: It is to be kept aside when it is done with.
    """

    name: str
    summary: SwapSummary
    packed_done: bytes
    gone: ClaimCounts
    damaged: bool


class SnapshotHead(msgspec.Struct, frozen=True, array_like=True):
    """What a snapshot begins with.

    Attributes:
        format_number: Of the layout.
        number: Of the last commit in it.
        next_id: The id that the next FlowFile gets.
        next_queue_index: See `FlowFile.queue_index`.
        next_file: The number that the next swap file gets.
        leaving: Swap files that are done with and may be there still; True: kept aside.
        states: State of processors.
    """

    format_number: int
    number: int
    next_id: int
    next_queue_index: int
    next_file: int
    leaving: dict[str, bool]
    states: dict[str, bytes]


class SnapshotPart(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a snapshot; the last one, and only it, says so."""

    puts: dict[str, list[FlowFile]] = {}
    files: list[FileState] = []
    last: bool = False


_decode_batch: Final = msgspec.msgpack.Decoder(Batch).decode
_decode_head: Final = msgspec.msgpack.Decoder(SnapshotHead).decode
_decode_part: Final = msgspec.msgpack.Decoder(SnapshotPart).decode


def decode_batch(record: bytes, path: str) -> Batch:
    """Return a commit; `CorruptData` with the path if it is none."""
    try:
        return _decode_batch(record)
    except msgspec.MsgspecError as error:
        raise CorruptData(path, 0, f"a record is no commit ({error}): restore a copy") from error


def decode_head(record: bytes, path: str) -> SnapshotHead:
    """Return a snapshot's head; `CorruptData` with the path if it is none."""
    try:
        return _decode_head(record)
    except msgspec.MsgspecError as error:
        raise CorruptData(path, 0, f"is no snapshot ({error}): restore a copy") from error


def decode_part(record: bytes, path: str) -> SnapshotPart:
    """Return a piece of a snapshot; `CorruptData` with the path if it is none."""
    try:
        return _decode_part(record)
    except msgspec.MsgspecError as error:
        raise CorruptData(path, 0, f"is no snapshot ({error}): restore a copy") from error


def pack_ids(ids: Sequence[int]) -> bytes:
    """Return ids in few bytes: what each is more than the one before, compressed."""
    deltas = np.diff(np.fromiter(ids, np.int64, len(ids)), prepend=np.int64(0))
    packed: bytes = _CODEC.compress(deltas.tobytes(), asbytes=True)
    return packed


def unpack_ids(packed: bytes, count: int) -> list[int]:
    """Return the ids that were packed."""
    raw = _CODEC.decompress(packed, _ID_BYTES * count)
    ids: list[int] = np.cumsum(np.frombuffer(raw, np.int64)).tolist()
    return ids


def pack_rows(done: npt.NDArray[np.bool_]) -> bytes:
    """Return a mask of rows in few bytes."""
    packed: bytes = _CODEC.compress(np.packbits(done).tobytes(), asbytes=True)
    return packed


def unpack_rows(packed: bytes, count: int) -> npt.NDArray[np.bool_]:
    """Return the mask that was packed."""
    raw = _CODEC.decompress(packed, (count + 7) // 8)
    return np.unpackbits(np.frombuffer(raw, np.uint8), count=count).astype(np.bool_)
