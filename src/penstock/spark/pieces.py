"""Work in numbered pieces: Spark distributes the numbers, Python workers do the pieces and report.

Owns how pieces are balanced, numbered and run, and the transport of reports. Does not own the work
nor the content of reports (`chunk_work`, `batch.scan`). Only its number identifies a piece,
so Spark may retry it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from penstock.spark.connect.worker_memory import translate_memory_errors

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pyspark.sql import DataFrame, SparkSession

REPORT_SCHEMA: Final = "report string"

Work = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

T = TypeVar("T")


def distribute(
    items: Sequence[T], most: int, rows: Callable[[T], int]
) -> tuple[tuple[T, ...], ...]:
    """Return items in at most this many pieces of about equal numbers of rows; none is empty."""
    pieces: list[list[T]] = [[] for _ in range(min(most, len(items)))]
    loads = [0] * len(pieces)
    # The largest first, each to the piece that has the fewest rows so far. Ties go to the piece
    # with the fewest items, because items may have no rows.
    for item in sorted(items, key=rows, reverse=True):
        least = min(range(len(pieces)), key=lambda one: (loads[one], len(pieces[one])))
        pieces[least].append(item)
        loads[least] += rows(item)
    return tuple(tuple(piece) for piece in pieces)


def numbered(spark: SparkSession, pieces: int) -> DataFrame:
    """Return the numbers of the pieces, each in a Spark partition of its own."""
    return spark.range(0, pieces, 1, pieces)


def run_pieces(spark: SparkSession, work: Work, pieces: int) -> list[str]:
    """Run the pieces, each in a Python worker; return their reports."""
    return reports_of(numbered(spark, pieces).mapInArrow(limited(work), REPORT_SCHEMA))


def limited(work: Work) -> Work:
    """Return the work with a clear error for a worker that exceeds its memory limit."""
    return functools.partial(_limited, work)


def _limited(work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with translate_memory_errors("doing its piece of the work"):
        yield from work(batches)


def reports_of(done: DataFrame) -> list[str]:
    """Do the work of rows of `REPORT_SCHEMA`, and return the reports in them."""
    return [text for (text,) in done.collect()]


def numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """Yield the numbers in Spark's batches."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def reported(report: DataclassInstance) -> pa.RecordBatch:
    """Return a report in the form that Spark returns."""
    return pa.RecordBatch.from_arrays([pa.array([json.dumps(asdict(report))])], names=["report"])
