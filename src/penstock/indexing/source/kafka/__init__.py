"""Kafka topics as streams, read by offset without a consumer group.

`kafka_protocols` has the protocols for a client, and `client` the implementation with
confluent-kafka (the extra ``kafka``); `kafka_supplier` reports available records to supervisors and
tasks, `kafka_reader` reads ranges in the engine.
"""

from penstock.indexing.source.kafka.kafka_protocols import (
    Connect,
    KafkaAdmin,
    KafkaLog,
    KafkaRecords,
    OffsetsGoneError,
    TopicShape,
)
from penstock.indexing.source.kafka.kafka_reader import RecordBatch, RecordMetadata, read_records
from penstock.indexing.source.kafka.kafka_supplier import KafkaSupplier

__all__ = [
    "Connect",
    "KafkaAdmin",
    "KafkaLog",
    "KafkaRecords",
    "KafkaSupplier",
    "OffsetsGoneError",
    "RecordBatch",
    "RecordMetadata",
    "TopicShape",
    "read_records",
]
