"""Record of the imported rows of a NiFi swap file, in the journal, with the FlowFiles themselves.

Owns how a file is recognized, and which of its rows are imported. Does not own the import.

Invariants:

- A row is imported if and only if the commit that put its FlowFile records it.
- A FlowFile is recognized in every file of its queue by NiFi's record id and its uuid, because
  nodes of a cluster use the same record ids for different FlowFiles.
- A file is recognized by its summary and its first FlowFile. Its name, its folder, and whether the
  copy is complete do not matter.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar

import msgspec
import numpy as np

from penstock.core.errors import CorruptData
from penstock.flow.flowfile import UUID

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.swap.nifi.nifi_swap_file import NifiSwapSummary

T = TypeVar("T")

KEY: Final = "nifi-import"


class _Record(msgspec.Struct, array_like=True):
    rows: bytes  # a bit for each row, the first in the highest bit
    file: str  # for display
    connection: str
    flowfiles: bytes = b""  # marks of the imported FlowFiles, 8 bytes each


class _Files(msgspec.Struct, array_like=True):
    keys: list[str]  # of the records of all files of a queue


class ImportRecordSource(Protocol):
    """Storage of the record: the FlowFile repository."""

    def state(self, key: str) -> bytes | None:
        """Return the value that was committed last under a key."""
        ...


def key_of(summary: NifiSwapSummary, first: FlowFile) -> str:
    """Return the key of a file's record.

    Args:
        summary: Summary in the file.
        first: Its first FlowFile, which differs between files with equal summaries, as old formats
            create them.
    """
    fields = (
        summary.queue,
        summary.count,
        summary.size_bytes,
        summary.max_id,
        summary.min_queued_ms,
        summary.total_queued_ms,
        first.id,
        first.size,
        first.entry_ms,
        sorted(first.attributes.items()),
    )
    return f"{KEY}/{hashlib.sha256(msgspec.msgpack.encode(fields)).hexdigest()}"


def mark_of(flowfile: FlowFile) -> int:
    """Return the mark that identifies a FlowFile among those of its queue."""
    text = f"{flowfile.id} {flowfile.attributes.get(UUID, '')}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)


class QueueRecord:
    """FlowFiles of one NiFi queue that are imported, over all of its files.

    Args:
        states: Storage of the record.
        queue: Id of NiFi's queue.

    Attributes:
        key: Key of the list of files.
    """

    def __init__(self, states: ImportRecordSource, queue: str) -> None:
        self.key = f"{KEY}-queue/{hashlib.sha256(queue.encode()).hexdigest()}"
        kept = states.state(self.key)
        self._keys = [] if kept is None else _decoded(self.key, kept, _Files).keys
        self.done: set[int] = set()
        for key in self._keys:
            record = states.state(key)
            if record is not None:
                marks = _decoded(key, record, _Record).flowfiles
                self.done.update(np.frombuffer(marks, np.int64).tolist())

    def with_file(self, key: str) -> dict[str, bytes]:
        """Return the states to commit so that a file's record is found; empty if it already is."""
        if key in self._keys:
            return {}
        return {self.key: msgspec.msgpack.encode(_Files([*self._keys, key]))}

    def add(self, key: str, marks: Sequence[int]) -> None:
        """Record FlowFiles of a file as imported."""
        if key not in self._keys:
            self._keys.append(key)
        self.done.update(marks)


def _decoded(key: str, kept: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(kept, type=kind)
    except msgspec.MsgspecError as error:
        raise CorruptData(key, 0, f"the record of an import cannot be read: {error}") from error


class ImportRecord:
    """Imported rows of a file.

    Args:
        key: Key of the record.
        file: Name of the file, for display.
        connection: Connection of its FlowFiles, for display.
        done: Whether each row is imported.
        marks: Marks of the imported FlowFiles.

    Attributes:
        key: Key of the record.
    """

    def __init__(
        self,
        key: str,
        file: str,
        connection: str,
        done: npt.NDArray[np.bool_],
        marks: list[int],
    ) -> None:
        self.key = key
        self._marks = marks
        self._file = file
        self._connection = connection
        self._done = done

    @classmethod
    def load(
        cls, states: ImportRecordSource, key: str, file: str, connection: str, count: int
    ) -> Self:
        """Return the record of a file with `count` rows.

        Raises:
            CorruptData: The journal contains another value under this key.
        """
        done = np.zeros(count, np.bool_)
        marks: list[int] = []
        kept = states.state(key)
        if kept is not None:
            record = _decoded(key, kept, _Record)
            marks = np.frombuffer(record.flowfiles, np.int64).tolist()
            known = np.unpackbits(np.frombuffer(record.rows, np.uint8)).astype(np.bool_)
            # An incomplete copy of the file may have been imported before, or the complete one.
            done = np.zeros(max(count, len(known)), np.bool_)
            done[: len(known)] = known
        return cls(key, file, connection, done, marks)

    def left(self, count: int) -> list[int]:
        """Return which of the first `count` rows are not imported, the last first."""
        rows: list[int] = np.flatnonzero(~self._done[:count])[::-1].tolist()
        return rows

    def with_rows(self, rows: Sequence[int], marks: Sequence[int]) -> bytes:
        """Return the record's bytes with additional rows; call `add` once they are committed."""
        done = self._done.copy()
        done[rows] = True
        packed = np.packbits(done).tobytes()
        marks_bytes = np.array([*self._marks, *marks], np.int64).tobytes()
        return msgspec.msgpack.encode(_Record(packed, self._file, self._connection, marks_bytes))

    def add(self, rows: Sequence[int], marks: Sequence[int]) -> None:
        """Record rows as imported."""
        self._done[rows] = True
        self._marks += marks
