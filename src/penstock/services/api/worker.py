"""A worker's HTTP API: what it runs, take a task, end a task, show a task's log.

Owns paths and shapes, Druid's; the work is `penstock.indexing.worker`'s.

    GET  /druid-internal/v1/worker                    everything, or ?counter&hash&timeout: news
    POST /druid-internal/v1/worker/assignTask         take a task
    GET  /druid/worker/v1/enabled, /tasks             does it take tasks? which has it?
    POST /druid/worker/v1/disable, /enable            survives its restart
    POST /druid/worker/v1/task/{id}/shutdown          end a task, or forget one that ended
    GET  /druid/worker/v1/task/{id}/log?offset        a negative offset counts from the end
    GET  /druid/worker/v1/task/{id}/reports           of a task that ended
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest
from penstock.indexing.ports import HistoryPlace, WorkerChanges, WorkerReport
from penstock.indexing.tasklog import READ_BYTES_MAX, TaskLogReader
from penstock.indexing.taskspec import TaskSpec, parse_task
from penstock.services.api.asgi import JSON_BYTES_MAX, JsonResponse, integer, json_object
from penstock.services.api.clients import (
    LOG_OFFSET_HEADER,
    LOG_SIZE_HEADER,
    worker_changes_to_json,
    worker_report_to_json,
)
from penstock.services.config import Address

WAIT_MS_MAX = 180_000


class WorkerPort(Protocol):
    """What is needed of `penstock.indexing.worker`."""

    def report(self) -> WorkerReport:
        """Return everything the worker has."""
        ...

    def changes(self, after: HistoryPlace, wait_ms: int) -> Future[WorkerChanges]:
        """Answer with what changed after a place, when something did or the time is over."""
        ...

    def assign(self, task: TaskSpec) -> None:
        """Take a task; it is written down when this returns."""
        ...

    def shutdown(self, task_id: str) -> None:
        """Stop a task, or forget one that ended."""
        ...

    def set_enabled(self, enabled: bool) -> None:
        """Have the worker take new tasks or not."""
        ...


class WorkerRoutes:
    """The routes of a worker.

    Args:
        name: The worker's HOST:PORT, by which Druid's answers name it.
        worker: What does the work.
        logs: Where logs and reports are.
        find_overlord: Where the overlord is, which peons ask for.
        task_bytes_max: The largest request with a task.
    """

    def __init__(
        self,
        name: str,
        worker: WorkerPort,
        logs: TaskLogReader,
        find_overlord: Callable[[], Address],
        task_bytes_max: int = JSON_BYTES_MAX,
        *,
        find_broker: Callable[[], Address],
    ) -> None:
        self._find_broker = find_broker
        self._name = name
        self._worker = worker
        self._logs = logs
        self._find_overlord = find_overlord
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
        """Return everything the worker has, or wait for what changes."""
        counter = integer(request, "counter")
        if counter is None:
            return JsonResponse(worker_report_to_json(await run_in_threadpool(self._worker.report)))
        place = HistoryPlace(counter, integer(request, "hash", 0) or 0)
        wait_ms = integer(request, "timeout", 0) or 0
        if wait_ms < 0:
            raise InvalidRequest(f"{wait_ms} is below 0", place="timeout")
        # No thread is held while it waits; one that hangs up takes its question back.
        answer = self._worker.changes(place, min(wait_ms, WAIT_MS_MAX))
        return JsonResponse(worker_changes_to_json(await asyncio.wrap_future(answer)))

    async def assign(self, request: Request) -> Response:
        """Take a task."""
        return await run_in_threadpool(
            self._assign, await json_object(request, self._task_bytes_max)
        )

    def _assign(self, body: Mapping[str, object]) -> Response:
        # Reading a task with very many files takes longer than an event loop may stand still.
        task = parse_task(body)
        self._worker.assign(task)
        return JsonResponse({"task": task.id})

    def leader(self, _request: Request) -> Response:
        """Say where the overlord is."""
        return PlainTextResponse(str(self._find_overlord()))

    def broker(self, _request: Request) -> Response:
        """Say where the broker is: peons know no leases."""
        return PlainTextResponse(self._find_broker().url)

    def enabled(self, _request: Request) -> Response:
        """Say whether it takes tasks."""
        return JsonResponse({self._name: self._worker.report().enabled})

    def enable(self, _request: Request) -> Response:
        """Take tasks again."""
        self._worker.set_enabled(True)
        return JsonResponse({self._name: "enabled"})

    def disable(self, _request: Request) -> Response:
        """Take no new tasks."""
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
