"""Logs and reports of tasks: at the worker, in the log store, or at the peon.

Owns where they are searched, in which order, and that a log is forwarded in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import orjson

from penstock.core.errors import NotFound, Unavailable
from penstock.indexing.task_log import READ_BYTES_MAX, TaskLogReader
from penstock.services.api.process_clients import chat_path
from penstock.services.json_client import JsonClient
from penstock.services.options.option_values import HostPort

if TYPE_CHECKING:
    from penstock.indexing.overlord import Overlord
    from penstock.indexing.ports import TaskLocation
    from penstock.indexing.task_log import LogPart

T = TypeVar("T")

LOG_BYTES_MAX: Final = 16 << 20
"""Size limit of one answer with a log; clients request the rest with the next offset."""

_PEON_TIMEOUT_S: Final = 5.0

Reports = Callable[[str, "TaskLocation"], object]


class WorkerHandle(TaskLogReader, Protocol):
    """The part of a worker that operators use through the overlord."""

    @property
    def name(self) -> str:
        """Return the worker's name, which stays the same after a restart."""
        ...

    @property
    def host(self) -> str:
        """Return the worker's host and port."""
        ...

    def set_enabled(self, enabled: bool) -> None:
        """Enable or disable new tasks on the worker."""
        ...


class WorkerHandles(Protocol):
    """The current workers."""

    def workers(self) -> Sequence[WorkerHandle]:
        """Return them."""
        ...


class MissingTaskFile(NotFound):
    """A task has no log or report: it has not begun, or its files were deleted."""


@dataclass(frozen=True, slots=True)
class OpenTaskLog:
    """A log that is being forwarded: its offset, total size, and bytes."""

    offset: int
    size: int
    parts: Iterator[bytes]


class TaskFiles:
    """Files of tasks. Thread-safe.

    Args:
        overlord: Finds the worker of a task.
        workers: The workers.
        store: Store of the logs of ended tasks; None if it cannot be read here.
        live_report: Requests the report from a running task's peon.
    """

    def __init__(
        self,
        overlord: Overlord,
        workers: WorkerHandles,
        store: TaskLogReader | None,
        live_report: Reports,
    ) -> None:
        self._overlord = overlord
        self._workers = workers
        self._store = store
        self._live_report = live_report

    def log(self, task_id: str, offset: int) -> OpenTaskLog:
        """Start to read a log.

        Args:
            task_id: The task.
            offset: Offset of the first byte; negative: from the end.

        Raises:
            NotFound: There is no such task.
            MissingTaskFile: It has no log.
            Unavailable: The process or store that has it does not answer.
        """

        def begin(one: TaskLogReader) -> tuple[TaskLogReader, LogPart]:
            return one, one.read_log(task_id, offset, READ_BYTES_MAX)

        reader, first = self._from_first(task_id, "log", begin)
        return OpenTaskLog(first.offset, first.size, _parts(reader, task_id, first))

    def report(self, task_id: str) -> object:
        """Return a task's report; of a running task the current one. Raises as `log`."""
        active = self._overlord.task_service.index.get(task_id)
        if active is not None and active.location is not None:
            return self._live_report(task_id, active.location)
        raw = self._from_first(task_id, "report", lambda one: one.read_report(task_id))
        report: object = orjson.loads(raw)
        return report

    def _from_first(self, task_id: str, what: str, read: Callable[[TaskLogReader], T]) -> T:
        silent: Unavailable | None = None
        for one in self._holders(task_id):
            try:
                return read(one)
            except NotFound:
                continue
            except Unavailable as error:
                silent = error
        if silent is not None:
            raise Unavailable(f"the {what} of task {task_id} cannot be read now: {silent}")
        raise MissingTaskFile(
            f"there is no {what} of task {task_id}: it has not begun, or it was deleted"
        )

    def _holders(self, task_id: str) -> Iterator[TaskLogReader]:
        """Return the possible sources, the most likely first."""
        row = self._overlord.task(task_id).row
        active = self._overlord.task_service.index.get(task_id)
        name = (active.worker if active else None) or row.status.get("worker")
        workers = list(self._workers.workers())
        yield from (one for one in workers if one.name == name)
        if self._store is not None and active is None:
            yield self._store
        yield from (one for one in workers if one.name != name)


def _parts(reader: TaskLogReader, task_id: str, first: LogPart) -> Iterator[bytes]:
    yield first.content
    at = first.offset + len(first.content)
    # Later lines are returned by the next request.
    end = min(first.size, first.offset + LOG_BYTES_MAX)
    while at < end:
        part = reader.read_log(task_id, at, min(READ_BYTES_MAX, end - at))
        if not part.content:
            return
        yield part.content
        at += len(part.content)


def peon_reports(bearer_of: Callable[[str], str]) -> Reports:
    """Return a function that requests reports from peons.

    Args:
        bearer_of: Returns the bearer token that a task's peon accepts.
    """

    def request_report(task_id: str, location: TaskLocation) -> object:
        address = HostPort(location.host, location.port)
        client = JsonClient(
            address.url, token=partial(bearer_of, task_id), timeout_s=_PEON_TIMEOUT_S, role="peon"
        )
        return client.get(chat_path(task_id, "liveReports"))

    return request_report
