"""The sink `penstock.topic`: rows of Spark become messages of a topic, each once.

Owns the division of a Spark partition into publishes, their producers and sequence numbers, and
Spark's writer API. The broker drops repeated publishes (`storage.queue`, decision 5).

    producer    spark.<id of the query, or of the batch job>.<number of the Spark partition>
    sequence    <id of the micro-batch> * 65536 + <number of the publish in the partition>

Invariant: a partition that Spark computes again, with the same rows in any order, is divided into
publishes with the same messages and numbers. So it does not matter how many attempts of a task run,
one after another or at the same time, or where one of them ends: the broker has the messages of
each number once. An attempt sends a publish only after the one before is answered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from penstock.broker.broker_client import BrokerClient
from penstock.broker.message_bodies import encode_binary
from penstock.core.backoff import RetryPolicy
from penstock.core.clock import Clock, SystemClock, pause
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.uuids import RandomUuids
from penstock.spark.topic.topic_options import topic_client

COLUMN: Final = "message"
PUBLISH_BYTES: Final = 4 << 20
"""Maximum size of a publish, below the broker's default of 5 MiB for a body."""
PARTITION_BYTES_MAX: Final = 512 << 20
"""Maximum size of the messages of one Spark partition, which a worker holds in memory."""

_PREFIX_BYTES: Final = 4
_NUMBERS_OF_A_BATCH: Final = 1 << 16
# Names of Spark's local properties, which its micro-batch execution sets for each task.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RETRY: Final = RetryPolicy(initial_ms=200, max_ms=5_000)
_RETRY_S: Final = 60.0
"""Time in which a publish is repeated while the broker restarts; then the task's attempt fails."""

_new_job = RandomUuids()


@dataclass(frozen=True, slots=True)
class PublishedMessages(WriterCommitMessage):
    """Numbers of the publishes of one Spark partition.

    Attributes:
        messages: Number of its messages.
        publishes: Number of publishes.
        repeated: How many of these an earlier attempt had published already.
    """

    messages: int
    publishes: int
    repeated: int


class TopicWriter(DataSourceArrowWriter):
    """Writes the rows of a batch job. One object for a job, copied to each task.

    Args:
        options: Options of the data source.
        schema: Schema of the rows.

    Raises:
        InvalidRequest: The rows are not messages.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        _check_schema(schema)
        self._options = options
        self._job = _new_job()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedMessages:
        """Publish the rows of one Spark partition."""
        task = TaskContext.get()
        assert task is not None
        producer = f"spark.{self._job}.{task.partitionId()}"
        return publish(self._options, iterator, producer, 0)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of a streaming query.

    The messages are in the topic once they are written; nothing is left to be done at the commit.

    Args:
        options: Options of the data source.
        schema: Schema of the rows.

    Raises:
        InvalidRequest: The rows are not messages.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        _check_schema(schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedMessages:
        """Publish the rows of one Spark partition of a micro-batch."""
        task = TaskContext.get()
        assert task is not None
        query, batch = (task.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
        if query is None or batch is None:
            raise InvalidRequest(
                "this Spark does not tell the tasks of a streaming query its id and the number of"
                f" the micro-batch ({_QUERY_ID}, {_BATCH_ID}), without which no repeated"
                " micro-batch is recognized: use the version of Spark that Penstock installs"
            )
        producer = f"spark.{query}.{task.partitionId()}"
        return publish(self._options, iterator, producer, int(batch) * _NUMBERS_OF_A_BATCH)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: Spark repeats the micro-batch, whose published messages are recognized."""


def publish(
    options: Mapping[str, str],
    rows: Iterable[pa.RecordBatch],
    producer: str,
    first: int,
    *,
    clock: Clock | None = None,
) -> PublishedMessages:
    """Publish the messages of one Spark partition, durably.

    Args:
        options: Options of the data source.
        rows: The rows.
        producer: Name of the producer.
        first: Sequence number of the first publish.
        clock: Clock for waits.

    Raises:
        InvalidRequest: A row has no message, or there are too many; or the broker refuses them.
        Unavailable: The broker did not answer in time. Call it again with the same rows.
    """
    found = collected(rows)
    publishes = repeated = 0
    with topic_client(options) as client:
        for publishes, part in enumerate(divided(found), 1):
            number = first + publishes - 1
            body = encode_binary(part)
            repeated += _publish_one(
                client, options["topic"], body, (producer, number), clock or SystemClock()
            )
    return PublishedMessages(len(found), publishes, repeated)


def collected(rows: Iterable[pa.RecordBatch]) -> pa.BinaryArray:
    """Return the messages of rows.

    Raises:
        InvalidRequest: A row has no message, or there are too many.
    """
    columns = []
    size = 0
    for batch in rows:
        column = batch.column(0)
        if column.null_count or pc.min(pc.binary_length(column)).as_py() == 0:
            raise InvalidRequest(
                f"a row has no {COLUMN}, or an empty one, which a topic cannot store: leave it out,"
                f' with .where("length({COLUMN}) > 0")'
            )
        columns.append(column.cast(pa.binary()))
        size += column.nbytes
        if size > PARTITION_BYTES_MAX:
            raise InvalidRequest(
                f"a partition of the rows has more than {PARTITION_BYTES_MAX >> 20} MiB of"
                " messages: divide them with .repartition(N), or make micro-batches smaller"
            )
    return pa.concat_arrays(columns) if columns else pa.array([], pa.binary())


def divided(messages: pa.BinaryArray) -> Iterator[pa.BinaryArray]:
    """Yield the messages of each publish, which depend on the messages only, not on their order.

    If one publish has room for all of them, they keep their order. Otherwise a publish has the
    messages of a range in the order of their bytes, in the order in which they came.
    """
    offsets = np.frombuffer(messages.buffers()[1], np.int32)
    sizes = np.diff(offsets[messages.offset : messages.offset + len(messages) + 1])
    if int(sizes.sum()) + _PREFIX_BYTES * len(messages) <= PUBLISH_BYTES:
        if len(messages):
            yield messages
        return
    order = pc.sort_indices(messages).to_numpy()
    ends = np.cumsum(sizes[order].astype(np.int64) + _PREFIX_BYTES)
    start = 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, before + PUBLISH_BYTES, side="right"))
        end = max(end, start + 1)
        yield messages.take(pa.array(np.sort(order[start:end])))
        start = end


def _publish_one(
    client: BrokerClient, topic: str, body: bytes, producer: tuple[str, int], clock: Clock
) -> bool:
    """Publish until the broker has answered; return whether it had the messages already."""
    until_s = clock.monotonic_s() + _RETRY_S
    for failures in itertools.count(1):
        try:
            return client.publish_numbered(topic, body, producer)
        except Unavailable:  # narrow: the publish may be repeated
            delay_s = _RETRY.delay_ms(failures) / 1_000
            if clock.monotonic_s() + delay_s > until_s:
                raise
        pause(clock, delay_s)
    raise AssertionError("the loop has no end")


def _check_schema(schema: StructType) -> None:
    """Refuse rows that are not messages. Raises InvalidRequest."""
    fields = schema.fields
    if [field.name for field in fields] != [COLUMN]:
        raise InvalidRequest(
            f"the rows have the columns {', '.join(field.name for field in fields) or 'none'}, but"
            f" each row becomes a message, the column {COLUMN}: write"
            f' .selectExpr("to_json(struct(*)) AS {COLUMN}"), or select it'
        )
    if not isinstance(fields[0].dataType, StringType | BinaryType):
        raise InvalidRequest(
            f"the column {COLUMN} is {fields[0].dataType.simpleString()}: make it a string or"
            " binary"
        )
