"""Files written by indexing: Parquet for time chunks, and runs that will be merged.

Owns the two formats and their names. A run is an Arrow IPC file with the batches of one split,
grouped by time chunk; it exists only between the two steps of a large request. Invariant: a file
gets its name only when it is complete, so repeated attempts leave one file.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.intervals import Interval
from penstock.spark.row_chunks import times_ms
from penstock.spark.topic.row_shape import TIME_COLUMN
from penstock.storage.disk_errors import translate_error

# Small enough that the JVM can divide a file among its cores.
_ROW_GROUP_ROWS: Final = 256 * 1024
# Large enough for good compression in Parquet; the writer holds this many rows.
_GROUP_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class WrittenParquet:
    """A Parquet file of one time chunk, as the worker that wrote it describes it."""

    path: str
    start_ms: int
    end_ms: int
    rows: int
    bytes: int
    min_time_ms: int
    max_time_ms: int


@dataclass(frozen=True, slots=True)
class SortedRun:
    """Batches of one time chunk in a run: [first, first + count)."""

    path: str
    start_ms: int
    end_ms: int
    first: int
    count: int
    rows: int


def write_parquet(
    rows: pa.Table, folder: Path, chunk: Interval, number: int, level: int
) -> WrittenParquet:
    """Write rows, in their order, as the file of a time chunk.

    Raises:
        Unavailable: The file cannot be written.
    """
    target = folder / f"{chunk_name(chunk)}-{number}.parquet"
    times = times_ms(rows.column(TIME_COLUMN).combine_chunks())
    write_whole(target, lambda path: write_table(rows, path, level))
    return WrittenParquet(
        str(target),
        chunk.start_ms,
        chunk.end_ms,
        rows.num_rows,
        target.stat().st_size,
        int(times.min()),
        int(times.max()),
    )


def write_table(rows: pa.Table, path: Path, level: int) -> None:
    """Write rows in the format of every segment file; `level` is zstd's."""
    # Imported here: 9 MB that only workers that write files need.
    import pyarrow.parquet as pq  # noqa: PLC0415

    text = [field.name for field in rows.schema if field.type == pa.string()]
    pq.write_table(
        rows,
        path,
        row_group_size=_ROW_GROUP_ROWS,
        compression="zstd",
        compression_level=level,
        # Columns such as flight numbers compress better without a dictionary (measured).
        use_dictionary=text or False,
        write_statistics=_with_extremes(rows),
        store_schema=False,
    )


def _with_extremes(rows: pa.Table) -> list[str]:
    """Return the columns whose minimum and maximum may be used to skip row groups.

    For Spark, NaN is the greatest number, but Arrow ignores it: rows would be missed.
    """
    return [
        field.name
        for field in rows.schema
        if not pa.types.is_floating(field.type)
        or not pc.any(pc.is_nan(rows.column(field.name))).as_py()
    ]


def write_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> int:
    """Write rows as they arrive, a group at a time; return their number.

    The metadata of a schema's field is kept.
    """
    # Imported here: see `write_table`.
    import pyarrow.parquet as pq  # noqa: PLC0415

    rows, held_bytes, held = 0, 0, list[pa.RecordBatch]()
    told = [field.name for field in schema if not pa.types.is_floating(field.type)]
    form = {"compression": "zstd", "compression_level": 1, "write_statistics": told}
    with pq.ParquetWriter(path, schema, **form) as writer:
        for batch in batches:
            held.append(batch)
            held_bytes += batch.nbytes
            rows += batch.num_rows
            if held_bytes >= _GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(held))
                held_bytes, held = 0, []
        if held:
            writer.write_table(pa.Table.from_batches(held))
    return rows


def write_run(
    chunks: Mapping[Interval, Sequence[pa.RecordBatch]], folder: Path, number: int | str
) -> list[SortedRun]:
    """Write the batches of a split, chunk by chunk.

    Raises:
        Unavailable: The file cannot be written.
    """
    if not chunks:
        return []
    target = folder / f"run-{number}.arrow"
    schema = next(iter(chunks.values()))[0].schema
    found = []
    first = 0
    for chunk, batches in chunks.items():
        rows = sum(batch.num_rows for batch in batches)
        place = (chunk.start_ms, chunk.end_ms, first, len(batches), rows)
        found.append(SortedRun(str(target), *place))
        first += len(batches)

    def write(path: Path) -> None:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for batches in chunks.values():
                for batch in batches:
                    writer.write_batch(batch)

    write_whole(target, write)
    return found


class RunFiles:
    """Mapped files of runs. Each is opened once, because opening reads all batches' headers."""

    def __init__(self) -> None:
        self._open: dict[str, pa.RecordBatchFileReader] = {}

    def read(self, runs: Sequence[SortedRun]) -> pa.Table:
        """Return the rows of one time chunk from all its runs, as views of the mapped files."""
        batches = []
        for run in runs:
            reader = self._open.get(run.path)
            if reader is None:
                reader = self._open[run.path] = pa.ipc.open_file(pa.memory_map(run.path))
            batches += [reader.get_batch(run.first + index) for index in range(run.count)]
        return pa.Table.from_batches(batches)


def write_whole(target: Path, write: Callable[[Path], None]) -> None:
    """Write a file under a temporary name, and rename it when it is complete.

    Raises:
        Unavailable: The file cannot be written.
    """
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        temporary.replace(target)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise translate_error(error, str(target), "write") from error
        raise


def chunk_name(interval: Interval) -> str:
    """Return the form of a time chunk in file names."""
    start = str(interval).split("/", 1)[0]
    return start.replace(":", "").replace("-", "").replace(".000", "")
