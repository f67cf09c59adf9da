"""Topics of Kafka as streams, by offset; Penstock is no member of a consumer group.

`cluster` is what is asked of a client, and `confluent` the client (the extra ``kafka``);
`supplier` tells supervisors and tasks what there is, `reading` reads ranges where the engine works.
"""

from penstock.indexing.source.kafka.cluster import (
    Connect,
    KafkaAdmin,
    KafkaLog,
    OffsetsGoneError,
    Records,
    TopicShape,
)
from penstock.indexing.source.kafka.reading import Beside, RecordBatch, read_records
from penstock.indexing.source.kafka.supplier import KafkaSupplier

__all__ = [
    "Beside",
    "Connect",
    "KafkaAdmin",
    "KafkaLog",
    "KafkaSupplier",
    "OffsetsGoneError",
    "RecordBatch",
    "Records",
    "TopicShape",
    "read_records",
]
