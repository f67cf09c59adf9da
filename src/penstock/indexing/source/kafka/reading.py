"""Reading a range of a Kafka partition: what a worker of the engine does.

Owns which records belong to a range, and when all of it was read. Invariants:

- the records of [start, end) come once, in order; numbers without a record (transactions' markers,
  compacted records) are passed over, so there may be fewer records than offsets;
- a range counts as read when a record at or behind its end was seen, or the partition's end was
  found there: a read that merely waits too long is an error, never a short range.

A record without a value (a tombstone) comes as an empty message, which makes no row: whoever counts
what could not be parsed counts it, so that no record vanishes without a count. Among whole records
it comes as null: there is a row in what it has beside it.
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
    from penstock.indexing.source.kafka.cluster import Connect, Records

_RECORDS_MAX: Final = 10_000
_FIRST_RECORDS: Final = 500
_WAIT_S: Final = 0.1
_STALL_S: Final = 30.0


_HEADERS: Final = pa.map_(pa.string(), pa.binary())


@dataclass(frozen=True, slots=True)
class Beside:
    """What records have beside their values; null where one has none.

    Times are epoch milliseconds. A header's name is text, its value any bytes.
    """

    times_ms: pa.Int64Array
    keys: pa.BinaryArray
    headers: pa.MapArray

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        return int(self.times_ms.nbytes) + int(self.keys.nbytes) + int(self.headers.nbytes)


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Values of records whose offsets grow, with gaps or without; of whole records the rest too."""

    offsets: np.ndarray[tuple[int], np.dtype[np.int64]]
    values: pa.BinaryArray
    beside: Beside | None = None

    def runs(self) -> Iterator[tuple[int, pa.BinaryArray]]:
        """Yield the parts without a gap: (first offset, values)."""
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
    """Yield the records of a range in batches of about `batch_bytes`, their values or all of them.

    Raises:
        OffsetsGoneError: The partition does not hold the range any more.
        Unavailable: The cluster does not send what it has told of.
    """
    start = wanted.start
    log = connect.log(wanted.properties, wanted.topic, wanted.partition, start, whole=whole)
    try:
        at, most = start, _FIRST_RECORDS
        moved_s = clock.monotonic_s()
        while at < wanted.end:
            # No more than is wanted: who asks for more waits for them.
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
            # Looked at only now: who takes the batches may need long.
            now_s = clock.monotonic_s()
            if at > before:
                moved_s = now_s
            elif now_s - moved_s > _STALL_S:
                raise Unavailable(
                    f"Kafka's topic {wanted.topic}, partition {wanted.partition}: nothing came for"
                    f" {_STALL_S:.0f} s at offset {at}, though up to {wanted.end} was there: is its"
                    " leader up?",
                    dependency=Dependency.STREAM,
                )
    finally:
        log.close()


def _check_order(wanted: KafkaRange, at: int, taken: Records) -> None:
    if taken.offsets[0] < at:
        place = f"{wanted.topic}/{wanted.partition}"
        raise CorruptData(place, taken.offsets[0], f"offsets go back from {at}: its log was cut")


def _batch(taken: Records, count: int, *, whole: bool) -> RecordBatch:
    offsets = np.array(taken.offsets[:count], np.int64)
    values = pa.array(taken.values[:count], pa.binary())
    if not whole:
        return RecordBatch(offsets, values.fill_null(b"") if values.null_count else values)
    times_ms = np.array(taken.times_ms[:count], np.int64)
    return RecordBatch(
        offsets,
        values,
        Beside(
            pa.array(times_ms, mask=times_ms < 0),
            pa.array(taken.keys[:count], pa.binary()),
            pa.array(taken.headers[:count], _HEADERS),
        ),
    )


def _next_count(batch: RecordBatch, batch_bytes: int) -> int:
    size = int(batch.values.nbytes) + (0 if batch.beside is None else batch.beside.bytes)
    mean = max(1, size // len(batch.offsets))
    return max(1, min(_RECORDS_MAX, batch_bytes // mean))
