"""Opens NiFi swap files of any version."""

from __future__ import annotations

from penstock.core.errors import CorruptData
from penstock.flow.swap.nifi.legacy import LegacySwapFile
from penstock.flow.swap.nifi.reading import MAGIC, SchemaSwapFile
from penstock.flow.swap.nifi.summary import NifiSwapFile


def open_nifi_swap(name: str, data: bytes, *, now_ms: int) -> NifiSwapFile:
    """Read a file up to its FlowFiles.

    Args:
        name: Name of the file, for errors.
        data: Its bytes.
        now_ms: Time of entry into the queue for FlowFiles without one.

    Raises:
        CorruptData: It is not a NiFi swap file, or is damaged before its FlowFiles begin.
    """
    if len(data) < len(MAGIC):
        raise CorruptData(name, len(data), "not a swap file: it has less than 4 bytes")
    if data.startswith(MAGIC):
        return SchemaSwapFile(name, data)
    return LegacySwapFile(name, data, now_ms)
