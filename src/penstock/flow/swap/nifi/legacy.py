"""NiFi's swap files up to 1.0: no magic, and ten versions of one layout.

    int version   UTF connection   int count   long total bytes   [v>7: long greatest id]
    FlowFiles

Owns this layout. Does not own what came after it (`reading`).

Invariant: what stands before damage is read, and how many are missing behind it is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.core.errors import CorruptData
from penstock.flow.flowfile import FlowFile
from penstock.flow.swap.nifi.primitives import ByteReader, Cut
from penstock.flow.swap.nifi.summary import NifiSwapSummary
from penstock.storage.content.claims import ContentClaim, ResourceClaim

VERSION_MAX: Final = 10

_CREATE: Final = 1


class LegacySwapFile:
    """A file of this kind; see `summary.NifiSwapFile`.

    Args:
        name: The file, for errors.
        data: Its bytes.
        now_ms: When FlowFiles count as queued that do not say it (versions before 6).

    Raises:
        CorruptData: It is no such file, or is damaged before its FlowFiles begin.
    """

    def __init__(self, name: str, data: bytes, now_ms: int) -> None:
        self.damage: CorruptData | None = None
        self.read_count = 0
        self._now_ms = now_ms
        self._reader = reader = ByteReader(name, data)
        try:
            self._version = reader.int32()
            if not 1 <= self._version <= VERSION_MAX:
                raise reader.corrupt("no swap file: neither SWAP nor a version from 1 to 10", 0)
            connection = reader.utf()
            at = reader.position
            count, size_bytes = reader.int32(), reader.int64()
            max_id = reader.int64() if self._version > 7 else None
        except Cut as cut:
            raise reader.corrupt(str(cut), cut.position) from cut
        if count < 0:
            raise reader.corrupt(f"{count} FlowFiles", at)
        self.format = f"legacy {self._version}"
        self.summary = NifiSwapSummary(connection, count, size_bytes, max_id)

    @property
    def missing_count(self) -> int:
        """Return how many FlowFiles the file should hold and does not, when all was read."""
        return max(0, self.summary.count - self.read_count)

    def batches(self, size: int) -> Iterator[list[FlowFile]]:
        """Read the FlowFiles, in the order of the file: NiFi writes the first to go last."""
        batch: list[FlowFile] = []
        for _ in range(self.summary.count):
            start = self._reader.position
            try:
                batch.append(self._flowfile())
            except Cut as cut:
                self.damage = self._reader.corrupt(str(cut), start)
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

    def _flowfile(self) -> FlowFile:
        reader, version = self._reader, self._version
        if version < 3:
            at = reader.position
            if not reader.data[at : at + 1]:
                raise Cut(at)
            if reader.data[at] != _CREATE:
                raise reader.corrupt(f"action {reader.data[at]}, not {_CREATE}")
            reader.skip(1)
        number, entry_ms = reader.int64(), reader.int64()
        lineage_ms, lineage_index = entry_ms, 0
        queued_ms, queue_index = self._now_ms, 0
        if version > 1:
            if version < 10:
                for _ in range(reader.count(2)):
                    reader.utf()
            lineage_ms = reader.int64()
            if version > 8:
                lineage_index = reader.int64()
            if version > 5:
                queued_ms = reader.int64()
                if version > 8:
                    queue_index = reader.int64()
        size = reader.int64()
        if version < 3:
            reader.lstr()
        claim, offset = self._claim(size) if reader.boolean() else (None, 0)
        if version < 3:
            reader.boolean()
        attributes = {}
        for _ in range(reader.count(4)):
            name = reader.lstr()
            attributes[name] = reader.lstr()
        return FlowFile(
            number,
            attributes,
            size,
            claim,
            offset,
            entry_ms,
            lineage_ms,
            lineage_index,
            queued_ms,
            queue_index,
        )

    def _claim(self, size: int) -> tuple[ContentClaim, int]:
        reader, version = self._reader, self._version
        identifier = str(reader.int64()) if version < 5 else reader.utf()
        container, section = reader.utf(), reader.utf()
        position, length = (reader.int64(), reader.int64()) if version >= 6 else (0, -1)
        offset = reader.int64()
        loss_tolerant = reader.boolean() if version >= 4 else False
        resource = ResourceClaim(identifier, container, section, loss_tolerant)
        return ContentClaim(resource, position, length if length >= 0 else offset + size), offset
