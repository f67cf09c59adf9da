"""Distribute rows that the JVM computed over the segments of their time chunks, and write them.

Owns how rows are assigned to buckets:

    dynamic    by time chunk; Spark balances skewed chunks
    hashed     pmod(hash(dimensions), shards), `hash` being Spark's Murmur3 of 32 bits with seed 42
    range      by the order of the dimensions as text, nulls first; the bounds are quantiles of a
               sample

Workers receive the rows of a Spark partition bucket by bucket, so each holds the rows of one file.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.window import Window

from penstock.indexing.batch.batch_engine import Bucket, Partitioning
from penstock.indexing.specs.scalars import OWN_PREFIX
from penstock.spark.batch.final_files import BatchTarget, FinalFile
from penstock.spark.batch.scan import BatchReport, batch_reports
from penstock.spark.expressions import column
from penstock.spark.pieces import REPORT_SCHEMA, limited, reported, reports_of
from penstock.spark.pipeline import CHUNK_COLUMN, OBSERVED, chunked
from penstock.spark.topic.row_shape import TIME_COLUMN, TIME_TYPE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Not a short name, because it could overwrite a column of users.
BUCKET_COLUMN: Final = f"{OWN_PREFIX}bucket"
_KEY: Final = f"{OWN_PREFIX}key"
_COUNT: Final = f"{OWN_PREFIX}count"
_PART: Final = f"{OWN_PREFIX}part"
_SHUFFLE_PLACES: Final = 32
_SAMPLED_PER_CHUNK: Final = 50_000
_SAMPLE_SEED: Final = 7
# A range segment may have up to this many times its target number of rows.
_OVER_TARGET: Final = 1.5

Key = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Files written, rows counted on the way, and the rows of each bucket."""

    files: tuple[FinalFile, ...]
    counted: Mapping[str, int]
    buckets: Buckets


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets of files, by time chunk number and bucket number.

    `shards` has the chunks whose number of shards is not `shards_else`; `starts` the first keys of
    the ranges of a chunk, except its first range, which has no lower bound.
    """

    kind: str
    shards: Mapping[int, int]
    shards_else: int
    starts: Mapping[int, tuple[Key, ...]]

    def of(self, chunk: int, number: int) -> Bucket | None:
        """Return the bucket of a file; None if files may contain any rows of their chunk."""
        if self.kind == "hashed":
            return Bucket(number, self.shards.get(chunk, self.shards_else))
        if self.kind == "dynamic":
            return None
        starts = self.starts.get(chunk, ())
        bounds: list[Key | None] = [None, *starts, None]
        return Bucket(number, len(starts) + 1, bounds[number], bounds[number + 1])


def rows_unshuffled(partitioning: Partitioning) -> int:
    """Return the maximum number of rows of a time chunk to be one segment without a shuffle."""
    if partitioning.kind == "dynamic":
        return partitioning.rows_max
    if partitioning.kind == "range":
        return int(partitioning.rows_target * _OVER_TARGET)
    if partitioning.shards is None:
        return partitioning.rows_target
    return partitioning.rows_target if partitioning.shards == 1 else 0


def whole_chunks(partitioning: Partitioning) -> Buckets:
    """Return the buckets if each time chunk is one segment."""
    return Buckets(partitioning.kind, {}, 1, {})


def write_shuffled(
    rows: DataFrame,
    target: BatchTarget,
    partitioning: Partitioning,
    dimensions: Sequence[str],
) -> Shuffled:
    """Write the rows, which have the columns of the files."""
    keyed = chunked(rows, target.granularity)
    if partitioning.kind == "dynamic":
        even = keyed.hint("rebalance", _SHUFFLE_PLACES, column(CHUNK_COLUMN))
        spread = even.withColumn(BUCKET_COLUMN, sf.lit(0))
        found, counted = _write(spread, target, partitioning.rows_max)
        return Shuffled(found, counted, Buckets("dynamic", {}, 1, {}))
    if partitioning.kind == "hashed" and partitioning.shards is not None:
        buckets = Buckets("hashed", {}, partitioning.shards, {})
        found, counted = _write(_by_bucket(keyed, buckets, dimensions), target)
        return Shuffled(found, counted, buckets)
    # The rows are needed twice: to count and to write them. Their source may be readable only once,
    # and may return different rows the second time.
    kept = keyed.persist()
    try:
        counts, counted = _counted(kept)
        if partitioning.kind == "hashed":
            shards = {c: -(-n // partitioning.rows_target) for c, n in counts.items()}
            several = {chunk: count for chunk, count in shards.items() if count > 1}
            buckets = Buckets("hashed", several, 1, {})
        else:
            buckets = Buckets("range", {}, 1, _starts(kept, counts, partitioning, dimensions))
        found, _ = _write(_by_bucket(kept, buckets, dimensions), target)
    finally:
        kept.unpersist()
    return Shuffled(found, counted, buckets)


def _by_bucket(keyed: DataFrame, buckets: Buckets, dimensions: Sequence[str]) -> DataFrame:
    number = sf.lit(0)
    if buckets.kind == "hashed":
        names = dimensions or [TIME_COLUMN]
        value = sf.hash(*(column(name) for name in names))
        if buckets.shards:
            shards = sf.coalesce(_by_chunk(buckets.shards), sf.lit(buckets.shards_else))
            number = sf.pmod(value, shards)
        elif buckets.shards_else > 1:
            number = sf.pmod(value, sf.lit(buckets.shards_else))
    elif buckets.starts:
        starts = _by_chunk(
            {
                chunk: sf.array(*(_literal_key(key) for key in keys))
                for chunk, keys in buckets.starts.items()
            }
        )
        key = _key(dimensions)
        before = sf.filter(starts, lambda start: start <= key)
        number = sf.coalesce(sf.size(before), sf.lit(0))
        # Without starts in its chunk, a row is in the first range; `size` of null is -1.
        number = sf.greatest(number, sf.lit(0))
    numbered = keyed.withColumn(BUCKET_COLUMN, number.cast("int"))
    return numbered.repartition(column(CHUNK_COLUMN), column(BUCKET_COLUMN))


def _by_chunk(values: Mapping[int, int] | Mapping[int, Column]) -> Column:
    """Return the value for the row's time chunk, or null."""
    pairs: list[Column] = []
    for chunk, value in values.items():
        pairs += [sf.lit(chunk).cast("bigint"), sf.lit(value)]
    return sf.try_element_at(sf.create_map(*pairs), column(CHUNK_COLUMN))


