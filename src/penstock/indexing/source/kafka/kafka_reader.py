"""Reads a range of a Kafka partition, on a worker of the engine.

Defines which records belong to a range, and when a range is complete. Invariants:

- the records of [start, end) are returned once, in order; offsets without a record (transaction
  markers, compacted records) are skipped, so there may be fewer records than offsets;
- a range is complete when a record at or after its end was read, or the partition's end was found
  there: a read that waits too long is an error, never a short range.

A record without a value (a tombstone) becomes an empty message, which produces no row and counts as
unparseable, so that no record disappears without being counted. In whole records its value is null,
and the row has its key, time and headers.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.core.errors import CorruptData, Dependency, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.clock import Clock
    from penstock.indexing.engine import KafkaRange
    from penstock.indexing.source.kafka.kafka_protocols import Connect, KafkaRecords

_RECORDS_MAX: Final = 10_000
_FIRST_RECORDS: Final = 500
_WAIT_S: Final = 0.1
_STALL_S: Final = 30.0


_HEADERS: Final = pa.map_(pa.string(), pa.binary())


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Keys, times and headers of records; null where a record lacks them.

    Times are epoch milliseconds. The name of a header is text, its value any bytes.
    """

    times_ms: pa.Int64Array
    keys: pa.BinaryArray
    headers: pa.MapArray

    @property
    def bytes(self) -> int:
        """Memory used, in bytes."""
        return int(self.times_ms.nbytes) + int(self.keys.nbytes) + int(self.headers.nbytes)


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Values of records with increasing offsets, gaps allowed; `metadata` if they are whole."""

    offsets: np.ndarray[tuple[int], np.dtype[np.int64]]
    values: pa.BinaryArray
    metadata: RecordMetadata | None = None

    def runs(self) -> Iterator[tuple[int, pa.BinaryArray]]:
        """Yield the parts without gaps: (first offset, values)."""
        cuts = np.flatnonzero(np.diff(self.offsets) != 1) + 1
        for first, last in itertools.pairwise([0, *cuts.tolist(), len(self.offsets)]):
            yield int(self.offsets[first]), self.values.slice(first, last - first)


def read_records(
    connect: Connect,
    wanted: KafkaRange,
    clock: Clock,
    *,
    batch_bytes: int = 8 << 20,
    whole: bool = False,
) -> Iterator[RecordBatch]:
    """Yield the records of a range in batches of about `batch_bytes`: values or whole records.

    Raises:
        OffsetsGoneError: The partition no longer holds the range.
        Unavailable: The cluster does not send records that it reported.
    """
    start = wanted.start
    log = connect.log(wanted.properties, wanted.topic, wanted.partition, start, whole=whole)
    try:
        at, most = start, _FIRST_RECORDS
        moved_s = clock.monotonic_s()
        while at < wanted.end:
            # Never more than the range: a request for more records would wait for them.
            taken = log.take(min(most, wanted.end - at), _WAIT_S)
            before = at
            if taken.offsets:
                _check_order(wanted, at, taken)
                count = bisect_left(taken.offsets, wanted.end)
                batch = _batch(taken, count, whole=whole)
                at = taken.offsets[-1] + 1
                if len(batch.offsets):
                    yield batch
                    most = _next_count(batch, batch_bytes)
            if taken.end is not None:
                at = max(at, taken.end)
            # Read only now, because the consumer of the batches may take long.
            now_s = clock.monotonic_s()
            if at > before:
                moved_s = now_s
            elif now_s - moved_s > _STALL_S:
                raise Unavailable(
                    f"Kafka's topic {wanted.topic}, partition {wanted.partition}: no record came in"
                    f" {_STALL_S:.0f} s at offset {at}, though the reported end is {wanted.end}:"
                    " check that the partition's leader is up",
                    dependency=Dependency.STREAM,
                )
    finally:
        log.close()


def _check_order(wanted: KafkaRange, at: int, taken: KafkaRecords) -> None:
    if taken.offsets[0] < at:
        place = f"{wanted.topic}/{wanted.partition}"
        raise CorruptData(
            place, taken.offsets[0], f"offsets go back from {at}: its log was truncated"
        )


def _batch(taken: KafkaRecords, count: int, *, whole: bool) -> RecordBatch:
    offsets = np.array(taken.offsets[:count], np.int64)
    values = pa.array(taken.values[:count], pa.binary())
    if not whole:
        return RecordBatch(offsets, values.fill_null(b"") if values.null_count else values)
    times_ms = np.array(taken.times_ms[:count], np.int64)
    return RecordBatch(
        offsets,
        values,
        RecordMetadata(
            pa.array(times_ms, mask=times_ms < 0),
            pa.array(taken.keys[:count], pa.binary()),
            pa.array(taken.headers[:count], _HEADERS),
        ),
    )


def _next_count(batch: RecordBatch, batch_bytes: int) -> int:
    size = int(batch.values.nbytes) + (0 if batch.metadata is None else batch.metadata.bytes)
    mean = max(1, size // len(batch.offsets))
    return max(1, min(_RECORDS_MAX, batch_bytes // mean))
