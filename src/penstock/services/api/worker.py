"""HTTP API of a worker: report, assign and end tasks, enable and disable, logs.

Owns paths and formats, which are Druid's; `penstock.indexing.worker` does the work.

    GET  /druid-internal/v1/worker                    everything; ?counter&hash&timeout: changes
    POST /druid-internal/v1/worker/assignTask         assign a task
    GET  /druid/worker/v1/enabled, /tasks             whether it accepts tasks; its tasks
    POST /druid/worker/v1/disable, /enable            kept across restarts
    POST /druid/worker/v1/task/{id}/shutdown          stop a task, or forget one that ended
    GET  /druid/worker/v1/task/{id}/log?offset        a negative offset counts from the end
    GET  /druid/worker/v1/task/{id}/reports           of a task that ended
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest
from penstock.indexing.ports import HistoryPlace, WorkerChanges, WorkerReport
from penstock.indexing.task_log import READ_BYTES_MAX, TaskLogReader
from penstock.indexing.task_spec import TaskSpec, parse_task
from penstock.services.api.asgi import JSON_BYTES_MAX, JsonResponse, integer, json_object
from penstock.services.api.process_clients import (
    LOG_OFFSET_HEADER,
    LOG_SIZE_HEADER,
    worker_changes_to_json,
    worker_report_to_json,
)
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.membership.membership import BrokerFinder

WAIT_MS_MAX = 180_000


class WorkerPort(Protocol):
    """The part of `penstock.indexing.worker` that this API uses."""

    def report(self) -> WorkerReport:
        """Return the state of all tasks of the worker."""
        ...

    def changes(self, after: HistoryPlace, wait_ms: int) -> Future[WorkerChanges]:
        """Return the changes after a place in the history; wait for the first, up to the limit."""
        ...

    def assign(self, task: TaskSpec) -> None:
        """Accept a task; it is stored when this returns."""
        ...

    def shutdown(self, task_id: str) -> None:
        """Stop a task, or forget one that ended."""
        ...

    def set_enabled(self, enabled: bool) -> None:
        """Enable or disable new tasks."""
        ...


class WorkerRoutes:
    """The routes of a worker.

    Args:
        name: The worker's HOST:PORT, by which Druid's answers name it.
        worker: The worker.
        logs: Reader of logs and reports.
        directory: Lookup of the overlord, for peons.
        broker: Lookup of the broker, for peons.
        task_bytes_max: The largest request with a task.
    """

    def __init__(
        self,
        name: str,
        worker: WorkerPort,
        logs: TaskLogReader,
        directory: LeaseDirectory,
        broker: BrokerFinder,
        task_bytes_max: int = JSON_BYTES_MAX,
    ) -> None:
        self._name = name
        self._worker = worker
        self._logs = logs
        self._directory = directory
        self._broker = broker
        self._task_bytes_max = task_bytes_max

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        admin = "/druid/worker/v1"
        task = admin + "/task/{task_id}"
        return [
            Route("/druid-internal/v1/worker", self.report),
            Route("/druid-internal/v1/worker/assignTask", self.assign, methods=["POST"]),
            Route("/druid-internal/v1/leader", self.leader),
            Route("/druid-internal/v1/broker", self.broker),
            Route(admin + "/enabled", self.enabled),
            Route(admin + "/enable", self.enable, methods=["POST"]),
            Route(admin + "/disable", self.disable, methods=["POST"]),
            Route(admin + "/tasks", self.tasks),
            Route(task + "/shutdown", self.shutdown, methods=["POST"]),
            Route(task + "/log", self.log),
            Route(task + "/reports", self.reports),
        ]

    async def report(self, request: Request) -> Response:
        """Return all tasks of the worker, or wait for changes."""
        counter = integer(request, "counter")
        if counter is None:
            return JsonResponse(worker_report_to_json(await run_in_threadpool(self._worker.report)))
        place = HistoryPlace(counter, integer(request, "hash", 0) or 0)
        wait_ms = integer(request, "timeout", 0) or 0
        if wait_ms < 0:
            raise InvalidRequest(f"{wait_ms} is below 0", place="timeout")
        # No thread is occupied during the wait; a client that disconnects cancels its request.
        answer = self._worker.changes(place, min(wait_ms, WAIT_MS_MAX))
        return JsonResponse(worker_changes_to_json(await asyncio.wrap_future(answer)))

    async def assign(self, request: Request) -> Response:
        """Accept a task."""
        return await run_in_threadpool(
            self._assign, await json_object(request, self._task_bytes_max)
        )

    def _assign(self, body: Mapping[str, object]) -> Response:
        # Parsing a task with very many files would block an event loop too long.
        task = parse_task(body)
        self._worker.assign(task)
        return JsonResponse({"task": task.id})

    def leader(self, _request: Request) -> Response:
        """Return the overlord's URL."""
        return PlainTextResponse(str(self._directory.find("overlord")))

    def broker(self, _request: Request) -> Response:
        """Return the broker's URL, because peons do not read leases."""
        return PlainTextResponse(self._broker.http().url)

    def enabled(self, _request: Request) -> Response:
        """Return whether it accepts tasks."""
        return JsonResponse({self._name: self._worker.report().enabled})

    def enable(self, _request: Request) -> Response:
        """Accept tasks again."""
        self._worker.set_enabled(True)
        return JsonResponse({self._name: "enabled"})

    def disable(self, _request: Request) -> Response:
        """Accept no new tasks."""
        self._worker.set_enabled(False)
        return JsonResponse({self._name: "disabled"})

    def tasks(self, _request: Request) -> Response:
        """Return the ids of its tasks."""
        return JsonResponse([task.id for task in self._worker.report().tasks])

    def shutdown(self, request: Request) -> Response:
        """Stop a task."""
        task_id = request.path_params["task_id"]
        self._worker.shutdown(task_id)
        return JsonResponse({"task": task_id})

    def log(self, request: Request) -> Response:
        """Return a part of a task's log."""
        offset = integer(request, "offset", 0) or 0
        bytes_max = integer(request, "bytes", READ_BYTES_MAX) or READ_BYTES_MAX
        if not 0 < bytes_max <= READ_BYTES_MAX:
            raise InvalidRequest(
                f"{bytes_max} is not between 1 and {READ_BYTES_MAX}", place="bytes"
            )
        part = self._logs.read_log(request.path_params["task_id"], offset, bytes_max)
        headers = {LOG_OFFSET_HEADER: str(part.offset), LOG_SIZE_HEADER: str(part.size)}
        return PlainTextResponse(part.content, headers=headers)

    def reports(self, request: Request) -> Response:
        """Return the report of a task that ended."""
        content = self._logs.read_report(request.path_params["task_id"])
        return Response(content, media_type="application/json")
