"""The overlord's HTTP API in Druid's paths and shapes: tasks, supervisors, actions, segments.

Owns paths and shapes. What they do is `penstock.indexing.overlord`'s; segments are taken out of use
in the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.intervals import Interval, format_time
from penstock.indexing.overlord import Overlord, TaskView
from penstock.indexing.sequences import offsets_from_json
from penstock.indexing.taskspec import TASK_TYPE
from penstock.services.api.asgi import JsonResponse, integer, json_body, json_object
from penstock.services.api.clients import HttpWorkerClient, LeasedWorkers
from penstock.services.api.futures import settled
from penstock.storage.metadata import MetadataStore

PREFIX = "/druid/indexer/v1"
COMPLETE_TASKS_SHOWN = 100
# Tasks announce and publish thousands of files at once when they read the backlog of years.
ACTION_BYTES_MAX = 64 << 20
STATES = ("pending", "waiting", "running", "complete")
ADDRESS_OF_NOBODY = {"host": None, "port": -1, "tlsPort": -1}


def task_to_json(view: TaskView) -> dict[str, object]:
    """Return a task's status as Druid shows it."""
    row = view.row
    place = view.location
    complete = not row.active
    return {
        "id": row.id,
        "groupId": row.group_id,
        "type": row.type,
        "createdTime": format_time(row.created_ms),
        "queueInsertionTime": format_time(0),
        "statusCode": row.state,
        "status": row.state,
        "runnerStatusCode": view.runner_state,
        "duration": row.updated_ms - row.created_ms if complete else -1,
        "location": (
            ADDRESS_OF_NOBODY
            if place is None
            else {"host": place.host, "port": place.port, "tlsPort": -1}
        ),
        "dataSource": row.datasource,
        "errorMsg": row.status.get("errorMsg") or None,
    }


class TaskRoutes:
    """The routes of tasks, workers and actions."""

    def __init__(self, overlord: Overlord, workers: LeasedWorkers, address: str) -> None:
        self._overlord = overlord
        self._workers = workers
        self._address = address

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        task = PREFIX + "/task/{task_id}"
        return [
            Route(PREFIX + "/action", self.action, methods=["POST"]),
            Route(PREFIX + "/leader", lambda _: PlainTextResponse(self._address)),
            Route(PREFIX + "/isLeader", lambda _: JsonResponse({"leader": True})),
            Route(PREFIX + "/tasks", self.tasks),
            Route(PREFIX + "/pendingTasks", self._of_state("pending")),
            Route(PREFIX + "/waitingTasks", self._of_state("waiting")),
            Route(PREFIX + "/runningTasks", self._of_state("running")),
            Route(PREFIX + "/completeTasks", self._of_state("complete")),
            Route(PREFIX + "/taskStatus", self.statuses, methods=["POST"]),
            Route(task, self.payload),
            Route(task + "/status", self.status),
            Route(task + "/log", self.log),
            Route(task + "/shutdown", self.shutdown, methods=["POST"]),
            Route(PREFIX + "/workers", self.workers),
            Route(PREFIX + "/totalWorkerCapacity", self.capacity),
        ]

    async def action(self, request: Request) -> Response:
        """Do what a task asks for."""
        body = await json_object(request)
        task_id = body.get("task")
        if not isinstance(task_id, str):
            raise InvalidRequest("must name the task", place="task")
        result = await run_in_threadpool(self._overlord.perform_action, task_id, body.get("action"))
        return JsonResponse({"result": result})

    def tasks(self, request: Request) -> Response:
        """List tasks: the active ones, and those that completed last."""
        state = request.query_params.get("state")
        if state is not None and state not in STATES:
            raise InvalidRequest(f"{state!r} is no state; use {', '.join(STATES)}", place="state")
        return JsonResponse(self._list(state, request))

    def _of_state(self, state: str) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            return JsonResponse(self._list(state, request))

        return answer

    def _list(self, state: str | None, request: Request) -> list[dict[str, object]]:
        datasource = request.query_params.get("datasource")
        limit = integer(request, "max") or integer(request, "n") or COMPLETE_TASKS_SHOWN
        if limit < 0:
            raise InvalidRequest(f"{limit} tasks cannot be shown: ask for 1 or more", place="max")
        views: list[TaskView] = []
        if state != "complete":
            active = self._overlord.tasks(active=True, datasource=datasource)
            views += [one for one in active if state in (None, one.runner_state.lower())]
        if state in (None, "complete"):
            views += self._overlord.tasks(active=False, datasource=datasource, limit=limit)
        return [task_to_json(view) for view in views]

    def payload(self, request: Request) -> Response:
        """Show what a task is."""
        row = self._overlord.task(request.path_params["task_id"]).row
        return JsonResponse({"task": row.id, "payload": dict(row.payload)})

    def status(self, request: Request) -> Response:
        """Show how a task stands."""
        task_id = request.path_params["task_id"]
        try:
            view = self._overlord.task(task_id)
        except NotFound as error:
            return JsonResponse({"task": task_id, "status": None, "error": str(error)}, 404)
        return JsonResponse({"task": task_id, "status": task_to_json(view)})

    async def statuses(self, request: Request) -> Response:
        """Show how several tasks stand."""
        ids = await json_body(request)
        if not isinstance(ids, list) or not ids:
            raise InvalidRequest("the body must be a list of task ids, one at least")
        return await run_in_threadpool(self._statuses, [str(task_id) for task_id in ids])

    def _statuses(self, ids: list[str]) -> Response:
        found: dict[str, object] = {}
        for task_id in ids:
            try:
                found[task_id] = task_to_json(self._overlord.task(task_id))
            except NotFound:
                continue
        return JsonResponse(found)

    def log(self, request: Request) -> Response:
        """Show a task's log, from the worker that has it."""
        task_id = request.path_params["task_id"]
        offset = integer(request, "offset", 0) or 0
        row = self._overlord.task(task_id).row
        active = self._overlord.active_tasks().get(task_id)
        name = (active.worker if active else None) or row.status.get("worker")
        for worker in self._log_holders(str(name) if name else None):
            try:
                return PlainTextResponse(worker.read_log(task_id, offset).content)
            except NotFound:
                continue
        raise NotFound(f"no worker has the log of task {task_id}")

    def _log_holders(self, name: str | None) -> list[HttpWorkerClient]:
        workers = list(self._workers.workers())
        return [one for one in workers if one.name == name] or workers

    def shutdown(self, request: Request) -> Response:
        """End a task."""
        task_id = request.path_params["task_id"]
        settled(self._overlord.shutdown_task(task_id))
        return JsonResponse({"task": task_id})

    def workers(self, _request: Request) -> Response:
        """List the workers with what they run."""
        running: dict[str, list[str]] = {}
        for task_id, task in self._overlord.active_tasks().items():
            if task.worker is not None:
                running.setdefault(task.worker, []).append(task_id)
        slots = self._slots()
        return JsonResponse(
            [
                _worker_to_json(one, slots.get(one.name, 0), sorted(running.get(one.name, [])))
                for one in self._workers.workers()
            ]
        )

    def _slots(self) -> dict[str, int]:
        return {one.name: one.capacity for one in settled(self._overlord.desk.workers())}

    def capacity(self, _request: Request) -> Response:
        """Show how many tasks may run at once."""
        total = sum(self._slots().values())
        used = sum(one.worker is not None for one in self._overlord.active_tasks().values())
        return JsonResponse(
            {
                "currentClusterCapacity": total,
                "maximumCapacityWithAutoScale": total,
                "usedClusterCapacity": used,
            }
        )


