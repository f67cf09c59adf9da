"""How many records of Kafka are read at once: about as many as fit, whatever of them is large."""

from __future__ import annotations

import pytest

from penstock.indexing.engine import KafkaRange
from penstock.indexing.source.kafka import read_records
from penstock.testing.clock import VirtualClock
from tests.broker.kafka_kit import StandIn, StandInRecord


@pytest.mark.parametrize(
    "record",
    [
        StandInRecord(bytes(1_000)),
        StandInRecord(b"", key=bytes(1_000)),
        StandInRecord(b"", headers=[("h", bytes(1_000))]),
    ],
    ids=["values", "keys", "headers"],
)
def test_what_of_records_is_large_bounds_how_many_are_read_at_once(record: StandInRecord) -> None:
    cluster = StandIn(most=600)
    cluster.create("events", p0=dict.fromkeys(range(600), record))
    wanted = KafkaRange(0, "events", 0, 600, (("bootstrap.servers", "k:9092"),))
    batches = read_records(cluster, wanted, VirtualClock(), batch_bytes=20_000, whole=True)
    # Only of those that were read it is known how large they are.
    first, *rest = [len(batch.offsets) for batch in batches]
    assert first + sum(rest) == 600
    assert max(rest) <= 20
    assert min(rest[:-1]) >= 15
