"""Sources of streams: topics of Penstock's broker, Kafka topics, folders of growing files."""

from penstock.indexing.source.folder import FolderSupplier
from penstock.indexing.source.record_supplier import RecordSupplier
from penstock.indexing.source.stream_opener import KafkaClients, open_source
from penstock.indexing.source.topic_supplier import TopicSupplier

__all__ = [
    "FolderSupplier",
    "KafkaClients",
    "RecordSupplier",
    "TopicSupplier",
    "open_source",
]
