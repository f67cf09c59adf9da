"""Single tasks: submit, read, explain and shut down; and actions of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from penstock.core.access.principal import PrincipalKind
from penstock.core.access.rules import Resource, ResourceKind
from penstock.core.clock import Clock
from penstock.core.errors import Forbidden, InvalidRequest, NotFound, PenstockError
from penstock.core.http_errors import retry_headers
from penstock.core.intervals import Interval, format_time
from penstock.core.printable import quoted
from penstock.core.sql.checked_query import checked_query
from penstock.indexing.overlord import Overlord, TaskView
from penstock.indexing.overlord.task_index import RunnerState
from penstock.indexing.overlord.wait_reasons import WaitReason, retry_reasons
from penstock.indexing.required_access import required_access, uploads_needed
from penstock.indexing.secrets import masked
from penstock.indexing.specs.batch.sql_ingest import SqlIngestSpec
from penstock.indexing.specs.task_context import SUBMITTER
from penstock.services.api.asgi import (
    JSON_BYTES_MAX,
    JsonResponse,
    bounded_body,
    integer,
    json_object,
)
from penstock.services.api.futures import result_of
from penstock.services.api.indexer.owned_access import OwnedNeed, require_access, shown_error
from penstock.services.api.indexer.request_parts import (
    ACTION_BYTES_MAX,
    PREFIX,
    datasource_of,
    query_flag,
    stored_name_of,
)
from penstock.services.api.indexer.task_files import MissingTaskFile, TaskFiles
from penstock.services.api.indexer.task_json import task_to_json, typed_error
from penstock.services.api.process_clients import LOG_OFFSET_HEADER, LOG_SIZE_HEADER
from penstock.services.api.request_access import RequestAccess, access_of
from penstock.storage.metadata import PublishRecord, WrittenSegment
from penstock.storage.uploads import UploadStore

_SEGMENTS_SHOWN: Final = 100
_WITHOUT_QUOTAS: Final = frozenset({PrincipalKind.OWNER, PrincipalKind.PROCESS})


class TaskRoutes:
    """The routes of single tasks.

    Args:
        overlord: The overlord.
        files: Logs and reports of tasks.
        clock: For the segments of a task that runs.
        body_bytes_max: Size limit of a request that contains a task.
        uploads: The uploads of this host.
    """

    def __init__(
        self,
        overlord: Overlord,
        files: TaskFiles,
        clock: Clock,
        body_bytes_max: int = JSON_BYTES_MAX,
        uploads: UploadStore | None = None,
    ) -> None:
        self._overlord = overlord
        self._service = overlord.task_service
        self._files = files
        self._clock = clock
        self._body_bytes_max = body_bytes_max
        self._uploads = uploads

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        task = PREFIX + "/task/{task_id}"
        return [
            Route(PREFIX + "/action", self.action, methods=["POST"]),
            Route(PREFIX + "/task", self.submit, methods=["POST"]),
            Route(task, self.payload),
            Route(task + "/status", self.status),
            Route(task + "/why", self.why),
            Route(task + "/segments", self.segments),
            Route(task + "/log", self.log),
            Route(task + "/reports", self.reports),
            Route(task + "/shutdown", self.shutdown, methods=["POST"]),
            Route(
                PREFIX + "/datasources/{datasource}/shutdownAllTasks",
                self.shutdown_all,
                methods=["POST"],
            ),
        ]

    async def action(self, request: Request) -> Response:
        """Perform an action of a task."""
        body = await json_object(request, ACTION_BYTES_MAX)
        task_id = body.get("task")
        if not isinstance(task_id, str):
            raise InvalidRequest("must name the task", place="task")
        sender = access_of(request).principal
        if sender.kind is PrincipalKind.TASK and sender.name != task_id:
            raise Forbidden(f"{sender.id} may not send actions of the task {quoted(task_id)}")
        worker = body.get("worker")
        if worker is not None and not isinstance(worker, str):
            raise InvalidRequest("must name the worker that runs the task", place="worker")
        result = await run_in_threadpool(
            self._overlord.perform_action, task_id, body.get("action"), worker
        )
        return JsonResponse({"result": result})

    async def submit(self, request: Request) -> Response:
        """Submit a batch task. Errors are reported in Druid's typed format."""
        try:
            # Unparsed, because a duplicate name in an object can only be detected in the text.
            body = await bounded_body(request, self._body_bytes_max)
            task_id = await run_in_threadpool(self._submit, access_of(request), body)
        except PenstockError as error:
            status, answer = typed_error(error)
            return JsonResponse(answer, status, retry_headers(error))
        return JsonResponse({"task": task_id})

    def _submit(self, access: RequestAccess, body: bytes) -> str:
        task = self._service.parse(body)
        for action, resource in required_access(task):
            access.require(action, resource)
        self._use_uploads(access, uploads_needed(task))
        if isinstance(task, SqlIngestSpec):
            task = task.model_copy(update={"reads": self._readable(access, task)})
        task = self._service.named(task)
        principal, quotas = access.principal, access.control.quotas
        if principal.kind not in _WITHOUT_QUOTAS:
            # Otherwise a spec could name another principal, and use up its quota.
            context = {**task.context, SUBMITTER: principal.id}
            task = task.model_copy(update={"context": context})
        with quotas.submission(principal, task.id, self._active_of, access.origin):
            return result_of(self._service.submit(task))

    def _use_uploads(self, access: RequestAccess, uploads: Sequence[str]) -> None:
        """Return if the principal made the uploads. From now on the task keeps them.

        Raises:
            NotFound: One is not on this host, or is another principal's.
        """
        owner = None if access.is_unlimited else access.principal.id
        for upload in uploads:
            if self._uploads is None:
                raise NotFound(f"there is no upload {upload} on this host: upload the file again")
            self._uploads.use(upload, owner)

    def _active_of(self, principal: str) -> list[str]:
        """Return the ids of the tasks that a principal has submitted and that have not ended."""
        tasks = self._service.index.all().items()
        return [name for name, one in tasks if one.task.context.get(SUBMITTER) == principal]

    def _readable(self, access: RequestAccess, task: SqlIngestSpec) -> tuple[str, ...] | None:
        """Return the datasources that the query of a task may read; None: all."""
        if access.is_unlimited:
            return None
        overviews = self._overlord.admin_service.metadata.segment_overviews
        tables = checked_query(task.query).tables
        named = [name for name in overviews.read(lambda one: one.names()) if name.lower() in tables]
        return tuple(access.readable(named))

    def payload(self, request: Request) -> Response:
        """Return the spec of a task."""
        row = self._overlord.task(self._id(request, OwnedNeed.CONTENT)).row
        return JsonResponse({"task": row.id, "payload": masked(row.payload)})

    def status(self, request: Request) -> Response:
        """Return the status of a task."""
        task_id = self._id(request, OwnedNeed.STATE)
        try:
            view = self._overlord.task(task_id)
        except NotFound as error:
            return JsonResponse({"task": task_id, "status": None, "error": str(error)}, 404)
        return JsonResponse({"task": task_id, "status": _status(request, view)})

    def why(self, request: Request) -> Response:
        """Return the reasons why a task waits; empty if it runs or has ended."""
        view = self._overlord.task(self._id(request, OwnedNeed.STATE))
        waits: list[WaitReason] = []
        if view.row.active:
            try:
                waits = result_of(self._service.why(view.row.id)) or self._retries(view)
            except NotFound:  # It has ended meanwhile.
                view = self._overlord.task(view.row.id)
        found = [wait.to_json() for wait in waits]
        return JsonResponse({"task": view.row.id, "status": _status(request, view), "waits": found})

    def segments(self, request: Request) -> Response:
        """Return the newest publishes of a task, and the segments that have their rows.

        Numbers of rows are content: they count rows that a principal may not see.
        """
        view = self._overlord.task(self._id(request, OwnedNeed.CONTENT))
        row, log = view.row, self._overlord.admin_service.metadata.publishes
        ended_ms = self._clock.now_ms() if row.active else row.updated_ms
        publishes = log.of_task(row.id, row.created_ms, ended_ms)
        count, segments = log.segments_of([one.id for one in publishes], _SEGMENTS_SHOWN)
        return JsonResponse(
            {
                "task": row.id,
                "dataSource": row.datasource,
                "publishes": [_publish_json(one) for one in publishes],
                "count": count,
                "segments": [_segment_json(one) for one in segments],
            }
        )

    def _retries(self, view: TaskView) -> list[WaitReason]:
        """Return the wait that a running task reports."""
        if view.runner_state != RunnerState.RUNNING or view.location is None:
            return []
        try:
            return retry_reasons(self._files.report(view.row.id))
        except PenstockError:  # It has just begun, or its peon is busy: its waits are unknown.
            return []

    def log(self, request: Request) -> Response:
        """Return a task's log from an offset; headers have the offset and the total size.

        With the flag `optional`, the answer is 204 while the task has no log.
        """
        offset = integer(request, "offset", 0) or 0
        try:
            found = self._files.log(self._id(request, OwnedNeed.CONTENT), offset)
        except MissingTaskFile:
            if not query_flag(request, "optional"):
                raise
            return Response(status_code=204)
        headers = {LOG_OFFSET_HEADER: str(found.offset), LOG_SIZE_HEADER: str(found.size)}
        return StreamingResponse(found.parts, headers=headers, media_type="text/plain")

    def reports(self, request: Request) -> Response:
        """Return a task's report."""
        return JsonResponse(self._files.report(self._id(request, OwnedNeed.CONTENT)))

    def shutdown(self, request: Request) -> Response:
        """Shut a task down; succeeds if it has ended already or does not exist."""
        task_id = self._id(request, OwnedNeed.CONTROL)
        result_of(self._service.shutdown(task_id))
        return JsonResponse({"task": task_id})

    def shutdown_all(self, request: Request) -> Response:
        """Shut down all tasks of a datasource."""
        datasource = datasource_of(request, self._is_stored)
        if not result_of(self._service.shutdown_all(datasource)):
            raise NotFound(f"{datasource} has no active task")
        return JsonResponse({"dataSource": datasource})

    def _id(self, request: Request, need: OwnedNeed) -> str:
        """Return the id of the task in the path, which the principal may access.

        Raises:
            Forbidden: The principal may not.
        """
        task_id = stored_name_of(request, "task_id", self._is_stored)
        resource = Resource(ResourceKind.TASK, task_id)
        require_access(access_of(request), need, resource, lambda: self._datasource(task_id))
        return task_id

    def _datasource(self, task_id: str) -> str | None:
        """Return the datasource that a task writes; None: there is no such task."""
        active = self._service.index.get(task_id)
        if active is not None:
            return active.task.datasource
        return next((one.datasource for one in self._service.summaries([task_id])), None)

    def _is_stored(self, name: str) -> bool:
        return self._overlord.admin_service.metadata.is_stored_name(name)


def _status(request: Request, view: TaskView) -> dict[str, object]:
    """Return the status of a task, as the principal of the request may see it."""
    resource = Resource(ResourceKind.TASK, view.row.id)
    access, datasource = access_of(request), view.row.datasource
    return task_to_json(view, lambda text: shown_error(access, resource, datasource, text))


def _publish_json(one: PublishRecord) -> dict[str, object]:
    return {
        "publishedAt": format_time(one.published_ms),
        "sequence": one.sequence_name if one.supervisor_id else None,
        "rows": one.counts.processed,
    }


def _segment_json(one: WrittenSegment) -> dict[str, object]:
    return {
        "segment": one.id,
        "interval": str(Interval(one.start_ms, one.end_ms)),
        "version": one.version,
        "partition": one.partition_number,
        "bytes": one.bytes,
        "rows": one.row_count,
        "used": one.used,
    }
