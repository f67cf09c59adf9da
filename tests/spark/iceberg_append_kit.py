"""An Iceberg catalog over a `SinkWorld`: commits run real tasks over real files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

import fastavro
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import CommitTableRequest, Namespace, Table, TableIdentifier
from pyiceberg.typedef import Record
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from penstock.core.errors import NotFound
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.error_forms import ICEBERG
from penstock.services.api.iceberg.catalog_commits import CatalogCommits
from penstock.services.api.iceberg.catalog_routes import CatalogRoutes
from penstock.services.api.iceberg.catalog_tables import CatalogTables
from penstock.services.json_client import JsonClient
from tests.spark.sink_kit import SinkWorld

DAY_US = 86_400_000_000
FIRST_US = 1_735_689_600_000_000  # 2025-01-01


def rows(*values: tuple[int, str | None, int | None], names: str = "page n") -> pa.Table:
    """Return rows of (hours since 2025-01-01, page, n)."""
    times = [FIRST_US + hour * DAY_US // 24 for hour, _, _ in values]
    page, number = names.split()
    return pa.table(
        {
            "__time": pa.array(times, pa.timestamp("us", tz="UTC")),
            page: pa.array([page for _, page, _ in values], pa.string()),
            number: pa.array([n for _, _, n in values], pa.int64()),
        }
    )


@dataclass
class Commit:
    """A commit of PyIceberg that was not sent, and its files."""

    world: AppendWorld
    body: dict[str, object]

    @property
    def location(self) -> str:
        """The location of the table."""
        return f"file://{self.world.place}"

    @property
    def _snapshot(self) -> dict[str, object]:
        updates = cast("list[dict[str, object]]", self.body["updates"])
        return cast("dict[str, object]", updates[0]["snapshot"])

    @property
    def snapshot_id(self) -> int:
        return cast("int", self._snapshot["snapshot-id"])

    @property
    def list_path(self) -> Path:
        return Path(str(self._snapshot["manifest-list"]).removeprefix("file://"))

    def with_list(self, place: str) -> dict[str, object]:
        """Return the commit with its manifest list elsewhere."""
        body = json.loads(json.dumps(self.body))
        body["updates"][0]["snapshot"]["manifest-list"] = place
        return cast("dict[str, object]", body)

    def under(self, snapshot_id: int, table: Table) -> dict[str, object]:
        """Return the commit of its files as another snapshot, to the current one of a table."""
        body = json.loads(json.dumps(self.body))
        for update in body["updates"]:
            update.get("snapshot", update)["snapshot-id"] = snapshot_id
        current = table.current_snapshot()
        for one in body["requirements"]:
            if one["type"] == "assert-ref-snapshot-id":
                one["snapshot-id"] = current and current.snapshot_id
        if snapshot_id != self.snapshot_id:
            was = self.snapshot_id
            self.change_manifest(lambda record: record.update(snapshot_id=snapshot_id))
            _change(
                self.list_path,
                lambda one: (
                    one["added_snapshot_id"] == was and one.update(added_snapshot_id=snapshot_id)
                ),
            )
        return cast("dict[str, object]", body)

    def manifest_paths(self) -> list[Path]:
        """Return the manifests that the client has written."""
        with self.list_path.open("rb") as file:
            listed = cast("list[dict[str, object]]", list(fastavro.reader(file)))
        paths = [Path(str(one["manifest_path"]).removeprefix("file://")) for one in listed]
        return [path for path in paths if not path.name.startswith("rows-")]

    def change_manifest(
        self, change: Callable[[dict[str, object]], None], *, last: bool = False
    ) -> None:
        """Change the entries of the client's manifests, or the last one."""
        for path in self.manifest_paths():
            _change(path, change, last=last)

    def replace_data(self, data: pa.Table) -> None:
        """Let the file of the commit have other rows."""

        def replace(record: dict[str, object]) -> None:
            file = cast("dict[str, object]", record["data_file"])
            path = Path(str(file["file_path"]).removeprefix("file://"))
            pq.write_table(data, path)
            file.update(record_count=data.num_rows, file_size_in_bytes=path.stat().st_size)

        self.change_manifest(replace)


