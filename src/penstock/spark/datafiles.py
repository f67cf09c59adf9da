"""Conversion of written files to data files of the engine's protocol."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.intervals import Interval
from penstock.indexing.engine import DataFile
from penstock.spark.chunk_files import WrittenFile


def as_data_files(
    written: Iterable[WrittenFile], columns: tuple[tuple[str, str], ...]
) -> tuple[DataFile, ...]:
    """Return the files in the order of time."""
    files = (
        DataFile(
            file.path,
            Interval(file.start_ms, file.end_ms),
            file.rows,
            file.bytes,
            file.min_time_ms,
            file.max_time_ms,
            columns,
        )
        for file in written
    )
    return tuple(sorted(files, key=lambda file: (file.min_time_ms, file.path)))
