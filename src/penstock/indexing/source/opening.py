"""From where a stream is to the stream that is read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.indexing.source.folder import FolderSupplier
from penstock.indexing.source.kafka import KafkaSupplier
from penstock.indexing.source.topic import TopicSupplier

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.indexing.kafkasettings import Settings
    from penstock.indexing.ports import BrokerPort
    from penstock.indexing.source.kafka import KafkaAdmin, KafkaLog
    from penstock.indexing.source.supplier import RecordSupplier
    from penstock.indexing.streamplace import StreamPlace
    from penstock.storage.filesystem import FileSystem


def open_source(
    place: StreamPlace, broker: BrokerPort, fs: FileSystem, clock: Clock
) -> RecordSupplier:
    """Return a stream as supervisors and tasks see it; nothing is asked of it yet."""
    if place.type == "folder":
        return FolderSupplier(fs, clock, place.name, place.pattern)
    if place.type == "kafka":
        return KafkaSupplier(KafkaClients(), clock, place.name, place.properties, os.environ)
    return TopicSupplier(broker, clock, place.name)


class KafkaClients:
    """Reaches clusters with the client that is installed, looked for only when it is needed."""

    def admin(self, settings: Settings) -> KafkaAdmin:
        """Return a client that asks."""
        from penstock.indexing.source.kafka.confluent import ConfluentAdmin  # noqa: PLC0415

        return ConfluentAdmin(settings)

    def log(
        self, settings: Settings, topic: str, partition: int, start: int, *, whole: bool = False
    ) -> KafkaLog:
        """Return a client that reads."""
        from penstock.indexing.source.kafka.confluent import ConfluentLog  # noqa: PLC0415

        return ConfluentLog(settings, topic, partition, start, whole=whole)
