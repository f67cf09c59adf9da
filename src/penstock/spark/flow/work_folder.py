"""Folder in which a processor and Spark exchange records, as Parquet files.

Owns the files of one job: inputs by view, outputs by name. Does not own the job.

Invariants: records move as batches of columns in both directions; the folder is deleted with the
job, however it ends; other users have no access to it. Spark must reach the folder under the same
path, and run as the same user.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.errors import Unavailable
from penstock.flow.processors.records.formats.columnar import ParquetWriter, parquet_batches
from penstock.flow.processors.records.formats.format_protocols import RecordBatches, translated
from penstock.flow.write_guard import WRITE_GUARD
from penstock.spark.connect.server_settings import hadoop_path

_OUTPUT = "Spark's output"
_BROKEN = f"{_OUTPUT} cannot be read"


class WorkFolder:
    """The files of one job.

    Args:
        path: Path of an existing, empty folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inputs = 0

    def add(self, records: RecordBatches) -> str:
        """Write the records of one content; return the file's URL.

        Raises:
            BadRecords: They cannot be read, or cannot be stored as Parquet.
            Unavailable: Disk full or I/O error.
        """
        self._inputs += 1
        path = self._path / f"input-{self._inputs}.parquet"
        try:
            with path.open("wb") as out:
                writer = ParquetWriter(out, records.schema)
                for batch in records.batches:
                    writer.write(batch)
                writer.close()
        except OSError as error:
            raise Unavailable(f"{path} cannot be written: {error}; free space") from error
        return hadoop_path(path)

    def output_url(self, number: int) -> str:
        """Return the URL to which Spark must write a result."""
        return hadoop_path(self._output(number))

    def output(self, number: int) -> RecordBatches:
        """Return the records of a result, in the order of Spark's partitions.

        Raises:
            BadRecords: The result is missing or cannot be read.
        """
        files = sorted(self._output(number).glob("part-*.parquet"))
        if not files:
            return RecordBatches(pa.schema([]), iter(()))
        with translated(_BROKEN):
            schema = pq.read_schema(files[0])
        return RecordBatches(schema, _batches(files))

    def _output(self, number: int) -> Path:
        return self._path / f"output-{number}"


@contextlib.contextmanager
def work_folder(parent: Path | None, *, is_ours: bool = False) -> Iterator[WorkFolder]:
    """Create a folder for a block, and remove it afterwards.

    Args:
        parent: Its parent folder; None: the system's folder of temporary files.
        is_ours: Whether the service chose the place, not a flow.

    Raises:
        InvalidRequest: Flows must not change files there.
        Unavailable: The folder cannot be created.
    """
    if parent is not None and not is_ours:
        WRITE_GUARD.check(str(parent / "work"))
    try:
        path = Path(tempfile.mkdtemp(prefix="penstock-spark-", dir=parent)).absolute()
    except OSError as error:
        raise Unavailable(
            f"cannot create a work folder in {parent or tempfile.gettempdir()}: {error}"
        ) from error
    try:
        yield WorkFolder(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _batches(files: list[Path]) -> Iterator[pa.RecordBatch]:
    for file in files:
        with translated(_BROKEN):
            stored = pa.OSFile(str(file), "rb")
        with stored:
            # Rows of Spark may be of any size, and the process of flows has no memory limit.
            yield from parquet_batches(stored, stored.size(), _OUTPUT, _BROKEN, all_pages=False)
