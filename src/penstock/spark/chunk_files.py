"""Files written by indexing: Parquet for time chunks, and runs that will be merged.

Owns the two formats and their names, and what lets readers skip parts of a Parquet file: minimum
and maximum of row groups and pages, the order of the rows, and Bloom filters. A run is an Arrow IPC
file with the batches of one split, grouped by time chunk; it exists only between the two steps of a
large request. Invariant: a file gets its name only when it is complete, so repeated attempts leave
one file.
"""

from __future__ import annotations

import itertools
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.intervals import Interval
from penstock.spark.row_chunks import times_ms
from penstock.spark.topic.row_shape import TIME_COLUMN
from penstock.storage.disk_errors import translate_error

# Small enough that engines can divide a file among their cores; large enough that a search does not
# spend most of its time with the dictionaries, of which each row group has its own.
_ROW_GROUP_ROWS: Final = 512 * 1024
# Readers skip pages by the minimum and maximum of each, and pages without a row that matches the
# conditions on other columns. A multiple of the 2,048 rows (DuckDB) or 4,096 rows (Spark) that the
# engines read at once.
_PAGE_ROWS: Final = 8_192
# A column gets a Bloom filter if this many of its first rows have at least that many values;
# for fewer values, minimum, maximum and dictionary are enough. To count the values of all rows
# would take longer than to write the filter.
_SAMPLE_ROWS: Final = 16_384
_VALUES_MIN: Final = 1_024
# As many rows, evenly distributed, decide whether a column of numbers repeats its values. If a
# column of text has fewer values there, it gets no filter, and is not examined further.
_FEW_ROWS: Final = 2_048
_FEW_VALUES: Final = 256
# Highest share of the row groups without a value that are read nevertheless. A filter has 1.2 to
# 2.4 bytes for each different value then; a smaller one saves less than these row groups have.
_FALSE_POSITIVES: Final = 0.01
# Large enough for good compression in Parquet; the writer holds this many rows.
_GROUP_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class FileForm:
    """The form of a segment file.

    Attributes:
        level: Level of zstd.
        sort_keys: The columns by which its rows are sorted, ascending, nulls last; empty: they
            may have any order.
        filtered: The columns that get a Bloom filter if they have many different values.
    """

    level: int
    sort_keys: tuple[str, ...] = ()
    filtered: tuple[str, ...] = ()


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
    rows: pa.Table, folder: Path, chunk: Interval, number: int, form: FileForm
) -> WrittenParquet:
    """Write rows, in their order, as the file of a time chunk.

    Raises:
        Unavailable: The file cannot be written.
    """
    target = folder / f"{chunk_name(chunk)}-{number}.parquet"
    times = times_ms(rows.column(TIME_COLUMN).combine_chunks())
    write_whole(target, lambda path: write_table(rows, path, form))
    return WrittenParquet(
        str(target),
        chunk.start_ms,
        chunk.end_ms,
        rows.num_rows,
        target.stat().st_size,
        int(times.min()),
        int(times.max()),
    )


def write_table(rows: pa.Table, path: Path, form: FileForm) -> None:
    """Write rows, which are sorted by the form's keys, in the format of every segment file."""
    # Imported here: 9 MB that only workers that write files need.
    import pyarrow.parquet as pq  # noqa: PLC0415

    sample, encodings = _sampled(rows), _encodings(form)
    repeated = [name for name in _with_dictionary(rows, sample) if name not in encodings]
    pq.write_table(
        rows,
        path,
        row_group_size=_ROW_GROUP_ROWS,
        compression="zstd",
        compression_level=form.level,
        use_dictionary=repeated or False,
        column_encoding=encodings or None,
        write_statistics=_with_extremes(rows),
        write_page_index=True,
        max_rows_per_page=_PAGE_ROWS,
        sorting_columns=pq.SortingColumn.from_ordering(rows.schema, _order(rows.schema, form)),
        bloom_filter_options=_bloom_filters(rows, form.filtered, sample),
        store_schema=False,
    )


def _with_dictionary(rows: pa.Table, sample: pa.Array) -> list[str]:
    """Return the columns of text, and those of numbers whose values are repeated.

    Such numbers take less space, and less time to compress and to read.
    """
    found = []
    for field in rows.schema:
        is_number = pa.types.is_primitive(field.type) and not pa.types.is_boolean(field.type)
        if field.type == pa.string() or (
            is_number and 2 * _distinct(rows.column(field.name), sample) <= len(sample)
        ):
            found.append(field.name)
    return found


def _distinct(values: pa.ChunkedArray, sample: pa.Array) -> int:
    found: int = pc.count_distinct(values.take(sample)).as_py()
    return found


def _sampled(rows: pa.Table) -> pa.Array:
    """Return the numbers of some rows, evenly distributed."""
    return pa.array(np.arange(0, rows.num_rows, max(1, rows.num_rows // _FEW_ROWS)))


def _order(schema: pa.Schema, form: FileForm) -> list[tuple[str, str]]:
    """Return the order of the rows, up to a column that has no order in Parquet."""
    flat = itertools.takewhile(
        lambda key: not pa.types.is_nested(schema.field(key).type), form.sort_keys
    )
    return [(key, "ascending") for key in flat]


def _encodings(form: FileForm) -> dict[str, str]:
    """Return the encodings of columns for which Parquet's default is not the best.

    Sorted times are stored as differences: they are read in half of the time (measured). Such a
    column cannot have a dictionary as well.
    """
    return {TIME_COLUMN: "DELTA_BINARY_PACKED"} if form.sort_keys[:1] == (TIME_COLUMN,) else {}


def _bloom_filters(
    rows: pa.Table, columns: Iterable[str], sample: pa.Array
) -> dict[str, dict[str, float]] | None:
    """Return the options of the Bloom filters: for each column its different values in a group.

    They are estimated: if all values are equally frequent, n of N values are found with
    probability 1 - exp(-n / N) each. With too low an estimate, a filter has more false positives.
    """
    options: dict[str, dict[str, float]] = {}
    for name in columns:
        values = rows.column(name)
        if not (pa.types.is_string(values.type) or pa.types.is_integer(values.type)):
            continue
        if len(values) < _VALUES_MIN or _distinct(values, sample) < _FEW_VALUES:
            continue
        found = pc.count_distinct(values[:_SAMPLE_ROWS]).as_py()
        if found >= _VALUES_MIN:
            options[name] = {"ndv": _values_in_group(found, len(values)), "fpp": _FALSE_POSITIVES}
    return options or None


def _values_in_group(found: int, rows: int) -> int:
    """Return about how many different values a row group has, of which the sample has `found`."""
    sample, group = min(_SAMPLE_ROWS, rows), min(_ROW_GROUP_ROWS, rows)
    low, high = found, group
    while high - low > low // 16:
        middle = (low + high) // 2
        if middle * -math.expm1(-sample / middle) < found:
            low = middle
        else:
            high = middle
    return high


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
