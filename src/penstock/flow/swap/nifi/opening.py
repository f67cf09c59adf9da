"""Opens one of NiFi's swap files, whatever wrote it."""

from __future__ import annotations

from penstock.core.errors import CorruptData
from penstock.flow.swap.nifi.legacy import LegacySwapFile
from penstock.flow.swap.nifi.reading import MAGIC, SchemaSwapFile
from penstock.flow.swap.nifi.summary import NifiSwapFile


def open_nifi_swap(name: str, data: bytes, *, now_ms: int) -> NifiSwapFile:
    """Read what stands before the FlowFiles.

    Args:
        name: The file, for errors.
        data: Its bytes.
        now_ms: When FlowFiles count as queued that do not say it.

    Raises:
        CorruptData: It is no swap file of NiFi's, or is damaged before its FlowFiles begin.
    """
    if len(data) < len(MAGIC):
        raise CorruptData(name, len(data), "no swap file: it has less than 4 bytes")
    if data.startswith(MAGIC):
        return SchemaSwapFile(name, data)
    return LegacySwapFile(name, data, now_ms)