def _key(dimensions: Sequence[str]) -> Column:
    texts = (column(name).cast("string").alias(f"k{i}") for i, name in enumerate(dimensions))
    return sf.struct(*texts)


def _literal_key(key: Key) -> Column:
    return sf.struct(*(sf.lit(text).cast("string").alias(f"k{i}") for i, text in enumerate(key)))


def _counted(kept: DataFrame) -> tuple[dict[int, int], dict[str, int]]:
    """Return the number of rows of each time chunk, and the observed counts."""
    grouped = kept.groupBy(column(CHUNK_COLUMN)).agg(sf.count("*").alias(_COUNT))
    counts = {int(chunk): int(count) for chunk, count in grouped.collect()}
    return counts, _observed(grouped)


def _starts(
    kept: DataFrame,
    counts: Mapping[int, int],
    partitioning: Partitioning,
    dimensions: Sequence[str],
) -> dict[int, tuple[Key, ...]]:
    """Return where the ranges of large time chunks begin, except their first ranges."""
    most = partitioning.rows_target * _OVER_TARGET
    ranges = {
        chunk: math.ceil(count / partitioning.rows_target)
        for chunk, count in counts.items()
        if count > most
    }
    if not ranges:
        return {}
    total = sum(counts[chunk] for chunk in ranges)
    fraction = min(1.0, _SAMPLED_PER_CHUNK * len(ranges) / total)
    keys = kept.where(column(CHUNK_COLUMN).isin(list(ranges))).select(
        column(CHUNK_COLUMN), _key(dimensions).alias(_KEY)
    )
    if fraction < 1.0:
        keys = keys.sample(fraction=fraction, seed=_SAMPLE_SEED)
    ordered = Window.partitionBy(CHUNK_COLUMN).orderBy(_KEY)
    number = (sf.row_number().over(ordered) - 1).cast("bigint")
    size = sf.count("*").over(Window.partitionBy(CHUNK_COLUMN))
    part = sf.floor(number * _by_chunk(ranges) / size)
    first = (
        keys.withColumn(_PART, part)
        .groupBy(CHUNK_COLUMN, _PART)
        .agg(sf.min(_KEY).alias(_KEY))
        .orderBy(CHUNK_COLUMN, _PART)
    )
    seen: dict[int, list[Key]] = {}
    for chunk, _, key in first.collect():
        starts = seen.setdefault(int(chunk), [])
        # A key that fills more than one range begins only one.
        if not starts or starts[-1] != tuple(key):
            starts.append(tuple(key))
    return {chunk: tuple(starts[1:]) for chunk, starts in seen.items() if len(starts) > 1}


