"""Long polls of overlords that wait for a worker's next change.

Belongs to the worker's mailbox thread. Owns the history and the futures of open polls; each is
answered once: at the next change, or when its time is over. The number of open polls is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import Unavailable
from penstock.indexing.ports import HistoryPlace, WorkerChanges

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock.indexing.ports import WorkerReport, WorkerTask
    from penstock.indexing.worker.history import ChangeHistory
    from penstock.mailbox import MailboxProcessor, Timer

# The name of a change of the worker itself; no task has this id, because no folder can have it.
WORKER: Final = "/"


class Told(Protocol):
    """State of a worker, for the answers."""

    @property
    def enabled(self) -> bool:
        """Whether it accepts new tasks."""
        ...

    def everything(self) -> WorkerReport:
        """Return the full state."""
        ...

    def task(self, task_id: str) -> WorkerTask | None:
        """Return the state of a task; None if it does not exist."""
        ...


class LongPoll:
    """The open polls of overlords.

    Args:
        history: The changes.
        processor: The worker's mailbox.
        told: The state of the worker.
        waiters_max: Maximum number of open polls.
    """

    def __init__(
        self,
        history: ChangeHistory,
        processor: MailboxProcessor,
        told: Told,
        waiters_max: int,
    ) -> None:
        self._history = history
        self._processor = processor
        self._told = told
        self._waiters_max = waiters_max
        self._waiting: dict[Future[WorkerChanges], tuple[HistoryPlace, Timer]] = {}

    def changed(self, name: str) -> None:
        """Record a change and answer all open polls."""
        self._history.add(name)
        self._answer_all()

    def ask(self, answer: Future[WorkerChanges], after: HistoryPlace, wait_ms: int) -> None:
        """Answer when something changed after a position, or when the time is over."""
        if wait_ms <= 0 or after != self._history.place:
            _settle(answer, self._since(after))
            return
        if len(self._waiting) >= self._waiters_max:
            self._forget_gone()
        if len(self._waiting) >= self._waiters_max:
            if answer.set_running_or_notify_cancel():
                text = f"{self._waiters_max} requests wait for a change already: try again later"
                answer.set_exception(Unavailable(text))
            return
        timer = self._processor.timers.schedule_after(
            wait_ms, lambda: self._expire(answer), "the end of a long poll"
        )
        self._waiting[answer] = (after, timer)

    def close(self) -> None:
        """Answer all open polls: there will be no further change."""
        self._answer_all()

    def _answer_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer, (place, timer) in waiting.items():
            timer.cancel()
            _settle(answer, self._since(place))

    def _forget_gone(self) -> None:
        for answer in [answer for answer in self._waiting if answer.cancelled()]:
            _place, timer = self._waiting.pop(answer)
            timer.cancel()

    def _expire(self, answer: Future[WorkerChanges]) -> None:
        found = self._waiting.pop(answer, None)
        if found is not None:
            _settle(answer, self._since(found[0]))

    def _since(self, place: HistoryPlace) -> WorkerChanges:
        now, enabled = self._history.place, self._told.enabled
        names = self._history.since(place)
        if names is None:
            report = self._told.everything()
            return WorkerChanges(now, reset=True, report=report, enabled=enabled)
        found = [(name, self._told.task(name)) for name in names if name != WORKER]
        return WorkerChanges(
            now,
            tasks=tuple(task for _name, task in found if task is not None),
            removed=tuple(name for name, task in found if task is None),
            enabled=enabled,
        )


def _settle(answer: Future[WorkerChanges], changes: WorkerChanges) -> None:
    # The caller may have disconnected.
    if answer.set_running_or_notify_cancel():
        answer.set_result(changes)
