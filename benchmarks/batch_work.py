"""Processor time of a batch task's workers for each row of JSON, beside DuckDB's copy of the file.

    .venv/bin/python -m benchmarks.batch_work [ROWS]

The work of Spark's workers runs in this process and on one thread, without Spark: two pieces of a
file of JSON lines are parsed and divided by time, then sorted and written as Parquet. Its peer is
`COPY (SELECT … FROM read_json(…) ORDER BY …)` of DuckDB into zstd Parquet, also on one thread. All
ways run in turns; figures are nanoseconds of processor time a row, the smallest of the rounds, and
ratios are medians of the rounds, which a disturbance of the machine moves least. Rows: the same
work with Arrow's reader of JSON alone; without what lets readers skip parts of a file (page index,
order, Bloom filters); and rolled up. Data: as in `ingest`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.ingest import DOUBLES, LONGS, TEXTS, flights, rolled_schema, schema
from benchmarks.table import Row, against, print_rows
from penstock.spark.batch.final_files import BatchTarget
from penstock.spark.batch.input.file_splits import InputFile, Source, Split
from penstock.spark.batch.input.input_work import InputWork
from penstock.spark.batch.scan import ScanWork, parts
from penstock.spark.chunk_files import RunFiles
from penstock.spark.rollup import fold_of
from penstock.spark.schema_columns import file_columns, file_form, folded_columns, row_shape
from penstock.spark.topic import duckdb_json

if TYPE_CHECKING:
    from penstock.indexing.specs import DataSchema

ROWS: Final = 330_000
ROUNDS: Final = 7
ROWS_MAX: Final = 5_000_000
SKIPPING: Final = ("write_page_index", "max_rows_per_page", "sorting_columns")


def ingest(file: Path, folder: Path, asked: DataSchema) -> None:
    """Do the work of the workers: read two pieces of the file, and write the files of segments."""
    size = file.stat().st_size
    given = InputFile(str(file), file.name, size, 0)
    pieces = ((Split(given, 0, size // 2),), (Split(given, size // 2, size),))
    scratch = folder / "scratch"
    scratch.mkdir()
    work = InputWork(pieces, (Source("json", row_shape(asked)),), str(scratch), 1, None, 64 << 20)
    names = tuple(name for name, _ in file_columns(asked))
    target = BatchTarget(str(folder), asked.segment_granularity, names, file_form(asked, 1))
    fold, columns = fold_of(asked), folded_columns(asked)
    assert columns is not None
    scan = ScanWork(work, target, columns, (), ROWS_MAX, fold)
    runs = [run for number in range(len(pieces)) for run in scan.scan(number).runs]
    found = RunFiles()
    for part in parts(runs, ROWS_MAX):
        rows = found.read(part.runs).slice(part.first, part.rows)
        target.write(rows if fold is None else fold.finished(fold.folded(rows)), part.bucket)


def copy(engine: duckdb.DuckDBPyConnection, file: Path, folder: Path) -> None:
    """Let DuckDB write the same rows, sorted."""
    types = {
        "time_hour": "TIMESTAMPTZ",
        **dict.fromkeys(TEXTS, "VARCHAR"),
        **dict.fromkeys(LONGS, "BIGINT"),
        **dict.fromkeys(DOUBLES, "DOUBLE"),
    }
    columns = ", ".join(f"'{name}': '{type_}'" for name, type_ in types.items())
    engine.execute(
        f"COPY (SELECT * FROM read_json('{file}', format = 'newline_delimited',"
        f" columns = {{{columns}}}) ORDER BY {', '.join(types)}) TO '{folder}/copy.parquet'"
        " (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
    )


@contextmanager
def arrow_alone() -> Iterator[None]:
    """Read JSON without DuckDB."""
    with mock.patch.object(duckdb_json, "BYTES_MIN", 1 << 62):
        yield


@contextmanager
def nothing_to_skip() -> Iterator[None]:
    """Write files without what lets readers skip parts of them."""
    write = pq.write_table

    def plainly(rows: pa.Table, path: Path, **options: object) -> None:
        write(rows, path, **{key: one for key, one in options.items() if key not in SKIPPING})

    with (
        mock.patch.object(pq, "write_table", plainly),
        mock.patch("penstock.spark.chunk_files._bloom_filters", return_value=None),
    ):
        yield


def run(rows: int = ROWS) -> list[Row]:
    """Measure in a temporary folder."""
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as temporary:
        place = Path(temporary)
        file = place / "rows.json"
        file.write_bytes(b"\n".join(flights(rows)) + b"\n")
        with duckdb.connect(config={"threads": 1}) as engine:
            spent, sizes = _measured(engine, file, place)

    def row(name: str, other: str, shown: str, aim: str = "") -> Row:
        pairs = zip(spent[name], spent[other], strict=True)
        figures = [min(spent[one]) * 1e9 / rows for one in (name, other)]
        return Row(shown, figures[0], "ns", other, figures[1], median(a / b for a, b in pairs), aim)

    return [
        row("DuckDB's copy", "ours", "batch of JSON: DuckDB's copy", ">= 0.6"),
        row("Arrow alone", "ours", "Arrow's reader of JSON alone"),
        row("ours", "nothing to skip", "with what readers need to skip", "<= 1.03"),
        row("rolled up", "rolled up, Arrow alone", "rolled up"),
        against("size", sizes["ours"] / 1e6, "MB", "DuckDB's copy", sizes["DuckDB's copy"] / 1e6),
    ]


def _measured(
    engine: duckdb.DuckDBPyConnection, file: Path, place: Path
) -> tuple[dict[str, list[float]], dict[str, int]]:
    def plainly(folder: Path) -> None:
        with nothing_to_skip():
            ingest(file, folder, schema())

    def by_arrow(folder: Path, asked: DataSchema) -> None:
        with arrow_alone():
            ingest(file, folder, asked)

    ways: dict[str, Callable[[Path], None]] = {
        "ours": lambda folder: ingest(file, folder, schema()),
        "nothing to skip": plainly,
        "Arrow alone": lambda folder: by_arrow(folder, schema()),
        "DuckDB's copy": lambda folder: copy(engine, file, folder),
        "rolled up": lambda folder: ingest(file, folder, rolled_schema()),
        "rolled up, Arrow alone": lambda folder: by_arrow(folder, rolled_schema()),
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    sizes: dict[str, int] = {}
    for number in range(ROUNDS):
        for name in list(ways) if number % 2 else reversed(ways):
            folder = place / "out"
            folder.mkdir()
            started_s = time.process_time()
            ways[name](folder)
            spent[name].append(time.process_time() - started_s)
            sizes[name] = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
            shutil.rmtree(folder)
    return spent, sizes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int, nargs="?", default=ROWS)
    print_rows(run(parser.parse_args().rows))
