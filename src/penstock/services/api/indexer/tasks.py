"""Single tasks: submit, read, explain and shut down; and actions of tasks."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest, NotFound, PenstockError
from penstock.indexing.overlord import Overlord, TaskView
from penstock.indexing.overlord.task_index import RunnerState
from penstock.indexing.overlord.wait_reasons import WaitReason, retry_reasons
from penstock.indexing.secrets import masked
from penstock.services.api.asgi import (
    JSON_BYTES_MAX,
    JsonResponse,
    bounded_body,
    integer,
    json_object,
)
from penstock.services.api.futures import result_of
from penstock.services.api.indexer.request_parts import (
    ACTION_BYTES_MAX,
    PREFIX,
    datasource_of,
    stored_name_of,
)
from penstock.services.api.indexer.task_files import TaskFiles
from penstock.services.api.indexer.task_json import task_to_json, typed_error
from penstock.services.api.process_clients import LOG_OFFSET_HEADER, LOG_SIZE_HEADER


class TaskRoutes:
    """The routes of single tasks.

    Args:
        overlord: The overlord.
        files: Logs and reports of tasks.
        body_bytes_max: Size limit of a request that contains a task.
    """

    def __init__(
        self, overlord: Overlord, files: TaskFiles, body_bytes_max: int = JSON_BYTES_MAX
    ) -> None:
        self._overlord = overlord
        self._service = overlord.task_service
        self._files = files
        self._body_bytes_max = body_bytes_max

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        task = PREFIX + "/task/{task_id}"
        return [
            Route(PREFIX + "/action", self.action, methods=["POST"]),
            Route(PREFIX + "/task", self.submit, methods=["POST"]),
            Route(task, self.payload),
            Route(task + "/status", self.status),
            Route(task + "/why", self.why),
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
            task_id = await run_in_threadpool(lambda: result_of(self._service.submit(body)))
        except PenstockError as error:
            status, answer = typed_error(error)
            return JsonResponse(answer, status)
        return JsonResponse({"task": task_id})

    def payload(self, request: Request) -> Response:
        """Return the spec of a task."""
        row = self._overlord.task(self._id(request)).row
        return JsonResponse({"task": row.id, "payload": masked(row.payload)})

    def status(self, request: Request) -> Response:
        """Return the status of a task."""
        task_id = self._id(request)
        try:
            view = self._overlord.task(task_id)
        except NotFound as error:
            return JsonResponse({"task": task_id, "status": None, "error": str(error)}, 404)
        return JsonResponse({"task": task_id, "status": task_to_json(view)})

    def why(self, request: Request) -> Response:
        """Return the reasons why a task waits; empty if it runs or has ended."""
        view = self._overlord.task(self._id(request))
        waits: list[WaitReason] = []
        if view.row.active:
            try:
                waits = result_of(self._service.why(view.row.id)) or self._retries(view)
            except NotFound:  # It has ended meanwhile.
                view = self._overlord.task(view.row.id)
        found = [wait.to_json() for wait in waits]
        return JsonResponse({"task": view.row.id, "status": task_to_json(view), "waits": found})

    def _retries(self, view: TaskView) -> list[WaitReason]:
        """Return the wait that a running task reports."""
        if view.runner_state != RunnerState.RUNNING or view.location is None:
            return []
        try:
            return retry_reasons(self._files.report(view.row.id))
        except PenstockError:  # It has just begun, or its peon is busy: its waits are unknown.
            return []

    def log(self, request: Request) -> Response:
        """Return a task's log from an offset; headers have the offset and the total size."""
        offset = integer(request, "offset", 0) or 0
        found = self._files.log(self._id(request), offset)
        headers = {LOG_OFFSET_HEADER: str(found.offset), LOG_SIZE_HEADER: str(found.size)}
        return StreamingResponse(found.parts, headers=headers, media_type="text/plain")

    def reports(self, request: Request) -> Response:
        """Return a task's report."""
        return JsonResponse(self._files.report(self._id(request)))

    def shutdown(self, request: Request) -> Response:
        """Shut a task down; succeeds if it has ended already or does not exist."""
        result_of(self._service.shutdown(self._id(request)))
        return JsonResponse({"task": self._id(request)})

    def shutdown_all(self, request: Request) -> Response:
        """Shut down all tasks of a datasource."""
        datasource = datasource_of(request, self._is_stored)
        if not result_of(self._service.shutdown_all(datasource)):
            raise NotFound(f"{datasource} has no active task")
        return JsonResponse({"dataSource": datasource})

    def _id(self, request: Request) -> str:
        return stored_name_of(request, "task_id", self._is_stored)

    def _is_stored(self, name: str) -> bool:
        return self._overlord.admin_service.metadata.is_stored_name(name)
