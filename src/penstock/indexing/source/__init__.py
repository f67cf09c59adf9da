"""Sources of streams: topics of Penstock's broker, Kafka topics, folders of growing files."""

from penstock.indexing.source.factory import KafkaClients, open_source
from penstock.indexing.source.folder import FolderSupplier
from penstock.indexing.source.supplier import RecordSupplier
from penstock.indexing.source.topic import TopicSupplier

__all__ = [
    "FolderSupplier",
    "KafkaClients",
    "RecordSupplier",
    "TopicSupplier",
    "open_source",
]
