"""From where a stream is to the stream that is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.indexing.source.folder import FolderSupplier
from penstock.indexing.source.topic import TopicSupplier

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.indexing.ports import BrokerPort
    from penstock.indexing.source.supplier import RecordSupplier
    from penstock.indexing.streamplace import StreamPlace
    from penstock.storage.filesystem import FileSystem


def open_source(
    place: StreamPlace, broker: BrokerPort, fs: FileSystem, clock: Clock
) -> RecordSupplier:
    """Return a stream as supervisors and tasks see it; nothing is asked of it yet."""
    if place.type == "folder":
        return FolderSupplier(fs, clock, place.name, place.pattern)
    return TopicSupplier(broker, place.name)
