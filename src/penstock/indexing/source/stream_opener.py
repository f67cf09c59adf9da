"""Opens the stream at a given place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.indexing.source.folder import FolderSupplier
from penstock.indexing.source.kafka import KafkaSupplier
from penstock.indexing.source.topic_supplier import TopicSupplier
from penstock.storage.secrets.secret_sources import SECRETS

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.indexing.kafka_settings import Settings
    from penstock.indexing.ports import BrokerPort
    from penstock.indexing.source.kafka import KafkaAdmin, KafkaLog
    from penstock.indexing.source.record_supplier import RecordSupplier
    from penstock.indexing.stream_location import StreamLocation
    from penstock.storage.filesystem import FileSystem


def open_source(
    place: StreamLocation, broker: BrokerPort, fs: FileSystem, clock: Clock
) -> RecordSupplier:
    """Return a supplier for a stream, without contacting its source."""
    if place.type == "folder":
        return FolderSupplier(fs, clock, place.name, place.pattern)
    if place.type == "kafka":
        return KafkaSupplier(KafkaClients(), clock, place.name, place.properties, SECRETS.get())
    return TopicSupplier(broker, clock, place.name)


class KafkaClients:
    """Creates Kafka clients with the installed library, which is imported on first use."""

    def admin(self, settings: Settings) -> KafkaAdmin:
        """Return a client for queries."""
        from penstock.indexing.source.kafka.client import ConfluentAdmin  # noqa: PLC0415

        return ConfluentAdmin(settings)

    def log(
        self, settings: Settings, topic: str, partition: int, start: int, *, whole: bool = False
    ) -> KafkaLog:
        """Return a client that reads a partition."""
        from penstock.indexing.source.kafka.client import ConfluentLog  # noqa: PLC0415

        return ConfluentLog(settings, topic, partition, start, whole=whole)
