"""Reads files, each in a forked process with limits, and prints the results. See `bombs.Child`.

The process that forks has imported everything and has no threads, so a fork takes milliseconds.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from penstock.core import avro_bounds, orc_bounds, parquet_bounds
from penstock.core.errors import PenstockError
from penstock.flow.processors.records.formats.format_protocols import ReadingOptions
from penstock.flow.processors.records.formats.format_protocols import RecordSource as Content
from penstock.flow.processors.records.formats.record_formats import RecordFormat, read_records
from penstock.spark.batch.input.delimited import header_of
from penstock.spark.batch.input.dimension_discovery import inspect_pieces
from penstock.spark.batch.input.file_splits import InputFile, Source, Split
from penstock.spark.batch.input.input_work import InputWork, reports_of
from penstock.spark.batch.input.open_files import codec_of
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.topic.row_shape import FieldType, RowShape, TimeField

# As small as bombs allow that take little time.
LINE_BYTES_MAX = 8 << 20
# The product's, for what is large by the number of keys.
LONG_LINE_BYTES_MAX = SparkBatchOptions().line_bytes_max
CPU_S = 40
# Of files of columns; see `bombs.SMALLER`.
COLUMN_LIMITS = (
    (avro_bounds, "BATCH_BYTES"),
    (parquet_bounds, "BATCH_BYTES_MAX"),
    (parquet_bounds, "VALUE_BYTES_MAX"),
    (parquet_bounds, "PAGES_BYTES_MAX"),
    (parquet_bounds, "_READ_BYTES_MAX"),
    (parquet_bounds, "_EVEN_BYTES"),
    (parquet_bounds, "_DICTIONARY_BYTES_MAX"),
    (orc_bounds, "STRIPE_BYTES_MAX"),
    (orc_bounds, "VALUE_BYTES_MAX"),
)


def serve() -> None:
    """Read one request a line from standard input, and answer each with a line."""
    for line in sys.stdin:
        answer, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(answer)
            with os.fdopen(write, "w") as out:
                out.write(json.dumps(read(*json.loads(line))))
            os._exit(0)
        os.close(write)
        with os.fdopen(answer) as file:
            text = file.read()
        _, status = os.waitpid(pid, 0)
        ended = os.waitstatus_to_exitcode(status)
        print(text or json.dumps({"error": f"the child ended with {ended}"}), flush=True)


def read(how: str, kind: str, name: str, memory_mb: int) -> dict[str, object]:
    """Read a file in one of the ways; return the fields of a `bombs.Read`."""
    ways = {"batch": batch, "look": look, "flow": flow, "cast": cast}
    found: dict[str, object] = {"rows": 0, "bad": 0, "reasons": [], "columns": 0}
    limit(memory_mb)
    try:
        ways[how](kind, Path(name), found)
    except PenstockError as error:
        found["error"] = str(error)
    return found


def limit(memory_mb: int) -> None:
    """Limit what this process may allocate besides what it has, and its CPU time."""
    status = Path("/proc/self/status").read_text()
    data = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData"))
    most = data * 1024 + (memory_mb << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))


def work_of(kind: str, path: Path, scratch: str) -> InputWork:
    """Return the reading of a file as batch tasks have it."""
    shape = RowShape((("name", FieldType.STRING), ("size", FieldType.LONG)), TimeField("at"))
    source = Source(kind, shape, skip=int(kind == "delimited"), header=kind == "delimited")  # type: ignore[arg-type]
    file = InputFile(str(path), path.name, path.stat().st_size, 0, codec_of(path.name))
    if source.header:
        columns = header_of(file, source) or ()
        file = InputFile(file.path, file.shown, file.size, 0, file.codec, columns)
    longest = LONG_LINE_BYTES_MAX if "keys" in path.name else LINE_BYTES_MAX
    return InputWork(((Split(file),),), (source,), scratch, 3, None, longest)


def batch(kind: str, path: Path, found: dict[str, object]) -> None:
    """Read its rows as a worker does."""
    with tempfile.TemporaryDirectory() as scratch:
        work = work_of(kind, path, scratch)
        for _ in work.read(0):
            pass
        [report] = reports_of(Path(scratch), 1)
    found["rows"], found["bad"] = report.rows, report.bad
    found["reasons"] = [f"{bad.number}: {bad.reason}" for bad in report.samples]


def look(kind: str, path: Path, found: dict[str, object]) -> None:
    """Find its columns as a worker does."""
    with tempfile.TemporaryDirectory() as scratch:
        work = work_of(kind, path, scratch)
        [batch] = inspect_pieces(work, [pa.RecordBatch.from_pydict({"id": [0]})])
    found["columns"] = len(json.loads(batch.column(0)[0].as_py())["columns"])


def cast(kind: str, path: Path, found: dict[str, object]) -> None:
    """Read its records as a processor with a schema does."""
    options = ReadingOptions(schema=pa.schema([("name", pa.string())]))
    flow(kind, path, found, options)


def flow(
    kind: str,
    path: Path,
    found: dict[str, object],
    options: ReadingOptions = ReadingOptions(),  # noqa: B008
) -> None:
    """Read its records as a processor does."""
    content = Content(lambda: path.open("rb"), path.stat().st_size)
    records = read_records(RecordFormat(kind), content, options)
    found["columns"] = len(records.schema)
    found["rows"] = sum(batch.num_rows for batch in records.batches)


if __name__ == "__main__":
    for module, limit_name in COLUMN_LIMITS:
        setattr(module, limit_name, getattr(module, limit_name) // int(sys.argv[1]))
    serve()
