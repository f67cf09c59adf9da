"""Reads the FlowFiles of a NiFi swap file in batches, up to the first damage.

Owns the common part of both layouts: FlowFiles before the damage are read, and the number of
missing ones is known. Does not own the layouts (`reading`, `legacy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.core.errors import CorruptData
from penstock.flow.flowfile import FlowFile
from penstock.flow.swap.nifi.primitives import ByteReader, Cut


class FlowFileReading:
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
            except Cut as cut:
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
