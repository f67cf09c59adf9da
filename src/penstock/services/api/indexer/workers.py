"""API of workers: their tasks, how workers are selected, and disabling a worker."""

from __future__ import annotations

from typing import Final

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import NotFound
from penstock.indexing.overlord import Overlord
from penstock.indexing.overlord.runner.worker_config import CONFIG_NAME
from penstock.services.api.asgi import JsonResponse, bounded_body
from penstock.services.api.futures import result_of
from penstock.services.api.indexer.request_parts import (
    PREFIX,
    author_and_comment,
    query_count,
    query_interval,
    stored_name_of,
)
from penstock.services.api.indexer.task_files import WorkerHandle, WorkerHandles
from penstock.services.api.indexer.task_json import audit_to_json, worker_to_json

HISTORY_MAX: Final = 1_000


class WorkerAdminRoutes:
    """The routes of workers.

    Args:
        overlord: The overlord.
        workers: The workers themselves.
    """

    def __init__(self, overlord: Overlord, workers: WorkerHandles) -> None:
        self._overlord = overlord
        self._service = overlord.task_service
        self._workers = workers

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        worker = PREFIX + "/worker"
        return [
            Route(PREFIX + "/workers", self.workers),
            Route(PREFIX + "/totalWorkerCapacity", self.capacity),
            Route(PREFIX + "/scaling", self.autoscaler_actions),
            Route(worker, self.config),
            Route(worker, self.set_config, methods=["POST"]),
            Route(worker + "/history", self.history),
            Route(worker + "/{host}/enable", self.enable, methods=["POST"]),
            Route(worker + "/{host}/disable", self.disable, methods=["POST"]),
        ]

    def workers(self, _request: Request) -> Response:
        """List the workers with their tasks."""
        return JsonResponse([worker_to_json(one) for one in result_of(self._service.workers())])

    def capacity(self, _request: Request) -> Response:
        """Return how many tasks may run at once."""
        workers = result_of(self._service.workers())
        total = sum(one.capacity for one in workers)
        return JsonResponse(
            {
                "currentClusterCapacity": total,
                # The overlord does not start workers, so their number is fixed.
                "maximumCapacityWithAutoScale": total,
                "usedClusterCapacity": sum(len(one.running) for one in workers),
            }
        )

    def autoscaler_actions(self, _request: Request) -> Response:
        """List the actions of an autoscaler of workers: there is none."""
        self._service.worker_config()
        return JsonResponse([])

    def config(self, _request: Request) -> Response:
        """Return how workers are selected."""
        return JsonResponse(self._service.worker_config().to_json())

    async def set_config(self, request: Request) -> Response:
        """Set how workers are selected."""
        body = await bounded_body(request)
        author, comment = author_and_comment(request)

        def change() -> Response:
            result_of(self._service.set_worker_config(body, author=author, comment=comment))
            return self.config(request)

        return await run_in_threadpool(change)

    def history(self, request: Request) -> Response:
        """List the changes of this setting with author, time and reason, newest first."""
        rows = self._overlord.admin_service.metadata.audit.list(
            CONFIG_NAME,
            interval=query_interval(request),
            limit=query_count(request, "count", default=HISTORY_MAX, most=HISTORY_MAX),
        )
        return JsonResponse(
            [
                {
                    "key": row.key,
                    "type": row.type,
                    "payload": orjson.dumps(dict(row.payload)).decode(),
                    **audit_to_json(row),
                }
                for row in rows
            ]
        )

    def enable(self, request: Request) -> Response:
        """Enable new tasks on a worker."""
        worker = self._find(request)
        worker.set_enabled(True)  # its protocol's only argument
        return JsonResponse({worker.host: "enabled"})

    def disable(self, request: Request) -> Response:
        """Disable new tasks on a worker; it finishes its current tasks."""
        worker = self._find(request)
        worker.set_enabled(False)  # as above
        return JsonResponse({worker.host: "disabled"})

    def _find(self, request: Request) -> WorkerHandle:
        workers = list(self._workers.workers())
        known_names = {text for one in workers for text in (one.host, one.name)}
        named = stored_name_of(request, "host", known_names.__contains__)
        for one in workers:
            if named in (one.host, one.name):
                return one
        known = ", ".join(sorted(one.host for one in workers)) or "none"
        raise NotFound(f"there is no worker {named!r}; use one of: {known}")
