"""Records of the FlowFile repository: those of its journal and of its snapshots.

Owns their layout (msgpack, fields by position; new ones come last) and encoding. Does not own their
effect on the state (`repository_state`), nor the files (`journals`).

Invariant: one record is one commit, encoded by one call regardless of the number of FlowFiles; a
swap file is one record, regardless of its content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa

from penstock.core.errors import CorruptData
from penstock.flow.flowfile import FlowFile
from penstock.flow.repository.commit_note import CommitNote
from penstock.flow.swap.swap_file import SwapSummary
from penstock.storage.content.claims import ContentClaim, ResourceClaim

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

FORMAT_NUMBER: Final = 1

_CODEC: Final = pa.Codec("zstd", compression_level=3)
_ID_BYTES: Final = 8

ClaimCounts = list[tuple[ResourceClaim, int]]


class RowsDone(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a swap file that no longer hold a FlowFile.

    Attributes:
        name: Name of the file.
        rows: Row numbers; none of these rows was done before.
        claims: Number of these rows that refer to each resource claim, as far as known.
        damaged: The rows could not be read, and the file is to be kept aside once all its rows are
            done.
    """

    name: str
    rows: list[int]
    claims: ClaimCounts
    damaged: bool = False


class SwappedOut(msgspec.Struct, frozen=True, array_like=True):
    """Swap file that holds FlowFiles from now on.

    Attributes:
        name: Name of the file.
        summary: Its summary, so that recovery need not open the file.
        packed_ids: Ids of its rows, see `pack_ids`.
    """

    name: str
    summary: SwapSummary
    packed_ids: bytes


class CommitRecord(msgspec.Struct, frozen=True, array_like=True):
    """One commit.

    Attributes:
        number: Number of the commit; consecutive.
        durable: Number of the last commit that was durable when this one was written.
        puts: FlowFiles by queue.
        removes: Ids of removed FlowFiles.
        rows: Rows of swap files that no longer hold a FlowFile.
        written: Content that was written for this commit.
        swapped: A new swap file.
        states: State of processors; None deletes it.
        notes: Notes for the record of provenance; empty if it is not recorded.
    """

    number: int
    durable: int
    puts: dict[str, list[FlowFile]] = {}
    removes: list[int] = []
    rows: list[RowsDone] = []
    written: list[ContentClaim] = []
    swapped: SwappedOut | None = None
    states: dict[str, bytes | None] = {}
    notes: list[CommitNote] = []


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """Swap file in a snapshot.

    Attributes:
        name: Name of the file.
        summary: Its summary.
        packed_done: Rows that no longer hold a FlowFile, see `pack_rows`; empty: none.
        gone: Number of those rows that refer to each resource claim.
        damaged: Whether the file must be kept aside once all its rows are done.
    """

    name: str
    summary: SwapSummary
    packed_done: bytes
    gone: ClaimCounts
    damaged: bool


class SnapshotHead(msgspec.Struct, frozen=True, array_like=True):
    """First record of a snapshot.

    Attributes:
        format_number: Format number of the layout.
        number: Number of the last commit in it.
        next_id: Id of the next FlowFile.
        next_queue_index: See `FlowFile.queue_index`.
        next_file: Number of the next swap file.
        obsolete: Swap files to delete that may still exist; True: keep the file aside instead.
        states: State of processors.
    """

    format_number: int
    number: int
    next_id: int
    next_queue_index: int
    next_file: int
    obsolete: dict[str, bool]
    states: dict[str, bytes]


class SnapshotPart(msgspec.Struct, frozen=True, array_like=True):
    """Part of a snapshot; only the last one is marked as such."""

    puts: dict[str, list[FlowFile]] = {}
    files: list[FileState] = []
    last: bool = False


_decode_batch: Final = msgspec.msgpack.Decoder(CommitRecord).decode
_decode_head: Final = msgspec.msgpack.Decoder(SnapshotHead).decode
_decode_part: Final = msgspec.msgpack.Decoder(SnapshotPart).decode


def decode_batch(record: bytes, path: str) -> CommitRecord:
    """Return a commit; raise `CorruptData` with the path if the record is invalid."""
    try:
        return _decode_batch(record)
    except msgspec.MsgspecError as error:
        raise CorruptData(
            path, 0, f"contains an invalid commit record ({error}): restore a copy"
        ) from error


def decode_head(record: bytes, path: str) -> SnapshotHead:
    """Return a snapshot's head; raise `CorruptData` with the path if the record is invalid."""
    try:
        return _decode_head(record)
    except msgspec.MsgspecError as error:
        raise CorruptData(path, 0, f"is not a valid snapshot ({error}): restore a copy") from error


def decode_part(record: bytes, path: str) -> SnapshotPart:
    """Return a part of a snapshot; raise `CorruptData` with the path if the record is invalid."""
    try:
        return _decode_part(record)
    except msgspec.MsgspecError as error:
        raise CorruptData(path, 0, f"is not a valid snapshot ({error}): restore a copy") from error


def pack_ids(ids: Sequence[int]) -> bytes:
    """Return ids in compact form: compressed differences of consecutive ids."""
    deltas = np.diff(np.fromiter(ids, np.int64, len(ids)), prepend=np.int64(0))
    packed: bytes = _CODEC.compress(deltas.tobytes(), asbytes=True)
    return packed


def unpack_ids(packed: bytes, count: int) -> list[int]:
    """Return the ids that were packed."""
    raw = _CODEC.decompress(packed, _ID_BYTES * count)
    ids: list[int] = np.cumsum(np.frombuffer(raw, np.int64)).tolist()
    return ids


def pack_rows(done: npt.NDArray[np.bool_]) -> bytes:
    """Return a mask of rows in compact form."""
    packed: bytes = _CODEC.compress(np.packbits(done).tobytes(), asbytes=True)
    return packed


def unpack_rows(packed: bytes, count: int) -> npt.NDArray[np.bool_]:
    """Return the mask that was packed."""
    raw = _CODEC.decompress(packed, (count + 7) // 8)
    return np.unpackbits(np.frombuffer(raw, np.uint8), count=count).astype(np.bool_)
