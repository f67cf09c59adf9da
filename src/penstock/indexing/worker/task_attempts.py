"""The result of a task, and its attempts: the files that a peon and its worker exchange.

    attempt/<n>/begun.json    the peon has started the task; whether it can continue from here
    attempt/<n>/report.json   the task's report; written before its result
    attempt/<n>/status.json   the result of the task, by its peon
    waits.json                dependencies that the task waits for, by its peon; emptied at start
    shutdown.json             why the task must end, by the worker, before it signals the peon
    status.json               the result of the task, by the worker: takes precedence

The worker restarts a peon in the same folder. Each start is an attempt with its own number, which
the peon assigns while it holds the lock of the folder. Every file is replaced atomically. Owns
these names and forms; the worker decides about the consequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.errors import NotFound
from penstock.indexing.ports import TaskState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.indexing.task.task_folder import TaskFolder
    from penstock.storage.filesystem import FileSystem

STATUS: Final = "status.json"
REPORT: Final = "report.json"
SHUTDOWN: Final = "shutdown.json"
WAITS: Final = "waits.json"
_BEGUN: Final = "begun.json"
_ATTEMPTS: Final = "attempt"


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The result of a task."""

    state: TaskState
    error: str = ""
    duration_ms: int = -1

    def to_json(self) -> dict[str, object]:
        """Return the form of ``status.json``."""
        return status_to_json(self.state, self.error, self.duration_ms)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> AttemptEnd:
        """Parse the form; a state that is not final counts as a failure."""
        try:
            state = TaskState(str(value.get("status")))
        except ValueError:
            state = TaskState.FAILED
        duration = value.get("duration")
        return cls(
            state if state.complete else TaskState.FAILED,
            str(value.get("errorMsg") or ""),
            duration if isinstance(duration, int) else -1,
        )


def status_to_json(state: TaskState, error: str, duration_ms: int) -> dict[str, object]:
    """Return the ``status.json`` of an ended task."""
    return {"status": state.value, "errorMsg": error, "duration": duration_ms}


class TaskAttempts:
    """The attempts of one task."""

    def __init__(self, folder: TaskFolder, fs: FileSystem) -> None:
        self._folder = folder
        self._fs = fs

    def newest(self) -> int:
        """Return the number of the newest attempt; 0 if there was none."""
        try:
            names = self._fs.listdir(f"{self._folder.path}/{_ATTEMPTS}")
        except NotFound:
            return 0
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def begin(self, *, restorable: bool) -> int:
        """Start an attempt and return its number; the caller holds the lock of the folder.

        Raises:
            Unavailable: The disk is full.
        """
        number = self.newest() + 1
        self._fs.mkdir(self._path(number))
        self._write(number, _BEGUN, {"restorable": restorable})
        return number

    def is_lost(self) -> bool:
        """Return whether the newest attempt was interrupted and the task cannot continue."""
        number = self.newest()
        begun = self._read(number, _BEGUN) if number else None
        return begun is not None and begun.get("restorable") is False

    def write_end(self, number: int, end: AttemptEnd) -> None:
        """Store the result of the task in an attempt."""
        self._write(number, STATUS, end.to_json())

    def write_report(self, number: int, report: Mapping[str, object]) -> None:
        """Store the task's report."""
        self._write(number, REPORT, report)

    def end(self) -> AttemptEnd | None:
        """Return the result of the task: from the worker, otherwise from the newest attempt.

        Raises:
            CorruptData: A file is damaged.
        """
        value = self._folder.read_json(STATUS)
        if value is not None:
            return AttemptEnd.from_json(value)
        number = self.newest()
        value = self._read(number, STATUS) if number else None
        if value is None:
            return None
        end = AttemptEnd.from_json(value)
        if end.state is TaskState.FAILED and (reason := self.shutdown_reason()) is not None:
            # The task itself only knows that it was stopped.
            return AttemptEnd(end.state, reason, end.duration_ms)
        return end

    def shutdown_reason(self) -> str | None:
        """Return why the task must end, None if no end was requested.

        Raises:
            CorruptData: The file is damaged.
        """
        value = self._folder.read_json(SHUTDOWN)
        return None if value is None else str(value.get("reason") or "it was shut down")

    def report_path(self) -> str | None:
        """Return the path of the newest report, None if there is none."""
        for number in range(self.newest(), 0, -1):
            path = f"{self._path(number)}/{REPORT}"
            if self._fs.exists(path):
                return path
        return None

    def _path(self, number: int) -> str:
        return f"{self._folder.path}/{_ATTEMPTS}/{number}"

    def _read(self, number: int, name: str) -> dict[str, object] | None:
        return self._folder.read_json(f"{_ATTEMPTS}/{number}/{name}")

    def _write(self, number: int, name: str, value: Mapping[str, object]) -> None:
        self._folder.write_json(f"{_ATTEMPTS}/{number}/{name}", dict(value))
