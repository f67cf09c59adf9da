"""Spark's writers of format `penstock`: a write of a DataFrame, and batches of a streaming query.

Spark's rules, from `pyspark/sql/worker` of version 4.3:

- `write_into_data_source.py` makes a writer on the driver for each write and for each batch of a
  streaming query, and sends it to the workers. The writer of a DataFrame commits its own write.
  `python_streaming_sink_runner.py` makes another one to commit a batch, so what the first one knows
  comes with the messages of the workers.
- Neither passes the id of the streaming query on. But each job of a query has it as a local
  property, which its workers read, and with which they report. It is in the query's checkpoint, so
  it stays the same when the query is restarted; and Spark repeats the last batch under its number.
- The commit may be repeated after a crash of the driver, with the same query and number. The task
  that publishes the files stores both in its publish transaction, so it finds the repetition.

Invariant: nothing of a write is visible before its task has published all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.spark.sink.sink_files import WrittenPart
from penstock.spark.sink.write_plan import SinkPlan, task_spec

if TYPE_CHECKING:
    import pyarrow as pa
    from pydantic import JsonValue

QUERY_ID: Final = "sql.streaming.queryId"
"""Spark's local property with the id of the streaming query of a job."""


@dataclass(frozen=True)
class PartMessage(WriterCommitMessage):
    """Report of a worker: the files of its partition."""

    part: WrittenPart


@dataclass(frozen=True)
class BatchMessage(WriterCommitMessage):
    """Report of a worker about a batch of a streaming query.

    Attributes:
        part: The files of its partition.
        spec: The task that publishes them, which the committing writer does not have.
        query_id: Id of the query; empty: Spark did not tell the worker.
    """

    part: WrittenPart
    spec: Mapping[str, JsonValue]
    query_id: str


class TableWriter(DataSourceArrowWriter):
    """Writes a DataFrame.

    Args:
        plan: The plan of the write.
    """

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartMessage:
        """Write the rows of a partition, in a worker."""
        return PartMessage(self._plan.files.write(self._plan.rows, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the files, on the driver.

        Raises:
            EngineFailure: The task that publishes them has failed.
            PenstockError: It is not known whether it succeeds.
        """
        parts = [message.part for message in messages if isinstance(message, PartMessage)]
        spec = task_spec(self._plan.spec, parts)
        if "overwrite" in spec or _has_rows(parts):
            self._plan.files.router.run(spec, SystemClock())


class BatchWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query.

    Args:
        plan: The plan of this batch, of which the committing writer uses only the router.
    """

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchMessage:
        """Write the rows of a partition, in a worker."""
        part = self._plan.files.write(self._plan.rows, iterator)
        return BatchMessage(part, self._plan.spec, query_id_here())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the files of a batch, on the driver; does nothing if they were published before.

        Raises:
            InvalidRequest: The workers do not know the query.
            EngineFailure: The task that publishes them has failed.
            PenstockError: It is not known whether it succeeds.
        """
        found = [message for message in messages if isinstance(message, BatchMessage)]
        parts = [one.part for one in found]
        if not _has_rows(parts):
            return
        queries, tasks = {one.query_id for one in found}, {str(one.spec["id"]) for one in found}
        if len(queries) != 1 or "" in queries or len(tasks) != 1:
            raise InvalidRequest(
                f"Spark's workers do not know the streaming query of batch {batchId}, because Spark"
                f" does not set {QUERY_ID}: use Spark 4.3"
            )
        spec = task_spec(found[0].spec, parts, (found[0].query_id, batchId))
        self._plan.files.router.run(spec, SystemClock())


def query_id_here() -> str:
    """Return the id of the streaming query of this worker's job; empty: there is none."""
    # Imported here: only Spark's workers have a task.
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    return "" if context is None else context.getLocalProperty(QUERY_ID) or ""


def _has_rows(parts: Sequence[WrittenPart]) -> bool:
    return any(part.files or part.counts.unparseable for part in parts)
