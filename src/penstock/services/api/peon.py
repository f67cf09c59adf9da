"""The control API of a peon, by which the supervisor steers its task.

Owns paths and shapes; the task is `penstock.indexing`'s, behind its mailbox.

    GET  …/status           the whole report         POST …/pause            offsets where it stands
    GET  …/offsets/current  next offset to read      POST …/resume
    GET  …/offsets/end      the agreed end or null   POST …/offsets/end      agree on the end
    GET  …/checkpoints      unpublished sequences    POST …/stop             end without publishing
    GET  …/rowStats         counts since the start
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest, NotFound
from penstock.indexing.ports import TaskReport
from penstock.services.api.asgi import JsonResponse, json_object
from penstock.services.api.clients import offsets_of, report_to_json
from penstock.services.api.futures import settled


class TaskControl(Protocol):
    """What is needed of a streaming task: mail for its mailbox, answered by a future."""

    def report(self) -> Future[TaskReport]:
        """Tell how the task stands."""
        ...

    def pause(self) -> Future[dict[int, int]]:
        """Stop beginning to read; tell the offsets at which it stands."""
        ...

    def resume(self) -> Future[None]:
        """Go on reading."""
        ...

    def set_end_offsets(self, end: Mapping[int, int], *, finish: bool) -> Future[None]:
        """Agree on the end of the open sequence, and resume."""
        ...


class PeonRoutes:
    """The routes of a peon."""

    def __init__(self, task_id: str, task: TaskControl, stop: Callable[[], None]) -> None:
        self._task_id = task_id
        self._task = task
        self._stop = stop

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        chat = "/druid/worker/v1/chat/{task_id}"
        return [
            Route(chat + "/status", self._show(lambda json: json)),
            Route(chat + "/offsets/current", self._show(lambda json: json["currentOffsets"])),
            Route(chat + "/offsets/end", self._show(lambda json: json["endOffsets"])),
            Route(chat + "/checkpoints", self._show(lambda json: json["checkpoints"])),
            Route(chat + "/rowStats", self._show(_row_stats)),
            Route(chat + "/pause", self.pause, methods=["POST"]),
            Route(chat + "/resume", self.resume, methods=["POST"]),
            Route(chat + "/offsets/end", self.set_end_offsets, methods=["POST"]),
            Route(chat + "/stop", self.stop, methods=["POST"]),
        ]

    def _check(self, request: Request) -> None:
        # A port is used again: an overlord with an old location must not steer another task.
        if request.path_params["task_id"] != self._task_id:
            raise NotFound(f"task {request.path_params['task_id']} does not run here")

    def _show(
        self, pick: Callable[[Mapping[str, object]], object]
    ) -> Callable[[Request], Response]:
        def show(request: Request) -> Response:
            self._check(request)
            return JsonResponse(pick(report_to_json(settled(self._task.report()))))

        return show

    def pause(self, request: Request) -> Response:
        """Pause the task."""
        self._check(request)
        return JsonResponse({str(p): offset for p, offset in settled(self._task.pause()).items()})

    def resume(self, request: Request) -> Response:
        """Resume the task."""
        self._check(request)
        settled(self._task.resume())
        return JsonResponse({})

    async def set_end_offsets(self, request: Request) -> Response:
        """Set the end of the open sequence."""
        self._check(request)
        try:
            end = offsets_of(await json_object(request))
        except (TypeError, ValueError):
            raise InvalidRequest("the body must map stream partitions to offsets") from None
        finish = request.query_params.get("finish", "true") != "false"
        await run_in_threadpool(lambda: settled(self._task.set_end_offsets(end, finish=finish)))
        return JsonResponse({})

    def stop(self, request: Request) -> Response:
        """End the process in order."""
        self._check(request)
        self._stop()
        return JsonResponse({})


def _row_stats(report: Mapping[str, object]) -> object:
    return {"totals": {"buildSegments": report["counts"]}}
