"""What of a NiFi swap file was imported: kept in the journal, with the FlowFiles themselves.

Owns how a file is known again and which of its rows are done. Does not own the import.

Invariants:

- A row is done when the commit that put its FlowFile says so; one cannot be without the other.
- A file is known again by what it says of itself and by its first FlowFile: its name, where it
  lies, and whether the copy is whole make no difference.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Protocol, Self

import msgspec
import numpy as np

from penstock.core.errors import CorruptData

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.swap.nifi.summary import NifiSwapSummary

KEY: Final = "nifi-import"


class _Record(msgspec.Struct, array_like=True):
    rows: bytes  # a bit for each row, the first in the highest bit
    file: str  # for people
    connection: str


class States(Protocol):
    """Where it is kept: the FlowFile repository."""

    def state(self, key: str) -> bytes | None:
        """Return what was committed last under a key."""
        ...


def key_of(summary: NifiSwapSummary, first: FlowFile) -> str:
    """Return the key of a file's record.

    Args:
        summary: What the file says of itself.
        first: Its first FlowFile; of two files that say the same of themselves, as old formats
            make them, it is another.
    """
    told = (
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
    return f"{KEY}/{hashlib.sha256(msgspec.msgpack.encode(told)).hexdigest()}"


class ImportRecord:
    """Which rows of a file are done.

    Args:
        key: Of the record.
        file: Name of the file, for people.
        connection: Where its FlowFiles go, for people.
        done: By row.

    Attributes:
        key: Of the record.
    """

    def __init__(self, key: str, file: str, connection: str, done: npt.NDArray[np.bool_]) -> None:
        self.key = key
        self._file = file
        self._connection = connection
        self._done = done

    @classmethod
    def load(cls, states: States, key: str, file: str, connection: str, count: int) -> Self:
        """Return what is known of a file with so many rows.

        Raises:
            CorruptData: The journal has something else under this key.
        """
        done = np.zeros(count, np.bool_)
        kept = states.state(key)
        if kept is not None:
            try:
                record = msgspec.msgpack.decode(kept, type=_Record)
            except msgspec.MsgspecError as error:
                raise CorruptData(key, 0, f"the record of an import cannot be read: {error}") from (
                    error
                )
            known = np.unpackbits(np.frombuffer(record.rows, np.uint8)).astype(np.bool_)
            # A copy of the file that was cut may have been imported before, or the whole one.
            done = np.zeros(max(count, len(known)), np.bool_)
            done[: len(known)] = known
        return cls(key, file, connection, done)

    def left(self, count: int) -> list[int]:
        """Return which of the first so many rows are not done, the last first."""
        rows: list[int] = np.flatnonzero(~self._done[:count])[::-1].tolist()
        return rows

    def with_rows(self, rows: Sequence[int]) -> bytes:
        """Return the record's bytes with some more rows done; `add` them when it is committed."""
        done = self._done.copy()
        done[rows] = True
        packed = np.packbits(done).tobytes()
        return msgspec.msgpack.encode(_Record(packed, self._file, self._connection))

    def add(self, rows: Sequence[int]) -> None:
        """Note that rows are done."""
        self._done[rows] = True