def _change(
    path: Path, change: Callable[[dict[str, object]], object], *, last: bool = False
) -> None:
    """Change the records of an Avro file, or the last one."""
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        records = cast("list[dict[str, object]]", list(reader))
        schema = reader.writer_schema
    for record in records[-1:] if last else records:
        change(record)
    with path.open("wb") as file:
        fastavro.writer(file, schema, records)


class AppendWorld(SinkWorld):
    """A datasource with two days of rows, and its catalog."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(folder)

    def begin_with_rows(self) -> Table:
        """Begin with a datasource of its own that has two rows, and return its table."""
        self.begin()
        self.write(
            [("2025-01-01T00:00:00", "/a", 1), ("2025-01-02T00:00:00", "/b", 2)],
            schema="__time timestamp, page string, n bigint",
        )
        self.specs.clear()
        return self.table()

    def catalog(self) -> RestCatalog:
        return RestCatalog("p", uri=f"{self.url}/iceberg")

    def table(self) -> Table:
        return self.catalog().load_table(f"penstock.{self.datasource}")

    def commit_of(self, table: Table, *tables: pa.Table) -> Commit:
        """Return the commit of an append of one file for each of some tables, without sending it.

        The files have no partitions, so each has the rows of its table.
        """
        caught: list[dict[str, object]] = []

        def keep(_table: Table, requirements: object, updates: object) -> NoReturn:
            request = CommitTableRequest(
                identifier=TableIdentifier(namespace=Namespace([]), name="x"),
                requirements=requirements,
                updates=updates,
            )
            caught.append(json.loads(request.model_dump_json()))
            raise CommitStateUnknownException

        paths = []
        (self.place / "data").mkdir(parents=True, exist_ok=True)
        for data in tables:
            path = self.place / f"data/{uuid.uuid4().hex}.parquet"
            pq.write_table(data, path)
            paths.append(f"file://{path}")
        table.catalog.commit_table = keep  # type: ignore[assignment]
        try:
            with table.transaction() as change, change.update_snapshot().fast_append() as append:
                for path, data in zip(paths, tables, strict=True):
                    append.append_data_file(_data_file(table, path, data))
        except CommitStateUnknownException:
            pass
        finally:
            del table.catalog.commit_table
        (body,) = caught
        return Commit(self, body)

    def seen(self) -> list[tuple[str | None, int | None]]:
        """Return (page, n) of the rows that a new client reads."""
        found = self.table().scan().to_arrow().sort_by("n")
        return list(zip(found["page"].to_pylist(), found["n"].to_pylist(), strict=True))

    def post(self, body: object, datasource: str = "") -> httpx.Response:
        name = datasource or self.datasource
        return httpx.post(
            f"{self.url}{ICEBERG}/namespaces/penstock/tables/{name}", json=body, timeout=60
        )

    @property
    def place(self) -> Path:
        """The folder of the table."""
        return self.folder / "deep/~iceberg" / self.datasource

    def _routes(self) -> list[BaseRoute]:
        self.iceberg = CatalogTables(self.tables, self.store, str(self.folder / "deep"), self.clock)
        commits = CatalogCommits(
            *(self.iceberg, self.store, str(self.folder / "deep")),
            lambda: JsonClient(self.url),
            self.clock,
        )
        return [*super()._routes(), *CatalogRoutes(self.iceberg, commits).routes()]

    def _status(self, request: Request) -> Response:
        task_id = request.path_params["task_id"]
        if task_id not in self.results:
            raise NotFound(f"no task {task_id}")
        status = {**self.result_of(task_id), "dataSource": self.datasource}
        return JsonResponse({"task": task_id, "status": status})

    def result_of(self, task_id: str) -> dict[str, object]:
        """Return the state of a task."""
        result = self.results[task_id]
        return {"statusCode": result.state.value, "errorMsg": result.error}


def _data_file(table: Table, path: str, data: pa.Table) -> DataFile:
    spec = table.spec()
    time_us = data["__time"].cast(pa.int64())[0].as_py() if data.num_rows else 0
    values = [] if spec.is_unpartitioned() else [time_us // DAY_US]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=data.num_rows,
        file_size_in_bytes=Path(path.removeprefix("file://")).stat().st_size,
        spec_id=spec.spec_id,
    )
