"""A router and an overlord for tests of writes from Spark, without a JVM.

Requests of the sink go over HTTP to the real routes of files. A submitted task runs to its end in
the request, with real locks, real metadata and the real check of the files.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import NotFound
from penstock.indexing.task import TaskResult
from penstock.indexing.worker.peon_task import PeonTask
from penstock.segments.segment import Segment
from penstock.services.api.asgi import JsonResponse, json_object
from penstock.services.api.router import TableRoutes
from penstock.services.api.spark_writes import SparkWriteRoutes
from penstock.spark.datasource import PenstockSource
from penstock.spark.sink import writers
from penstock.spark.sink.checked_files import SparkFilesEngine
from penstock.spark.tables.visible_files import VisibleFiles
from tests.indexing.batch_kit import BatchWorld, Cut
from tests.spark.servers_kit import Served

TASK = "/druid/indexer/v1/task"
SCHEMA = "__time timestamp, a string, n bigint"
Rows = Sequence[tuple[str | None, str | None, int | None]]


def schema_of(text: str = SCHEMA) -> StructType:
    """Return the schema of a DataFrame, from `name type, name type`."""
    fields = [
        {"name": name, "type": _JSON[type_], "nullable": True, "metadata": {}}
        for name, _, type_ in (part.partition(" ") for part in text.split(", "))
    ]
    return StructType.fromJson({"fields": fields})


_JSON = {
    "bigint": "long",
    "int": "integer",
    "array<string>": {"type": "array", "elementType": "string", "containsNull": True},
    **{
        name: name
        for name in (
            *("timestamp", "string", "double", "float", "boolean", "binary", "date"),
            *("timestamp_ntz", "decimal(10,2)", "short", "byte", "void"),
        )
    },
}


def batch(rows: Rows, schema: StructType | None = None) -> pa.RecordBatch:
    """Return rows as Spark passes them to a worker: times are text of ISO 8601, or None."""
    arrow = to_arrow_schema(schema or schema_of(), timezone="UTC")
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in arrow]
    arrays = [_array(values, field.type) for values, field in zip(columns, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _array(values: Sequence[object], type_: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(type_):
        times = pa.array(values, pa.string()).cast(pa.timestamp("us"))
        return times.cast(pa.timestamp("us", tz="UTC")).cast(type_)
    return pa.array(values, type_)


class SinkWorld(BatchWorld):
    """A `BatchWorld` behind HTTP. Requests run one after the other."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tables = VisibleFiles(self.store, str(folder / "deep"))
        self.engine = SparkFilesEngine(self.deep_store, self.clock)  # type: ignore[assignment]
        self._datasources = 0
        self.begin()
        self._mutex = threading.Lock()
        self.writes = SparkWriteRoutes(
            self.tables, self.store, self.deep_store, folder / "tmp", self.clock
        )
        self._served = Served(self._routes())
        self.url = self._served.url

    def __enter__(self) -> Self:
        self._served.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._served.__exit__()
        self.close()

    def begin(self) -> None:
        """Begin with a datasource without data, and forget what was submitted."""
        self._datasources += 1
        self.datasource = f"d{self._datasources}"
        self.results: dict[str, TaskResult] = {}
        self.specs: list[Mapping[str, object]] = []
        self.peons: list[PeonTask] = []

    def visible(self, datasource: str = "") -> list[Segment]:
        """Return the visible segments of a datasource; without a name, of the test's."""
        return super().visible(datasource or self.datasource)

    def rows(self, datasource: str = "") -> list[tuple[int, str, int]]:
        """Return the visible rows of a datasource; without a name, of the test's."""
        return super().rows(datasource or self.datasource)

    def _routes(self) -> list[BaseRoute]:
        return [
            *self.writes.routes(),
            *TableRoutes(self.tables, self.store, self.deep_store).routes(),
            Route(TASK, self._submit, methods=["POST"]),
            Route(TASK + "/{task_id}/status", self._status),
        ]

    async def _submit(self, request: Request) -> Response:
        spec = await json_object(request, 1 << 20)
        self.specs.append(spec)
        task_id = str(spec["id"])
        self.results[task_id] = self.run(spec)
        return JsonResponse({"task": task_id})

    def run(self, value: Mapping[str, object]) -> TaskResult:
        """Run a task to its end; a peon that dies is started again in its folder."""
        spec = self.add(value)
        while True:
            peon = self.make(spec)
            self.peons.append(peon)
            try:
                result = peon.run()
                break
            except Cut:
                continue
        self.end(spec)
        return result

    def _status(self, request: Request) -> Response:
        task_id = request.path_params["task_id"]
        if task_id not in self.results:
            raise NotFound(f"no task {task_id}")
        result = self.results[task_id]
        status = {"statusCode": result.state.value, "errorMsg": result.error}
        return JsonResponse({"task": task_id, "status": status})

    # What tests do

    def source(self, **options: str) -> PenstockSource:
        """Return the data source with these options, for the datasource of the test."""
        return PenstockSource({"url": self.url, "datasource": self.datasource, **options})

    def write(
        self,
        *partitions: Rows,
        schema: str = SCHEMA,
        overwrite: str | None = None,
        **options: str,
    ) -> None:
        """Write a DataFrame with these partitions."""
        if overwrite is not None:
            options["overwrite"] = overwrite
        types = schema_of(schema)
        writer = self.source(**options).writer(types, overwrite is not None)
        messages = [writer.write(iter([batch(rows, types)])) for rows in partitions]
        writer.commit(list(messages))

    def written(
        self, partitions: Iterable[Rows], query_id: str, **options: str
    ) -> list[WriterCommitMessage | None]:
        """Write a batch of a streaming query in its workers, and return their reports."""
        types = schema_of()
        writer = self.source(**options).streamWriter(types, overwrite=False)
        before = writers.query_id_here
        writers.query_id_here = lambda: query_id  # type: ignore[assignment]
        try:
            return [writer.write(iter([batch(rows, types)])) for rows in partitions]
        finally:
            writers.query_id_here = before

    def commit(
        self, messages: list[WriterCommitMessage | None], number: int, **options: str
    ) -> None:
        """Commit a batch of a streaming query on the driver."""
        self.source(**options).streamWriter(schema_of(), overwrite=False).commit(messages, number)
