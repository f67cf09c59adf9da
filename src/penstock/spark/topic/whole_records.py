"""Whole records of a stream partition: values and metadata as columns. Pure.

Owns the conversion of slices to such columns, for records of any source. A message of one of
Penstock's topics has the time at which it was appended, and neither key nor headers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from penstock.spark.topic.parse import ParsedRows
from penstock.spark.topic.record_locations import LongLine, RecordSlice
from penstock.storage.queue.log_reader import MessageSlice


@dataclass(frozen=True, slots=True)
class WholeRecords:
    """Records of one stream partition, in order.

    A null value was sent as null. Times are epoch milliseconds, null where the source has no time;
    without `keys` or `headers` no record has any. `long_lines` has a reason for each offset whose
    value is an empty line because the line was too long.
    """

    topic: str
    partition: int
    values: pa.BinaryArray
    offsets: pa.Int64Array
    times_ms: pa.Int64Array
    keys: pa.BinaryArray | None = None
    headers: pa.MapArray | None = None
    long_lines: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    def take(self, places: pa.Int64Array) -> WholeRecords:
        """Return the records at these positions."""
        return WholeRecords(
            self.topic,
            self.partition,
            self.values.take(places),
            self.offsets.take(places),
            self.times_ms.take(places),
            None if self.keys is None else self.keys.take(places),
            None if self.headers is None else self.headers.take(places),
            self.long_lines,
        )


@runtime_checkable
class RecordParser(Protocol):
    """Makes rows of whole records. For one thread at a time."""

    def parse_records(self, records: WholeRecords) -> ParsedRows:
        """Return the rows and the bad records of a batch."""
        ...


def whole_records(
    slices: Sequence[MessageSlice | RecordSlice], topic: str, partition: int
) -> WholeRecords:
    """Return the records of slices of one kind.

    Args:
        slices: At least one. A slice may be as small as one message, and offsets between slices
            may be missing.
        topic: The topic of the slices.
        partition: The stream partition of the slices.
    """
    values = pa.concat_arrays([piece.messages for piece in slices])
    of_kafka = [piece for piece in slices if isinstance(piece, RecordSlice)]
    if of_kafka:
        return WholeRecords(
            topic,
            partition,
            values,
            pa.array(np.concatenate([piece.offsets for piece in of_kafka])),
            pa.concat_arrays([piece.metadata.times_ms for piece in of_kafka]),
            pa.concat_arrays([piece.metadata.keys for piece in of_kafka]),
            pa.concat_arrays([piece.metadata.headers for piece in of_kafka]),
        )
    messages = [piece for piece in slices if isinstance(piece, MessageSlice)]
    counts = np.array([len(piece.messages) for piece in messages])
    # Each slice's first offset, less the number of records before the slice.
    firsts = np.array([piece.base_offset for piece in messages], np.int64)
    shifts = firsts - np.concatenate([[0], np.cumsum(counts)[:-1]])
    offsets = pa.array(np.repeat(shifts, counts) + np.arange(len(values)))
    appended = np.array([piece.append_time_ms for piece in messages], np.int64)
    times_ms = pa.array(np.repeat(appended, counts))
    too_long = {one.base_offset: one.reason for one in messages if isinstance(one, LongLine)}
    return WholeRecords(topic, partition, values, offsets, times_ms, long_lines=too_long)
