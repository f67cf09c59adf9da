"""HTTP clients between Penstock processes: implementations of `penstock.indexing.ports`.

Owns paths and JSON forms of the calls between overlord, workers and peons. Nothing is retried here:
the caller knows which calls may be repeated, and for how long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from penstock.core.bearer import Bearer
from penstock.core.errors import Dependency, PenstockError, Unavailable
from penstock.core.waits import waits_from_json
from penstock.core.whole_numbers import int64_of, is_int64
from penstock.indexing.ports import (
    DEFAULT_WORKER_CATEGORY,
    HistoryPlace,
    TaskAction,
    TaskLocation,
    TaskPhase,
    TaskReport,
    TaskState,
    Throughput,
    WorkerChanges,
    WorkerReport,
    WorkerTask,
)
from penstock.indexing.task_log import READ_BYTES_MAX, LogPart
from penstock.services.json_client import Answer, JsonClient
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.options.option_values import HostPort

if TYPE_CHECKING:
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.task_spec import TaskSpec

R = TypeVar("R")

# Peons answer from memory; a pause may have to wait for the current work of the mailbox.
PEON_TIMEOUT_S = 10.0
# Time after which a peon answers that it will pause later.
PAUSE_ANSWER_S = 2.0
WORKER_TIMEOUT_S = 10.0
ACTION_TIMEOUT_S = 60.0

# Headers: where the returned part of a log begins, and the size of the whole log.
LOG_OFFSET_HEADER = "X-Penstock-Log-Offset"
LOG_SIZE_HEADER = "X-Penstock-Log-Size"


def chat_path(task_id: str, verb: str) -> str:
    """Return the path of a peon's control API."""
    return f"/druid/worker/v1/chat/{quote(task_id, safe='')}/{verb}"


def report_to_json(report: TaskReport) -> dict[str, object]:
    """Return the JSON form of a task's report."""
    return {
        "phase": report.phase.value,
        "currentOffsets": _texts(report.current),
        "persistedOffsets": _texts(report.persisted),
        "endOffsets": None if report.end is None else _texts(report.end),
        "checkpoints": {str(n): _texts(one) for n, one in report.checkpoints.items()},
        "counts": dict(report.counts),
        "error": report.error,
        "movingAverages": {span: dict(rates) for span, rates in report.averages.items()},
        "unparseableEvents": [dict(sample) for sample in report.unparseable],
        "perSecond": report.throughput.per_second,
        "idle": report.throughput.idle,
    }


