"""Control API of a peon: the state of its task, and control of a streaming task.

Owns URL paths and formats; the task is in `penstock.indexing`, called through its mailbox. Below
`/druid/worker/v1/chat/{task id}`:

    of every task                                of a streaming task
    GET  /liveReports        its report          GET  /status           the whole report
    GET  /rowStats           counts              GET  /offsets/current  next offset to read
    GET  /unparseableEvents  samples             GET  /offsets/end      the agreed end or null
    POST /stop               end the process     GET  /checkpoints      unpublished sequences
                                                 GET  /time/start       start time
                                                 POST /pause            next offsets to read
                                                                        (202: not yet)
                                                 POST /resume
                                                 POST /offsets/end      agree on the end

Druid's `pendingSegmentVersion` does not exist: it announces to a task the new id of its data. Here
tasks announce files instead of ids, and the transaction of a publish updates pending segments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Protocol

from pydantic import JsonValue
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import Conflict, InvalidRequest, NotFound
from penstock.core.http_errors import error_body
from penstock.core.intervals import format_time
from penstock.indexing.ports import TaskReport
from penstock.indexing.worker.peon_task import PeonTask
from penstock.services.api.asgi import JsonResponse, json_object
from penstock.services.api.futures import result_of
from penstock.services.api.process_clients import PAUSE_ANSWER_S, offsets_of, report_to_json


class TaskControl(Protocol):
    """Methods of a streaming task that this API calls; each sends mail and returns a future."""

    @property
    def started_ms(self) -> int:
        """Return the time at which the process started the task, in epoch ms."""
        ...

    def report(self) -> Future[TaskReport]:
        """Return the report of the task."""
        ...

    def pause(self) -> Future[dict[int, int]]:
        """Stop reading; return the offsets at which the task stopped."""
        ...

    def resume(self) -> Future[None]:
        """Continue reading."""
        ...

    def set_end_offsets(self, end: Mapping[int, int], *, finish: bool) -> Future[None]:
        """Set the end of the open sequence, and resume."""
        ...


class PeonRoutes:
    """The routes of a peon.

    Args:
        task_id: Id of the task.
        task: The task.
        stop: Shuts the process down cleanly.
        control: The streaming task; None for a batch task.
        context: The task's context.
    """

    def __init__(
        self,
        task_id: str,
        task: PeonTask,
        stop: Callable[[], None],
        control: TaskControl | None = None,
        *,
        context: Mapping[str, JsonValue] | None = None,
    ) -> None:
        self._task_id = task_id
        self._task = task
        self._stop = stop
        self._control = control
        self._context = context

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        chat = "/druid/worker/v1/chat/{task_id}"
        every = [
            Route(chat + "/liveReports", self.live_reports),
            Route(chat + "/rowStats", self.row_stats),
            Route(chat + "/unparseableEvents", self.unparseable_events),
            Route(chat + "/stop", self.stop, methods=["POST"]),
        ]
        if self._control is None:
            return [*every]
        control = _Control(self._check, self._control)
        return [
            *every,
            Route(chat + "/status", control.show(lambda json: json)),
            Route(chat + "/time/start", control.started),
            Route(chat + "/offsets/current", control.show(lambda json: json["currentOffsets"])),
            Route(chat + "/offsets/end", control.show(lambda json: json["endOffsets"])),
            Route(chat + "/checkpoints", control.show(lambda json: json["checkpoints"])),
            Route(chat + "/pause", control.pause, methods=["POST"]),
            Route(chat + "/resume", control.resume, methods=["POST"]),
            Route(chat + "/offsets/end", control.set_end_offsets, methods=["POST"]),
        ]

    def live_reports(self, request: Request) -> Response:
        """Return the current report of the task."""
        self._check(request)
        return JsonResponse(self._task.report().to_json(self._task_id, self._context))

    def row_stats(self, request: Request) -> Response:
        """Return the counts."""
        self._check(request)
        report = self._task.report()
        averages = report.more.get("movingAverages", {})
        return JsonResponse({"totals": dict(report.row_stats), "movingAverages": averages})

    def unparseable_events(self, request: Request) -> Response:
        """Return samples of rows that could not be parsed."""
        self._check(request)
        report = self._task.report()
        return JsonResponse({phase: list(rows) for phase, rows in report.unparseable.items()})

    def stop(self, request: Request) -> Response:
        """Shut the process down cleanly."""
        self._check(request)
        self._stop()
        return JsonResponse({})

    def _check(self, request: Request) -> None:
        # Ports are reused: an overlord with an old location must not control another task.
        task_id = request.path_params["task_id"]
        if task_id != self._task_id:
            raise NotFound(
                f"task {task_id} does not run in this process: look up its current location"
            )


class _Control:
    """Routes by which a supervisor controls a streaming task."""

    def __init__(self, check: Callable[[Request], None], task: TaskControl) -> None:
        self._check = check
        self._task = task

    def show(self, pick: Callable[[Mapping[str, object]], object]) -> Callable[[Request], Response]:
        """Return a handler that answers with a part of the report."""

        def show(request: Request) -> Response:
            self._check(request)
            return JsonResponse(pick(report_to_json(result_of(self._task.report()))))

        return show

    def started(self, request: Request) -> Response:
        """Return the start time of the task."""
        self._check(request)
        return JsonResponse(format_time(self._task.started_ms))

    def pause(self, request: Request) -> Response:
        """Pause the task and return its offsets.

        Answers 409 if it only publishes, and 202 with a text if it has not paused within two
        seconds: try again.
        """
        self._check(request)
        paused = self._task.pause()
        if not wait([paused], PAUSE_ANSWER_S).done:
            return JsonResponse("accepted, but the task has not paused yet: try again", 202)
        try:
            offsets = result_of(paused)
        except Conflict as error:
            return JsonResponse(error_body(error), 409)
        return JsonResponse({str(p): offset for p, offset in offsets.items()})

    def resume(self, request: Request) -> Response:
        """Resume the task."""
        self._check(request)
        result_of(self._task.resume())
        return JsonResponse({})

    async def set_end_offsets(self, request: Request) -> Response:
        """Set the end of the open sequence."""
        self._check(request)
        try:
            end = offsets_of(await json_object(request))
        except (TypeError, ValueError):
            raise InvalidRequest(
                "the body must be a JSON object of stream partitions and offsets, such as "
                '{"0": 1200}'
            ) from None
        finish = request.query_params.get("finish", "true") != "false"
        await run_in_threadpool(lambda: result_of(self._task.set_end_offsets(end, finish=finish)))
        return JsonResponse({})
