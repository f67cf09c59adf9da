"""Where streams come from: topics of Penstock's own, Kafka, a folder of growing files."""

from penstock.indexing.source.folder import FolderSupplier
from penstock.indexing.source.opening import KafkaClients, open_source
from penstock.indexing.source.supplier import RecordSupplier
from penstock.indexing.source.topic import TopicSupplier

__all__ = [
    "FolderSupplier",
    "KafkaClients",
    "RecordSupplier",
    "TopicSupplier",
    "open_source",
]
