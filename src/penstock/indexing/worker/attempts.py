"""How a task ended, and the tries of it: the files by which a peon and its worker agree.

    attempt/<n>/begun.json    the peon runs the task now; says whether the task can go on from here
    attempt/<n>/report.json   what the task tells of itself; written before how it ended
    attempt/<n>/status.json   how the task ended, by its peon
    waits.json                what the task waits for, by its peon; emptied when a peon is started
    shutdown.json             why it was asked to end, by the worker, before it asks
    status.json               how the task ended, by the worker: the last word

The worker starts a peon again in the same folder; each is an attempt with a number of its own,
given by the peon, which holds the lock of the folder then. Every file is replaced atomically. Owns
these names and forms; what follows from them is the worker's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.errors import NotFound
from penstock.indexing.ports import TaskState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.indexing.task.folder import TaskFolder
    from penstock.storage.filesystem import FileSystem

STATUS: Final = "status.json"
REPORT: Final = "report.json"
SHUTDOWN: Final = "shutdown.json"
WAITS: Final = "waits.json"
_BEGUN: Final = "begun.json"
_ATTEMPTS: Final = "attempt"


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How a task ended."""

    state: TaskState
    error: str = ""
    duration_ms: int = -1

    def to_json(self) -> dict[str, object]:
        """Return the form of ``status.json``."""
        return status_to_json(self.state, self.error, self.duration_ms)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> TaskEnd:
        """Read the form; a state that is none of an end is a failure."""
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
    """Return what ``status.json`` says of a task that ended."""
    return {"status": state.value, "errorMsg": error, "duration": duration_ms}


class Attempts:
    """The attempts of one task."""

    def __init__(self, folder: TaskFolder, fs: FileSystem) -> None:
        self._folder = folder
        self._fs = fs

    def newest(self) -> int:
        """Return the number of the newest attempt; 0: there was none."""
        try:
            names = self._fs.listdir(f"{self._folder.path}/{_ATTEMPTS}")
        except NotFound:
            return 0
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def begin(self, *, restorable: bool) -> int:
        """Begin an attempt and return its number; call with the lock of the folder.

        Raises:
            Unavailable: The disk is full.
        """
        number = self.newest() + 1
        self._fs.mkdir(self._path(number))
        self._write(number, _BEGUN, {"restorable": restorable})
        return number

    def is_lost(self) -> bool:
        """Whether the newest attempt was cut and the task cannot go on from its folder."""
        number = self.newest()
        begun = self._read(number, _BEGUN) if number else None
        return begun is not None and begun.get("restorable") is False

    def write_end(self, number: int, end: TaskEnd) -> None:
        """Say how the task ended in an attempt."""
        self._write(number, STATUS, end.to_json())

    def write_report(self, number: int, report: Mapping[str, object]) -> None:
        """Keep what the task told of itself."""
        self._write(number, REPORT, report)

    def end(self) -> TaskEnd | None:
        """Return how the task ended: the worker's word, else that of the newest attempt.

        Raises:
            CorruptData: A file is damaged.
        """
        value = self._folder.read_json(STATUS)
        if value is not None:
            return TaskEnd.from_json(value)
        number = self.newest()
        value = self._read(number, STATUS) if number else None
        if value is None:
            return None
        end = TaskEnd.from_json(value)
        if end.state is TaskState.FAILED and (reason := self.shutdown_reason()) is not None:
            # A task knows only that it was stopped.
            return TaskEnd(end.state, reason, end.duration_ms)
        return end

    def shutdown_reason(self) -> str | None:
        """Return why the task was asked to end, None if it was not.

        Raises:
            CorruptData: The file is damaged.
        """
        value = self._folder.read_json(SHUTDOWN)
        return None if value is None else str(value.get("reason") or "it was shut down")

    def report_path(self) -> str | None:
        """Return where the newest report is, None if there is none."""
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
