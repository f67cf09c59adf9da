"""Common types of NiFi's swap files: summary, file name and batches of FlowFiles.

`NifiSwapSummary` has what a file states about itself, which is not checked against its content.
`NifiSwapFile` is the protocol of an open file. `FlowFileBatches` is the part that all layouts
share: it reads FlowFiles in batches up to a damaged byte and reports how many are missing.
`NifiSwapName` parses a file name (NiFi 1.x and 2.x), and `recovery_order` sorts files as NiFi
recovers them: by time, those without a time last.

    <milliseconds>-<queue uuid>-<random uuid>[.<partition>].swap[.part]

Does not own the layouts (`schema_swap_file`, `legacy`) or the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.core.errors import CorruptData
from penstock.flow.flowfile import FlowFile
from penstock.flow.swap.nifi.primitives import ByteReader, TruncatedInput
from penstock.storage.content.claims import ResourceClaim


@dataclass(frozen=True, slots=True)
class NifiSwapSummary:
    """Summary in the file, which is not checked against its content.

    Attributes:
        queue: Id of the connection.
        count: Number of FlowFiles.
        size_bytes: Sum of their content sizes.
        max_id: Highest id; -1 if there is none, None if the format does not contain it.
        min_queued_ms: When the first was queued; None if the format does not contain it.
        total_queued_ms: Sum of these times; None if the format does not contain it.
        resource_claims: Number of FlowFiles that refer to each content file; empty in formats
            before 1.1.
    """

    queue: str
    count: int
    size_bytes: int
    max_id: int | None = None
    min_queued_ms: int | None = None
    total_queued_ms: int | None = None
    resource_claims: dict[ResourceClaim, int] = field(default_factory=dict)


class NifiSwapFile(Protocol):
    """Open NiFi swap file.

    Attributes:
        format: Its format, such as `schema V3` or `legacy 9`.
        summary: Its summary.
        damage: Position of the damage; known when `batches` has ended.
        read_count: FlowFiles read so far.
        absent: Fields of FlowFiles that the file does not contain; they were filled in.
    """

    absent: frozenset[str]
    format: str
    summary: NifiSwapSummary
    damage: CorruptData | None
    read_count: int

    @property
    def missing_count(self) -> int:
        """Return the number of FlowFiles that are missing in the file, after all were read."""
        ...

    def batches(self, size: int) -> Iterator[list[FlowFile]]:
        """Read the FlowFiles, in the order of the file: NiFi writes the first of the queue last."""
        ...


_NAME: Final = re.compile(r"(\d+)-([^/]*?)(?:\.[^/]+)?\.swap(\.part)?")
_OWNED_PIECES: Final = 6


@dataclass(frozen=True, slots=True)
class NifiSwapName:
    """Parts of a name.

    Attributes:
        written_ms: When it was written, epoch milliseconds.
        queue: Id of its queue; None in names of NiFi before 1.0.
        unfinished: Whether the write was not finished: NiFi deletes such a file when it starts.
    """

    written_ms: int
    queue: str | None
    unfinished: bool

    @classmethod
    def parse(cls, name: str) -> NifiSwapName | None:
        """Parse a file name without its folder; return None if NiFi would ignore the file."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        pieces = f"{found[1]}-{found[2]}".split("-")
        queue = "-".join(pieces[1:_OWNED_PIECES]) if len(pieces) > _OWNED_PIECES else None
        return cls(int(found[1]), queue, found[3] is not None)


def recovery_order(path: str) -> tuple[bool, int, str]:
    """Return the sort key for NiFi's order of recovery: by time, files without a time last."""
    name = NifiSwapName.parse(path.rpartition("/")[2])
    return (name is None, name.written_ms if name else 0, path)


class FlowFileBatches:
    """Part of `summary.NifiSwapFile` that both layouts share.

    Attributes:
        damage: Position of the damage; known when `batches` has ended.
        read_count: FlowFiles read so far.
        absent: Fields of FlowFiles that the file does not contain; they were filled in.
    """

    _read_one: Callable[[ByteReader], FlowFile]

    def __init__(self, reader: ByteReader) -> None:
        self.damage: CorruptData | None = None
        self.read_count = 0
        self.absent: frozenset[str] = frozenset()
        self._reader = reader
        self._count = 0

    @property
    def missing_count(self) -> int:
        """Return the number of FlowFiles that are missing in the file, after all were read."""
        return max(0, self._count - self.read_count)

    def batches(self, size: int) -> Iterator[list[FlowFile]]:
        """Read the FlowFiles, in the order of the file: NiFi writes the first of the queue last."""
        reader, read = self._reader, self._read_one
        batch: list[FlowFile] = []
        for _ in range(self._count):
            start = reader.position
            try:
                batch.append(read(reader))
            except TruncatedInput as cut:
                self.damage = reader.corrupt(str(cut), start)
                break
            except CorruptData as error:
                self.damage = error
                break
            if len(batch) == size:
                self.read_count += size
                yield batch
                batch = []
        self.read_count += len(batch)
        if batch:
            yield batch

    def _expect(self, count: int, position: int) -> None:
        """Record the number of following FlowFiles, read at a position.

        Raises:
            CorruptData: The number is negative.
        """
        if count < 0:
            raise self._reader.corrupt(f"invalid count of {count} FlowFiles", position)
        self._count = count
