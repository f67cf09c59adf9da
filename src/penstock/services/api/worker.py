"""A worker's HTTP API: what it runs, take a task, end a task, show a task's log.

Owns paths and shapes, Druid's; the work is `penstock.indexing.worker`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import NotFound
from penstock.indexing.ports import WorkerReport
from penstock.indexing.taskspec import TaskSpec, parse_task
from penstock.services.api.asgi import JsonResponse, integer, json_object
from penstock.services.api.clients import worker_report_to_json
from penstock.services.config import Address

LOG_BYTES_MAX = 1 << 20


class WorkerPort(Protocol):
    """What is needed of `penstock.indexing.worker`."""

    def report(self) -> WorkerReport:
        """Return everything the worker has."""
        ...

    def assign(self, task: TaskSpec) -> None:
        """Take a task; it is written down when this returns."""
        ...

    def shutdown(self, task_id: str) -> None:
        """Stop a task, or forget one that ended."""
        ...


class WorkerRoutes:
    """The routes of a worker.

    Args:
        worker: What does the work.
        task_log: Where a task's log is; raises NotFound if nowhere.
        find_overlord: Where the overlord is, which peons ask for.
    """

    def __init__(
        self,
        worker: WorkerPort,
        task_log: Callable[[str], str],
        find_overlord: Callable[[], Address],
    ) -> None:
        self._worker = worker
        self._task_log = task_log
        self._find_overlord = find_overlord

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        task = "/druid/worker/v1/task/{task_id}"
        return [
            Route("/druid-internal/v1/worker", self.report),
            Route("/druid-internal/v1/worker/assignTask", self.assign, methods=["POST"]),
            Route("/druid-internal/v1/leader", self.leader),
            Route(task + "/shutdown", self.shutdown, methods=["POST"]),
            Route(task + "/log", self.log),
        ]

    def report(self, _request: Request) -> Response:
        """Return everything the worker has."""
        return JsonResponse(worker_report_to_json(self._worker.report()))

    async def assign(self, request: Request) -> Response:
        """Take a task."""
        task = parse_task(await json_object(request))
        await run_in_threadpool(self._worker.assign, task)
        return JsonResponse({"task": task.id})

    def leader(self, _request: Request) -> Response:
        """Say where the overlord is."""
        return PlainTextResponse(str(self._find_overlord()))

    def shutdown(self, request: Request) -> Response:
        """Stop a task."""
        task_id = request.path_params["task_id"]
        self._worker.shutdown(task_id)
        return JsonResponse({"task": task_id})

    def log(self, request: Request) -> Response:
        """Return a task's log from a byte on; a negative one counts from the end."""
        task_id = request.path_params["task_id"]
        offset = integer(request, "offset", 0) or 0
        try:
            with Path(self._task_log(task_id)).open("rb") as stream:
                size = stream.seek(0, 2)
                stream.seek(max(0, size + offset) if offset < 0 else min(offset, size))
                content = stream.read(LOG_BYTES_MAX)
        except OSError:
            raise NotFound(f"there is no log of task {task_id} on this worker") from None
        return PlainTextResponse(content)
