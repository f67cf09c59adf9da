"""Where a worker of Spark puts the files of a write: through the router, or into deep storage.

By default files are sent to the router, which stores them: workers then need nothing but its
address and a token. With option `deepStorage` workers write there themselves, with credentials of
their own.

Invariant: no two files of a write have one name, however often Spark repeats a partition.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from penstock.indexing.specs.batch.spark_write import ATTEMPT
from penstock.segments.layout import attempt_folder
from penstock.spark.batch.final_files import FinalFile
from penstock.spark.sink.router_client import RouterClient
from penstock.spark.sink.sink_rows import PartitionCounts, SinkRows


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """Report of a worker about its partition: (name, rows, size) of each file, and counts."""

    files: tuple[tuple[str, int, int], ...]
    counts: PartitionCounts


@dataclass(frozen=True, slots=True)
class SinkFiles:
    """Where the files of a write go. It is sent to the workers.

    Attributes:
        router: The router.
        datasource: The datasource.
        task_id: The task that will publish the files.
        deep_storage: Root of the deep storage, if workers write there; None: through the router.
    """

    router: RouterClient
    datasource: str
    task_id: str
    deep_storage: str | None = None

    def write(self, rows: SinkRows, batches: Iterable[pa.RecordBatch]) -> WrittenPart:
        """Write the rows of a partition.

        Raises:
            InvalidRequest: A row cannot be stored.
            PenstockError: A file cannot be stored.
        """
        made: list[tuple[str, int, int]] = []
        if self.deep_storage is not None:
            place = attempt_folder(self.datasource, self.task_id, ATTEMPT)
            folder = f"{self.deep_storage.rstrip('/')}/{place}"

            def keep(files: Sequence[FinalFile]) -> None:
                made.extend((file.name, file.rows, file.bytes) for file in files)

            counts = _in(rows, folder).write(batches, keep)
            return WrittenPart(tuple(made), counts)
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:

            def send(files: Sequence[FinalFile]) -> None:
                for file in files:
                    path = Path(folder) / file.name
                    name = self.router.upload(self.datasource, self.task_id, path)
                    path.unlink()
                    made.append((name, file.rows, file.bytes))

            counts = _in(rows, folder).write(batches, send)
        return WrittenPart(tuple(made), counts)


def _in(rows: SinkRows, folder: str) -> SinkRows:
    return replace(rows, target=replace(rows.target, folder=folder))
