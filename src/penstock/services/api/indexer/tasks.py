"""Single tasks: submitted, looked at, explained and shut down; and what tasks ask for."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest, NotFound, PenstockError
from penstock.indexing.masking import masked
from penstock.indexing.overlord import Overlord, TaskView
from penstock.indexing.overlord.taskindex import RunnerState
from penstock.indexing.overlord.waiting.waits import Wait
from penstock.services.answers import part
from penstock.services.api.asgi import (
    JSON_BYTES_MAX,
    JsonResponse,
    bounded_body,
    integer,
    json_object,
)
from penstock.services.api.clients import LOG_OFFSET_HEADER, LOG_SIZE_HEADER
from penstock.services.api.futures import settled
from penstock.services.api.indexer.answers import task_to_json, typed_error
from penstock.services.api.indexer.paths import ACTION_BYTES_MAX, PREFIX
from penstock.services.api.indexer.reading import datasource_of, looked_up
from penstock.services.api.indexer.taskfiles import TaskFiles


class TaskRoutes:
    """The routes of single tasks.

    Args:
        overlord: Has the tasks.
        files: Their logs and reports.
        body_bytes_max: What a request with a task in it may have.
    """

    def __init__(
        self, overlord: Overlord, files: TaskFiles, body_bytes_max: int = JSON_BYTES_MAX
    ) -> None:
        self._overlord = overlord
        self._desk = overlord.desk
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
        """Do what a task asks for."""
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
        """Take a batch task. What is wrong with it is said in Druid's typed form."""
        try:
            # As it was sent: a name that stands twice in an object is seen in the text alone.
            body = await bounded_body(request, self._body_bytes_max)
            task_id = await run_in_threadpool(lambda: settled(self._desk.submit(body)))
        except PenstockError as error:
            status, answer = typed_error(error)
            return JsonResponse(answer, status)
        return JsonResponse({"task": task_id})

    def payload(self, request: Request) -> Response:
        """Show what a task is."""
        row = self._overlord.task(self._id(request)).row
        return JsonResponse({"task": row.id, "payload": masked(row.payload)})

    def status(self, request: Request) -> Response:
        """Show how a task stands."""
        task_id = self._id(request)
        try:
            view = self._overlord.task(task_id)
        except NotFound as error:
            return JsonResponse({"task": task_id, "status": None, "error": str(error)}, 404)
        return JsonResponse({"task": task_id, "status": task_to_json(view)})

    def why(self, request: Request) -> Response:
        """Say what a task waits for: nothing, if it just runs or has ended."""
        view = self._overlord.task(self._id(request))
        waits: list[Wait] = []
        if view.row.active:
            try:
                waits = settled(self._desk.why(view.row.id))
                waits += [Wait("dependency", str(wait)) for wait in view.waits]
                waits = waits or self._retries(view)
            except NotFound:  # It has ended since.
                view = self._overlord.task(view.row.id)
        found = [wait.to_json() for wait in waits]
        return JsonResponse({"task": view.row.id, "status": task_to_json(view), "waits": found})

    def _retries(self, view: TaskView) -> list[Wait]:
        """Return what a running task says itself that it waits for."""
        if view.runner_state != RunnerState.RUNNING or view.location is None:
            return []
        try:
            found = _retry_of(self._files.report(view.row.id))
        except PenstockError:  # It has only begun, or its peon is busy: there is nothing to tell.
            return []
        return [] if found is None else [found]

    def log(self, request: Request) -> Response:
        """Show a task's log, or what follows an offset; headers say where that is in all of it."""
        offset = integer(request, "offset", 0) or 0
        found = self._files.log(self._id(request), offset)
        headers = {LOG_OFFSET_HEADER: str(found.offset), LOG_SIZE_HEADER: str(found.size)}
        return StreamingResponse(found.parts, headers=headers, media_type="text/plain")

    def reports(self, request: Request) -> Response:
        """Show a task's report."""
        return JsonResponse(self._files.report(self._id(request)))

    def shutdown(self, request: Request) -> Response:
        """End a task; that it has ended already, or never was, is fine."""
        settled(self._desk.shutdown(self._id(request)))
        return JsonResponse({"task": self._id(request)})

    def shutdown_all(self, request: Request) -> Response:
        """End all tasks of a datasource."""
        datasource = datasource_of(request, self._is_stored)
        if not settled(self._desk.shutdown_all(datasource)):
            raise NotFound(f"{datasource} has no active task")
        return JsonResponse({"dataSource": datasource})

    def _id(self, request: Request) -> str:
        return looked_up(request, "task_id", self._is_stored)

    def _is_stored(self, name: str) -> bool:
        return self._overlord.upkeep.metadata.is_stored_name(name)


def _retry_of(report: object) -> Wait | None:
    """Return the next try that a running task waits for, by its report; None: none failed."""
    payload = part(report, "ingestionStatsAndErrors", "payload")
    next_try = part(payload, "nextTry")
    if not isinstance(next_try, str):
        return None
    tries, most = part(payload, "failedTries"), part(payload, "failedTriesMax")
    end = f"; with {most} it fails" if isinstance(most, int) else ", and it goes on trying"
    return Wait(
        "retry",
        f"its next try of {part(payload, 'failedWork')}, at {next_try}: {tries} failed{end};"
        f" at last: {part(payload, 'lastFailure')}",
    )
