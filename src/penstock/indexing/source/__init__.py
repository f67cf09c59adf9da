"""Where streams come from: topics of Penstock, Kafka, a folder of growing files."""

from penstock.indexing.source.supplier import RecordSupplier
from penstock.indexing.source.topic import TopicSupplier

__all__ = ["RecordSupplier", "TopicSupplier"]
