"""NiFi's swap files up to NiFi 1.0: no magic, and ten versions of one layout.

    int version   UTF connection   int count   long total bytes   [v>7: long greatest id]
    FlowFiles

Owns this layout. Does not own the later one (`schema_swap_file`).

Invariant: FlowFiles before the damage are read, and the number of missing ones is known.
"""

from __future__ import annotations

from typing import Final

from penstock.flow.flowfile import FlowFile
from penstock.flow.swap.nifi.nifi_swap_file import FlowFileBatches, NifiSwapSummary
from penstock.flow.swap.nifi.primitives import ByteReader, TruncatedInput
from penstock.storage.content.claims import ContentClaim, ResourceClaim

VERSION_MAX: Final = 10

_CREATE: Final = 1
# Fields that are not in every version, and the first version with them.
_SINCE: Final = {"lineage_start_ms": 2, "queued_ms": 6, "lineage_index": 9, "queue_index": 9}


class LegacySwapFile(FlowFileBatches):
    """File with this layout; see `summary.NifiSwapFile`.

    Args:
        name: Name of the file, for errors.
        data: Its bytes.
        now_ms: Time of entry into the queue for FlowFiles without one (versions before 6).

    Raises:
        CorruptData: It is not such a file, or is damaged before its FlowFiles begin.
    """

    def __init__(self, name: str, data: bytes, now_ms: int) -> None:
        super().__init__(ByteReader(name, data))
        reader = self._reader
        self._now_ms = now_ms
        try:
            self._version = reader.int32()
            if not 1 <= self._version <= VERSION_MAX:
                raise reader.corrupt(
                    "not a swap file: starts neither with SWAP nor with a version from 1 to 10", 0
                )
            connection = reader.utf()
            at = reader.position
            count, size_bytes = reader.int32(), reader.int64()
            max_id = reader.int64() if self._version > 7 else None
        except TruncatedInput as cut:
            raise reader.corrupt(str(cut), cut.position) from cut
        self._expect(count, at)
        self._read_one = self._flowfile
        self.format = f"legacy {self._version}"
        self.absent = frozenset(field for field, since in _SINCE.items() if self._version < since)
        self.summary = NifiSwapSummary(connection, count, size_bytes, max_id)

    def _flowfile(self, reader: ByteReader) -> FlowFile:
        version = self._version
        if version < 3:
            at = reader.position
            if not reader.data[at : at + 1]:
                raise TruncatedInput(at)
            if reader.data[at] != _CREATE:
                raise reader.corrupt(f"unexpected action {reader.data[at]}: expected {_CREATE}")
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
