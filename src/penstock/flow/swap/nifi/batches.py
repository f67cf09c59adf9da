"""Reads the FlowFiles of one of NiFi's swap files in batches, up to where it is damaged.

Owns what both layouts do alike: what stands before damage is read, and how many are missing behind
it is known. Does not own the layouts (`reading`, `legacy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.core.errors import CorruptData
from penstock.flow.flowfile import FlowFile
from penstock.flow.swap.nifi.primitives import ByteReader, Cut


class FlowFileReading:
    """The part of `summary.NifiSwapFile` that both layouts share.

    Attributes:
        damage: Where the file is damaged; known when `batches` has come to its end.
        read_count: FlowFiles read so far.
        absent: Fields of FlowFiles that the file does not hold; they were filled in.
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
        """Return how many FlowFiles the file should hold and does not, when all was read."""
        return max(0, self._count - self.read_count)

    def batches(self, size: int) -> Iterator[list[FlowFile]]:
        """Read the FlowFiles, in the order of the file: NiFi writes the first to go last."""
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
        """Learn how many FlowFiles follow, by the number at a position.

        Raises:
            CorruptData: It is negative.
        """
        if count < 0:
            raise self._reader.corrupt(f"a count of {count} FlowFiles", position)
        self._count = count
