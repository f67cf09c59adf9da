"""Routes of writes from Spark: how a datasource is written, and the files of a write.

Owns how a file arrives: on the disk of the router, and then complete in deep storage, under a name
that the router chooses. So a client can neither replace a file, nor write anywhere else. Nothing of
it is visible: the task that publishes the files checks them (`penstock.spark.sink.checked_files`),
and the janitor deletes those that no task publishes.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Container
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.disk_space import DiskSpace
from penstock.core.errors import InvalidRequest
from penstock.core.http_errors import BodyTooLarge
from penstock.core.intervals import Granularity, Interval
from penstock.core.printable import quoted
from penstock.core.whole_numbers import int64_of
from penstock.indexing.specs.batch.spark_write import ATTEMPT, TASK_ID
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.indexer.request_parts import datasource_of
from penstock.services.api.uploads import PIECE_TIMEOUT_S, UPLOADS, receive
from penstock.spark.sink.router_client import DatasourceForm
from penstock.spark.tables.table_columns import KnownColumns
from penstock.storage.disk_errors import translate_error

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.segments.deep_storage import DeepStore
    from penstock.spark.tables import TableSource
    from penstock.spark.tables.table_files import Columns
    from penstock.storage.metadata import MetadataStore

T = TypeVar("T")

WRITES: Final = "/penstock/v1/datasources/{datasource:path}/writes"
FILES: Final = WRITES + "/{task_id}/files"
FILE_BYTES_MAX: Final = 2 << 30
"""Size of a file: workers of Spark write far smaller ones."""
FREE_BYTES_MIN: Final = 1 << 30
"""Space that stays free on the disk of the router."""

_FILES: Final = re.compile(r"/penstock/v1/datasources/.+/writes/[^/]+/files", re.DOTALL)
_TASK: Final = re.compile(TASK_ID)
_THREADS: Final = 8


class StreamedPaths(Container[str]):
    """The paths whose bodies are received piece by piece: uploads, and files of writes."""

    def __contains__(self, path: object) -> bool:
        """Return whether a path is one of them."""
        return isinstance(path, str) and (path == UPLOADS or _FILES.fullmatch(path) is not None)


class SparkWriteRoutes:
    """The routes of writes from Spark.

    Args:
        source: The visible files.
        store: The metadata store.
        deep_store: Deep storage.
        folder: Folder for files that arrive; created when the first one does.
        clock: For the free disk space.
        file_bytes_max: Size limit of a file.
    """

    def __init__(
        self,
        source: TableSource,
        store: MetadataStore,
        deep_store: DeepStore,
        folder: Path,
        clock: Clock,
        file_bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        self._source = source
        self._store = store
        self._deep_store = deep_store
        self._folder = folder
        self._file_bytes_max = file_bytes_max
        self._columns = KnownColumns()
        # A slow disk must not occupy the threads that answer other requests.
        self._threads = CapacityLimiter(_THREADS)
        self._space = DiskSpace(
            str(folder), self._free_bytes, FREE_BYTES_MIN, clock, "free space, or try again later"
        )

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(WRITES, self.form),
            Route(FILES, self.upload, methods=["POST"]),
        ]

    def form(self, request: Request) -> Response:
        """Return the columns of a datasource, and the time chunks and roll-up of its newest rows.

        They are empty for a datasource without data, which a write creates.
        """
        name, files = self._datasource(request), self._source.tables().files
        form = form_of(self._store, name, self._columns.of(name, files.get(name, ())))
        return JsonResponse(
            {
                "datasource": name,
                "columns": [list(pair) for pair in form.columns],
                "segmentGranularity": form.segment_granularity,
                "rollup": form.rollup,
            }
        )

    async def upload(self, request: Request) -> Response:
        """Store the body as a file of a write, and return its name.

        Raises:
            InvalidRequest: The task is not that of a write, or the body is empty.
            BodyTooLarge: The body is too large.
            Unavailable: The disk is full, the deep storage does not answer, or the client sends
                nothing for too long.
        """
        task_id = str(request.path_params["task_id"])
        if _TASK.fullmatch(task_id) is None:
            raise InvalidRequest(
                f"{quoted(task_id)} is not the id of a write from Spark: use index_spark_ and 32"
                " hexadecimal digits",
                place="task_id",
            )
        announced = int64_of(request.headers.get("content-length", "")) or 0
        name = f"{secrets.token_hex(16)}.parquet"
        begin = partial(_Arriving, self._folder / f"new-{name}", self._file_bytes_max, self._space)
        datasource = await self._run(partial(self._datasource, request))
        file = await self._run(partial(begin, announced))
        try:
            await receive(request, file.write, self._threads, PIECE_TIMEOUT_S)
            finish = partial(self._stored, file, datasource, task_id, name)
            size = await self._run(finish)
        finally:
            # Also when the client has disconnected, which cancels this task.
            with anyio.CancelScope(shield=True):
                await self._run(file.close)
        return JsonResponse({"name": name, "bytes": size})

    def clear(self) -> None:
        """Delete what interrupted requests left; for the start of the router."""
        for path in self._folder.glob("new-*.parquet"):
            path.unlink(missing_ok=True)

    def _stored(self, file: _Arriving, datasource: str, task_id: str, name: str) -> int:
        file.finish()
        path = str(file.path)
        return self._deep_store.put_in_attempt(path, datasource, task_id, ATTEMPT, name)

    def _datasource(self, request: Request) -> str:
        files = self._source.tables().files
        return datasource_of(request, lambda name: name in files)

    def _free_bytes(self) -> int:
        place = self._folder if self._folder.exists() else self._folder.parent
        try:
            disk = os.statvfs(place)
        except OSError as error:
            raise translate_error(error, str(place), "read") from error
        return disk.f_bavail * disk.f_frsize

    async def _run(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=self._threads)


class _Arriving:
    """A file that arrives, on the disk of the router. One thread at a time."""

    def __init__(self, path: Path, bytes_max: int, space: DiskSpace, announced: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._space = space
        self._size = 0
        self._check(announced)
        space.require(0)
        try:
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.fdopen(os.open(path, flags, 0o600), "wb")
        except OSError as error:
            raise translate_error(error, str(path), "write") from error

    def write(self, data: bytes) -> None:
        self._size += len(data)
        self._check(self._size)
        self._space.require(len(data))
        try:
            self._file.write(data)
        except OSError as error:
            raise translate_error(error, str(self.path), "write") from error

    def finish(self) -> None:
        if not self._size:
            raise InvalidRequest("the file is empty: send its content as the body")
        try:
            self._file.flush()
        except OSError as error:
            raise translate_error(error, str(self.path), "write") from error

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            self.path.unlink(missing_ok=True)

    def _check(self, size: int) -> None:
        if size > self._bytes_max:
            raise BodyTooLarge(
                f"a file of a write has at most {self._bytes_max} bytes: let Spark divide the rows"
                " into more partitions"
            )


def form_of(store: MetadataStore, datasource: str, columns: Columns) -> DatasourceForm:
    """Return how a datasource is written: as its newest rows, which have these columns."""
    newest = store.segments.newest(datasource)
    rollup = None if newest is None else newest.payload.get("rollup")
    return DatasourceForm(
        datasource,
        tuple(columns),
        None if newest is None else _granularity(newest.interval),
        rollup if isinstance(rollup, dict) else None,
    )


def _granularity(chunk: Interval) -> str | None:
    try:
        return Granularity.of_bucket(chunk).name
    except InvalidRequest:
        return None  # of a listed interval