def _write(
    rows: DataFrame, target: BatchTarget, rows_max: int | None = None
) -> tuple[tuple[FinalFile, ...], dict[str, int]]:
    ordered = rows.sortWithinPartitions(column(CHUNK_COLUMN), column(BUCKET_COLUMN))
    # By position, because PySpark passes names to `mapInArrow` without quoting them.
    names = (*target.columns, CHUNK_COLUMN, BUCKET_COLUMN)
    placed = ordered.select(*(column(name).alias(f"c{i}") for i, name in enumerate(names)))
    work = functools.partial(write_buckets, target, rows_max)
    written = placed.mapInArrow(limited(work), REPORT_SCHEMA)
    made = tuple(file for report in batch_reports(reports_of(written)) for file in report.files)
    return made, _observed(written)


def write_buckets(
    target: BatchTarget, rows_max: int | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write rows that arrive bucket by bucket; the last two columns are their chunk and bucket.

    With `rows_max` a bucket with more rows becomes several files.
    """
    for (chunk, bucket), rows in _buckets(batches, rows_max):
        table = rows.rename_columns(list(target.columns))
        at = target.columns.index(TIME_COLUMN)
        table = table.set_column(at, TIME_COLUMN, table.column(at).cast(TIME_TYPE))
        yield reported(BatchReport(tuple(target.write(table, bucket, chunk))))


def _buckets(
    batches: Iterable[pa.RecordBatch], rows_max: int | None
) -> Iterator[tuple[tuple[int, int], pa.Table]]:
    held: list[pa.RecordBatch] = []
    rows = 0
    last = (0, 0)
    for key, part in itertools.chain.from_iterable(map(_same_bucket, batches)):
        if held and key != last:
            yield last, pa.Table.from_batches(held)
            held, rows = [], 0
        last = key
        taken = 0
        while rows_max is not None and rows + part.num_rows - taken > rows_max:
            piece = part.slice(taken, rows_max - rows)
            taken += piece.num_rows
            yield key, pa.Table.from_batches([*held, piece])
            held, rows = [], 0
        if taken < part.num_rows:
            held.append(part.slice(taken))
            rows += part.num_rows - taken
    if held:
        yield last, pa.Table.from_batches(held)


def _same_bucket(batch: pa.RecordBatch) -> Iterator[tuple[tuple[int, int], pa.RecordBatch]]:
    if not batch.num_rows:
        return
    chunks = batch.column(batch.num_columns - 2).to_numpy()
    buckets = batch.column(batch.num_columns - 1).to_numpy()
    changes = np.flatnonzero((np.diff(chunks) != 0) | (np.diff(buckets) != 0)) + 1
    edges = [0, *changes.tolist(), batch.num_rows]
    values = batch.select(list(range(batch.num_columns - 2)))
    for start, end in itertools.pairwise(edges):
        yield (int(chunks[start]), int(buckets[start])), values.slice(start, end - start)


def _observed(frame: DataFrame) -> dict[str, int]:
    info = frame.executionInfo
    for seen in info._observations if info is not None else []:  # noqa: SLF001
        # PySpark has no public access to them that does not cost another round trip.
        if seen.name == OBSERVED:
            return {name: int(value) for name, value in seen.pairs.items()}
    return {}
