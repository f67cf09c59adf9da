"""All routes of the overlord."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.services.api.asgi import JSON_BYTES_MAX, JsonResponse
from penstock.services.api.indexer.compaction import CompactionRoutes
from penstock.services.api.indexer.locks import LockRoutes
from penstock.services.api.indexer.request_parts import PREFIX
from penstock.services.api.indexer.segments import SegmentRoutes
from penstock.services.api.indexer.supervisor_lists import SupervisorListRoutes
from penstock.services.api.indexer.supervisors import SupervisorRoutes
from penstock.services.api.indexer.task_files import TaskFiles
from penstock.services.api.indexer.task_lists import TaskListRoutes
from penstock.services.api.indexer.tasks import TaskRoutes
from penstock.services.api.indexer.workers import WorkerAdminRoutes

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.core.clock import Clock
    from penstock.indexing.overlord import Overlord
    from penstock.indexing.task_log import TaskLogReader
    from penstock.services.api.indexer.task_files import Reports, WorkerHandles
    from penstock.storage.uploads import UploadStore


@dataclass(frozen=True, slots=True)
class OverlordParts:
    """Dependencies of the overlord's API.

    Attributes:
        overlord: The overlord.
        workers: The workers, for logs and to disable them.
        address: The URL of this process.
        clock: Clock.
        live_report: Requests the report from a running task's peon.
        logs: The log store, if this process can read it.
        task_body_bytes_max: Size limit of a request that contains a task.
        uploads: The uploads of this host.
    """

    overlord: Overlord
    workers: WorkerHandles
    address: str
    clock: Clock
    live_report: Reports
    logs: TaskLogReader | None = None
    task_body_bytes_max: int = JSON_BYTES_MAX
    uploads: UploadStore | None = None


def overlord_routes(parts: OverlordParts) -> list[BaseRoute]:
    """Return the routes of an overlord."""
    overlord = parts.overlord
    files = TaskFiles(overlord, parts.workers, parts.logs, parts.live_report)

    def leader(_request: Request) -> Response:
        # With several candidates, the election's middleware answers before this route.
        leads = overlord.task_service.is_leading
        return PlainTextResponse(parts.address if leads else "", 200 if leads else 404)

    def is_leader(_request: Request) -> Response:
        leads = overlord.task_service.is_leading
        return JsonResponse({"leader": leads}, 200 if leads else 404)

    return [
        Route(PREFIX + "/leader", leader),
        Route(PREFIX + "/isLeader", is_leader),
        *TaskRoutes(
            *(overlord, files, parts.clock, parts.task_body_bytes_max, parts.uploads)
        ).routes(),
        *TaskListRoutes(overlord, parts.clock).routes(),
        *WorkerAdminRoutes(overlord, parts.workers).routes(),
        *SupervisorRoutes(overlord).routes(),
        *SupervisorListRoutes(overlord).routes(),
        *SegmentRoutes(overlord).routes(),
        *LockRoutes(overlord).routes(),
        *CompactionRoutes(overlord).routes(),
    ]
