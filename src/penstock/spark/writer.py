"""Writing sorted Parquet files, one or a few for each time chunk.

Owns how rows come together in files: small requests as one piece of work without a shuffle, large
ones shuffled by time chunk, where Spark evens out what is skewed. What was written is described by
`datafiles`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.indexing.spec import DataSchema
from penstock.spark.pipeline import CHUNK_COLUMN, OBSERVED, chunked, column, sort_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# More places than cores, so that few time chunks seldom fall into the same one; Spark joins the
# small ones again at run time.
_SHUFFLE_PLACES: Final = 32


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How files are written: the codec, and the level of zstd."""

    compression: str = "zstd"
    compression_level: int = 1


def write_chunks(
    rows: DataFrame, schema: DataSchema, folder: Path, pieces: int, options: WriteOptions
) -> DataFrame:
    """Write the rows by time chunk; return the DataFrame that was written, for `observed`."""
    rows = chunked(rows, schema.segment_granularity)
    if pieces > 1:
        rows = rows.hint("rebalance", _SHUFFLE_PLACES, column(CHUNK_COLUMN))
    # The order of time is also the order of chunks, so one sort serves both.
    rows = rows.sortWithinPartitions(*sort_keys(schema))
    _save(rows, folder, options, CHUNK_COLUMN)
    return rows


def write_one(rows: DataFrame, schema: DataSchema, folder: Path, options: WriteOptions) -> None:
    """Write the rows of one time chunk into one file."""
    _save(rows.coalesce(1).sortWithinPartitions(*sort_keys(schema)), folder, options, None)


def observed(written: DataFrame) -> dict[str, int]:
    """Return what was counted while the DataFrame was written; nothing for an empty read."""
    info = written.executionInfo
    for found in info._observations if info is not None else []:
        if found.name == OBSERVED:
            return {name: int(value) for name, value in found.pairs.items()}
    return {}


def _save(rows: DataFrame, folder: Path, options: WriteOptions, by: str | None) -> None:
    writer = (
        rows.write.mode("append")
        .option("compression", options.compression)
        .option("parquet.compression.codec.zstd.level", options.compression_level)
        .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        .option("mapreduce.fileoutputcommitter.algorithm.version", "2")
    )
    if by is not None:
        writer = writer.partitionBy(by)
    writer.parquet(str(folder.absolute()))