def report_from_json(value: object) -> TaskReport:
    """Read a task's report.

    Raises:
        Unavailable: The value is not a report: another program answers at the peon's address.
    """
    if not isinstance(value, dict):
        raise Unavailable("the answer is not a report of a task")
    try:
        return TaskReport(
            phase=TaskPhase(value["phase"]),
            current=offsets_of(value["currentOffsets"]),
            persisted=offsets_of(value["persistedOffsets"]),
            end=None if value["endOffsets"] is None else offsets_of(value["endOffsets"]),
            checkpoints={int(n): offsets_of(one) for n, one in value["checkpoints"].items()},
            counts={str(name): int(count) for name, count in value["counts"].items()},
            error=str(value.get("error", "")),
            averages={
                str(span): {str(name): float(rate) for name, rate in rates.items()}
                for span, rates in value.get("movingAverages", {}).items()
            },
            unparseable=tuple(dict(sample) for sample in value.get("unparseableEvents", ())),
            throughput=Throughput(
                float(value.get("perSecond", 0.0)),
                None if value.get("idle") is None else float(value["idle"]),
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(f"the answer is not a report of a task: {error!r}") from None


def offsets_of(value: object) -> dict[int, int]:
    """Read offsets, whose keys are text in JSON.

    Raises:
        TypeError: The value is not an object.
        ValueError: A key or value is not a whole number.
    """
    if not isinstance(value, dict):
        raise TypeError("offsets must be an object")
    found: dict[int, int] = {}
    for name, offset in value.items():
        partition = int64_of(str(name))
        if partition is None or not is_int64(offset):
            raise ValueError(f"not a stream partition and its offset: {name!r:.60}: {offset!r:.60}")
        found[partition] = offset
    return found


def _texts(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in offsets.items()}


class HttpTaskClient:
    """`TaskClient` over the peons' control APIs.

    Args:
        locate: Returns the address of a task's peon; None while it is unknown.
        bearer_of: Returns the bearer token that a task's peon accepts.
        timeout_s: Limit for connecting and for each read.
    """

    def __init__(
        self,
        locate: Callable[[str], TaskLocation | None],
        bearer_of: Callable[[str], str] = lambda _: "",
        *,
        timeout_s: float = PEON_TIMEOUT_S,
    ) -> None:
        self._locate = locate
        self._bearer_of = bearer_of
        self._timeout_s = timeout_s

    def within(self, answer_ms: int) -> HttpTaskClient:
        """Return a client whose answers are awaited for this time."""
        return HttpTaskClient(self._locate, self._bearer_of, timeout_s=answer_ms / 1000)

    def report(self, task_id: str) -> TaskReport:
        """Return the report of a task."""
        return report_from_json(self._client(task_id).get(chat_path(task_id, "status")))

    def pause(self, task_id: str) -> dict[int, int]:
        """Stop reading; return the offsets at which the task stopped."""
        client = self._client(task_id)
        answer: object = ""
        for _ in range(max(1, int(self._timeout_s / PAUSE_ANSWER_S))):
            answer = client.post(chat_path(task_id, "pause"))
            if not isinstance(answer, str):
                break
        else:
            raise Unavailable(f"task {task_id} has not paused within {self._timeout_s:g} s")
        try:
            return offsets_of(answer)
        except (TypeError, ValueError) as error:
            raise Unavailable(f"the answer to the pause has no offsets: {error}") from None

    def resume(self, task_id: str) -> None:
        """Continue reading."""
        self._client(task_id).post(chat_path(task_id, "resume"))

    def set_end_offsets(self, task_id: str, end: Offsets, *, finish: bool) -> None:
        """Set the end of the open sequence, and resume."""
        query = {"finish": "true" if finish else "false"}
        self._client(task_id).post(chat_path(task_id, "offsets/end"), _texts(end), query)

    def _client(self, task_id: str) -> JsonClient:
        location = self._locate(task_id)
        if location is None:
            raise Unavailable(f"it is not known yet where task {task_id} runs")
        address = HostPort(location.host, location.port)
        return JsonClient(
            address.url,
            token=partial(self._bearer_of, task_id),
            timeout_s=self._timeout_s,
            role="peon",
        )


def worker_report_to_json(report: WorkerReport) -> dict[str, object]:
    """Return the JSON form of a worker's report."""
    return {
        "capacity": report.capacity,
        "enabled": report.enabled,
        "category": report.category,
        "version": report.version,
        "tasks": [_task_to_json(one) for one in report.tasks],
    }


def _task_to_json(task: WorkerTask) -> dict[str, object]:
    location = task.location
    return {
        "id": task.id,
        "status": task.state.value,
        "location": None if location is None else {"host": location.host, "port": location.port},
        "errorMsg": task.error,
        "duration": task.duration_ms,
        "waits": [one.to_json() for one in task.waits],
    }


def worker_report_from_json(value: object) -> WorkerReport:
    """Read a worker's report.

    Raises:
        Unavailable: The value is not a report.
    """
    if not isinstance(value, dict):
        raise Unavailable("the answer is not a report of a worker")
    try:
        return WorkerReport(
            capacity=int(value["capacity"]),
            tasks=tuple(_task_from_json(one) for one in value["tasks"]),
            enabled=value.get("enabled") is not False,
            category=str(value.get("category") or DEFAULT_WORKER_CATEGORY),
            version=str(value.get("version") or "0"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(f"the answer is not a report of a worker: {error!r}") from None


def worker_changes_to_json(changes: WorkerChanges) -> dict[str, object]:
    """Return the JSON form of a worker's changes."""
    return {
        "counter": {"counter": changes.place.counter, "hash": changes.place.hash},
        "resetCounter": changes.reset,
        "tasks": [_task_to_json(one) for one in changes.tasks],
        "removed": list(changes.removed),
        "report": None if changes.report is None else worker_report_to_json(changes.report),
        "enabled": changes.enabled,
    }


def worker_changes_from_json(value: object) -> WorkerChanges:
    """Read a worker's changes.

    Raises:
        Unavailable: The value is not a history of changes.
    """
    if not isinstance(value, dict):
        raise Unavailable("the answer is not a history of a worker")
    try:
        place, report = value["counter"], value.get("report")
        return WorkerChanges(
            place=HistoryPlace(int(place["counter"]), int(place["hash"])),
            reset=bool(value["resetCounter"]),
            tasks=tuple(_task_from_json(one) for one in value["tasks"]),
            removed=tuple(str(one) for one in value["removed"]),
            report=None if report is None else worker_report_from_json(report),
            enabled=value.get("enabled") is not False,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unavailable(f"the answer is not a history of a worker: {error!r}") from None


def _task_from_json(value: dict[str, object]) -> WorkerTask:
    location = value.get("location")
    return WorkerTask(
        id=str(value["id"]),
        state=TaskState(str(value["status"])),
        location=(
            TaskLocation(str(location["host"]), int(location["port"]))
            if isinstance(location, dict)
            else None
        ),
        error=str(value.get("errorMsg") or ""),
        duration_ms=int(str(value.get("duration", -1))),
        waits=waits_from_json(value.get("waits")),
    )


class HttpWorkerClient:
    """`WorkerClient` over a worker's HTTP API."""

    def __init__(self, name: str, address: HostPort, token: Bearer = None) -> None:
        self._name = name
        self._token = token
        self.address = address
        self._client = JsonClient(
            address.url,
            token=token,
            timeout_s=WORKER_TIMEOUT_S,
            dependency=Dependency.WORKER,
            role="worker",
        )

    @property
    def name(self) -> str:
        """Return the worker's name, which stays the same after a restart."""
        return self._name

    @property
    def host(self) -> str:
        """Return the worker's host and port."""
        return str(self.address)

    def report(self) -> WorkerReport:
        """Return the state of all tasks of the worker."""
        return worker_report_from_json(self._client.get("/druid-internal/v1/worker"))

    def changes(self, after: HistoryPlace, wait_ms: int) -> WorkerChanges:
        """Return the changes after a place in the history; wait for the first, up to the limit."""
        query = {"counter": after.counter, "hash": after.hash, "timeout": wait_ms}
        client = JsonClient(
            self._client.base_url,
            token=self._token,
            timeout_s=wait_ms / 1000 + WORKER_TIMEOUT_S,
            role="worker",
        )
        return worker_changes_from_json(client.get("/druid-internal/v1/worker", query))

    def assign(self, task: TaskSpec) -> None:
        """Assign a task to the worker."""
        self._client.post("/druid-internal/v1/worker/assignTask", task.to_json())

    def shutdown(self, task_id: str) -> None:
        """Stop a task, or forget a task that ended."""
        self._client.post(f"/druid/worker/v1/task/{quote(task_id, safe='')}/shutdown")

    def set_enabled(self, enabled: bool) -> None:
        """Enable or disable new tasks on the worker."""
        self._client.post(f"/druid/worker/v1/{'enable' if enabled else 'disable'}")

    def read_log(self, task_id: str, offset: int = 0, bytes_max: int = READ_BYTES_MAX) -> LogPart:
        """Return a part of a task's log; see `TaskLogReader`."""
        query = {"offset": offset, "bytes": bytes_max}
        answer = self._read(task_id, "log", query)
        return LogPart(
            answer.content,
            int(answer.headers.get(LOG_OFFSET_HEADER, 0)),
            int(answer.headers.get(LOG_SIZE_HEADER, len(answer.content))),
        )

    def read_report(self, task_id: str) -> bytes:
        """Return the report of a task that ended; see `TaskLogReader`."""
        return self._read(task_id, "reports", {}).content

    def _read(self, task_id: str, what: str, query: Mapping[str, object]) -> Answer:
        path = f"/druid/worker/v1/task/{quote(task_id, safe='')}/{what}"
        return self._client.fetch(path, query)


class LeasedWorkers:
    """`WorkerDirectory` over leases."""

    def __init__(self, directory: LeaseDirectory, token: Bearer = None) -> None:
        self._directory = directory
        self._token = token

    def workers(self) -> Sequence[HttpWorkerClient]:
        """Return the workers that are announced."""
        return [
            HttpWorkerClient(row.instance, HostPort(row.host, row.port), self._token)
            for row in self._directory.all("worker")
        ]


class WorkerLocator:
    """Looks up addresses at the worker of a peon, which reads them from the metadata store.

    So a peon does not need the metadata store. Nothing is cached: each call sends a request.

    Args:
        worker: Address of the worker.
        broker: Configured address of the broker; None: the worker returns it.
        token: Bearer token.
    """

    def __init__(
        self, worker: HostPort, broker: HostPort | None = None, token: Bearer = None
    ) -> None:
        self._worker = JsonClient(
            worker.url, token=token, timeout_s=WORKER_TIMEOUT_S, role="worker"
        )
        self._broker = broker

    def broker_url(self) -> str:
        """Return the URL of the broker.

        Raises:
            Unavailable: The worker does not answer, or has found no broker.
        """
        if self._broker is not None:
            return self._broker.url
        return str(self._worker.get("/druid-internal/v1/broker"))

    def overlord(self) -> HostPort:
        """Return the address of the leading overlord.

        Raises:
            Unavailable: The worker does not answer, or no overlord leads.
        """
        return HostPort.parse(str(self._worker.get("/druid-internal/v1/leader")))


class HttpActionClient:
    """`ActionClient` of one task: looks the overlord up again for each action.

    Args:
        task_id: The task that sends the actions.
        locator: Looks up the overlord.
        token: Bearer token.
        worker: Worker that runs the task; actions from a worker that lost the task are refused.
    """

    def __init__(
        self,
        task_id: str,
        locator: WorkerLocator,
        token: Bearer = None,
        worker: str | None = None,
    ) -> None:
        self._task_id = task_id
        self._worker = worker
        self._locator = locator
        self._token = token

    def perform(self, action: TaskAction[R]) -> R:
        """Send an action and return its answer; see `ActionClient`."""
        client = JsonClient(
            self._locator.overlord().url,
            token=self._token,
            timeout_s=ACTION_TIMEOUT_S,
            dependency=Dependency.OVERLORD,
            role="overlord",
        )
        body = {"task": self._task_id, "worker": self._worker, "action": action.to_json()}
        answer = client.post("/druid/indexer/v1/action", body)
        if not isinstance(answer, dict) or "result" not in answer:
            raise PenstockError("the overlord's answer to an action has no result")
        return action.parse_result(answer["result"])