def _worker_to_json(one: HttpWorkerClient, slots: int, running: list[str]) -> dict[str, object]:
    return {
        "worker": {
            "scheme": "http",
            "host": str(one.address),
            "ip": one.address.host,
            "name": one.name,
            "capacity": slots,
            "version": "0",
            "category": "_default_worker_category",
            "disabled": False,
        },
        "currCapacityUsed": len(running),
        "currParallelIndexCapacityUsed": 0,
        "currCapacityUsedByTaskType": {TASK_TYPE: len(running)} if running else {},
        "availabilityGroups": [],
        "runningTasks": running,
        "lastCompletedTaskTime": None,
        "blacklistedUntil": None,
    }


class SupervisorRoutes:
    """The routes of supervisors."""

    def __init__(self, overlord: Overlord) -> None:
        self._overlord = overlord

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        base = PREFIX + "/supervisor"
        one = base + "/{supervisor_id}"
        return [
            Route(base, self.list),
            Route(base, self.submit, methods=["POST"]),
            Route(one, self.spec),
            Route(one + "/status", self.status),
            Route(one + "/health", self.health),
            Route(one + "/stats", self.stats),
            Route(one + "/history", self.history),
            Route(one + "/suspend", self.suspend, methods=["POST"]),
            Route(one + "/resume", self.resume, methods=["POST"]),
            Route(one + "/terminate", self.terminate, methods=["POST"]),
            Route(one + "/shutdown", self.terminate, methods=["POST"]),
            Route(one + "/reset", self.reset, methods=["POST"]),
            Route(one + "/resetOffsets", self.reset_offsets, methods=["POST"]),
            Route(one + "/taskGroups/handoff", self.hand_off, methods=["POST"]),
        ]

    def list(self, request: Request) -> Response:
        """List supervisors: ids, or with `state` or `full` an entry each."""
        found = settled(self._overlord.supervisors())
        if "full" in request.query_params:
            full = [
                {**one, "spec": settled(self._overlord.supervisor_spec(str(one["id"]))).to_json()}
                for one in found
            ]
            return JsonResponse(full)
        if request.query_params.get("state") == "true":
            return JsonResponse(found)
        return JsonResponse([one["id"] for one in found])

    async def submit(self, request: Request) -> Response:
        """Start a supervisor, or give one another spec."""
        # As it was sent: a name that stands twice in an object is seen in the text alone.
        return await run_in_threadpool(self._submit, await request.body())

    def _submit(self, body: bytes) -> Response:
        supervisor_id = settled(self._overlord.submit_supervisor(body))
        return JsonResponse({"id": supervisor_id})

    def spec(self, request: Request) -> Response:
        """Show a spec."""
        return JsonResponse(settled(self._overlord.supervisor_spec(_id(request))).to_json())

    def status(self, request: Request) -> Response:
        """Show how a supervisor stands."""
        return JsonResponse(settled(self._overlord.supervisor_status(_id(request))))

    def health(self, request: Request) -> Response:
        """Say whether a supervisor does what it should."""
        status = settled(self._overlord.supervisor_status(_id(request)))
        payload = status.get("payload")
        healthy = isinstance(payload, Mapping) and payload.get("healthy") is True
        return JsonResponse({"healthy": healthy}, 200 if healthy else 503)

    def stats(self, request: Request) -> Response:
        """Show what a supervisor's tasks have counted."""
        return JsonResponse(settled(self._overlord.supervisor_stats(_id(request))))

    def history(self, request: Request) -> Response:
        """List the versions of a spec, the newest first."""
        rows = self._overlord.history(_id(request))
        return JsonResponse(
            [
                {
                    "spec": None if row.tombstone else dict(row.payload),
                    "version": str(row.version),
                    "creationTime": format_time(row.created_ms),
                }
                for row in rows
            ]
        )

    def suspend(self, request: Request) -> Response:
        """Suspend a supervisor."""
        return JsonResponse(settled(self._overlord.suspend(_id(request))).to_json())

    def resume(self, request: Request) -> Response:
        """Resume a supervisor."""
        return JsonResponse(settled(self._overlord.resume(_id(request))).to_json())

    def terminate(self, request: Request) -> Response:
        """Terminate a supervisor."""
        settled(self._overlord.terminate(_id(request)))
        return JsonResponse({"id": _id(request)})

    def reset(self, request: Request) -> Response:
        """Forget how far a supervisor has read."""
        settled(self._overlord.reset(_id(request)))
        return JsonResponse({"id": _id(request)})

    async def reset_offsets(self, request: Request) -> Response:
        """Set how far a supervisor has read."""
        wanted = (await json_object(request)).get("partitions")
        if not isinstance(wanted, dict):
            raise InvalidRequest("must hold stream and partitionOffsetMap", place="partitions")
        return await run_in_threadpool(self._reset_offsets, _id(request), wanted)

    def _reset_offsets(self, supervisor_id: str, wanted: dict[str, object]) -> Response:
        place = "partitions.partitionOffsetMap"
        try:
            offsets = offsets_from_json(wanted.get("partitionOffsetMap"))
        except InvalidRequest as error:
            raise InvalidRequest(str(error), place=place) from None
        if not offsets:
            raise InvalidRequest("must name one stream partition at least", place=place)
        topic = settled(self._overlord.supervisor_spec(supervisor_id)).io.topic
        if wanted.get("stream", topic) != topic:
            raise InvalidRequest(
                f"the supervisor reads {topic}, not {wanted['stream']}", place="partitions.stream"
            )
        settled(self._overlord.reset(supervisor_id, offsets))
        return JsonResponse({"id": supervisor_id})

    async def hand_off(self, request: Request) -> Response:
        """Have task groups publish what they have read."""
        groups = (await json_object(request)).get("taskGroupIds")
        if not isinstance(groups, list) or not groups:
            raise InvalidRequest("must list task groups, one at least", place="taskGroupIds")
        if not all(isinstance(group, int) for group in groups):
            raise InvalidRequest("must be whole numbers", place="taskGroupIds")
        await run_in_threadpool(lambda: settled(self._overlord.hand_off(_id(request), groups)))
        return JsonResponse({}, 202)


