"""What Spark wrote, as data files: found, checked and named by us. No Spark.

Owns the step from the folder a job wrote to `DataFile`s: the footers say rows, size and times, so
no pass over the data is needed. Invariant: what is returned is a flat folder of whole files, each
of one time chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.intervals import Granularity, Interval
from penstock.indexing.engine import DataFile, EngineFailure
from penstock.spark.rowshape import TIME_COLUMN


def collect(
    folder: Path, columns: Sequence[tuple[str, str]], granularity: Granularity
) -> tuple[DataFile, ...]:
    """Return the files that a job wrote below the folder, moved into it, in the order of time.

    Raises:
        EngineFailure: A file has no rows' times in its footer, so it is not one that we wrote.
    """
    found = []
    for path in sorted(folder.rglob("*.parquet")):
        described = describe(path, tuple(columns), granularity)
        if described is not None:
            found.append(described)
    found.sort(key=lambda file: (file.min_time_ms, file.path))
    files = tuple(_moved(file, folder, number) for number, file in enumerate(found))
    for left in sorted(folder.iterdir()):
        if left.is_dir():
            _remove_empty(left)
    return files


def describe(
    path: Path, columns: tuple[tuple[str, str], ...], granularity: Granularity
) -> DataFile | None:
    """Return what the footer says of a file; None when it has no rows."""
    try:
        footer = pq.read_metadata(path)
    except pa.ArrowInvalid as error:
        raise EngineFailure(f"{path}: not a whole Parquet file: {error}") from error
    if not footer.num_rows:
        path.unlink()
        return None
    place = next(
        (i for i in range(footer.num_columns) if footer.schema.column(i).path == TIME_COLUMN), None
    )
    lowest, highest = [], []
    for group in range(footer.num_row_groups if place is not None else 0):
        statistics = footer.row_group(group).column(place).statistics
        if statistics is not None and statistics.has_min_max:
            lowest.append(statistics.min_raw // 1000)
            highest.append(statistics.max_raw // 1000)
    if not lowest:
        raise EngineFailure(f"{path}: its footer does not say the times of its rows")
    interval = granularity.bucket(min(lowest))
    if not interval.contains(max(highest)):
        raise EngineFailure(f"{path}: has rows outside of its time chunk {interval}")
    size = path.stat().st_size
    return DataFile(str(path), interval, footer.num_rows, size, min(lowest), max(highest), columns)


def _moved(file: DataFile, folder: Path, number: int) -> DataFile:
    """Give the file its place: the folders that Spark wrote into would read as a column."""
    target = folder / f"{_compact(file.interval)}-{number}.parquet"
    Path(file.path).rename(target)
    return DataFile(
        str(target),
        file.interval,
        file.rows,
        file.bytes,
        file.min_time_ms,
        file.max_time_ms,
        file.columns,
    )


def _compact(interval: Interval) -> str:
    return str(interval).split("/", 1)[0].replace(":", "").replace("-", "").replace(".000", "")


def _remove_empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()  # checksums and markers of Hadoop's own
    folder.rmdir()