def _id(request: Request) -> str:
    return str(request.path_params["supervisor_id"])


class SegmentRoutes:
    """The routes that take segments out of use and bring them back."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(
                PREFIX + "/datasources/{datasource}/markUnused", self.mark_unused, methods=["POST"]
            ),
        ]

    async def mark_unused(self, request: Request) -> Response:
        """Take segments out of use: by id, or all inside an interval."""
        body = await json_object(request)
        return await run_in_threadpool(self._mark, request.path_params["datasource"], body)

    def _mark(self, datasource: str, body: dict[str, object]) -> Response:
        ids, interval = body.get("segmentIds"), body.get("interval")
        if (ids is None) == (interval is None):
            raise InvalidRequest("give segmentIds or interval, one of them")
        used = self._store.snapshot(datasource).segments
        if isinstance(interval, str):
            inside = Interval.parse(interval)
            wanted = {row.id for row in used if inside.covers(row.interval)}
        elif isinstance(ids, list):
            wanted = {str(one) for one in ids}
            unknown = wanted - {row.id for row in used}
            if unknown:
                raise NotFound(f"{datasource} has no used segment {min(unknown)}")
        else:
            raise InvalidRequest("segmentIds must be a list, or interval a text")
        changed = self._store.segments.mark_unused(sorted(wanted))
        return JsonResponse({"numChangedSegments": changed, "segmentStateChanged": changed > 0})
