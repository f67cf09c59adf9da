"""Change history of a worker and the long-poll requests that wait for the next change.

`ChangeHistory` is pure. It owns the counter of changes, the hash that chains them, and how many
are kept; the current state of a changed task belongs to the worker. Results by the position
that an overlord sends:

| position | result |
|---|---|
| initial (-1) | everything |
| its counter is ahead of this history | everything: it belongs to another history |
| its hash differs from this history's at that counter | everything |
| older than the kept changes | everything |
| any other | the changes since then, each name once |

`LongPoll` owns the history and the waiting futures, on the worker's mailbox thread. Each future
is completed once: at the next change or at its timeout. The number of waiting requests is
bounded.
"""

from __future__ import annotations

import zlib
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import Unavailable
from penstock.indexing.ports import HistoryPlace, WorkerChanges

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from penstock.indexing.ports import WorkerReport, WorkerTask
    from penstock.mailbox import MailboxProcessor, Timer


CHANGES_MAX: Final = 1_000


class ChangeHistory:
    """The newest changes since a worker's start.

    Args:
        seed: Differs between starts.
        changes_max: Number of remembered changes.
    """

    def __init__(self, seed: int, changes_max: int = CHANGES_MAX) -> None:
        self._place = HistoryPlace(0, zlib.crc32(str(seed).encode()))
        # (hash before the change, name); the last belongs to the current count.
        self._changes: deque[tuple[int, str]] = deque(maxlen=changes_max)

    @property
    def place(self) -> HistoryPlace:
        """The current position."""
        return self._place

    def add(self, name: str) -> None:
        """Record a change of the item with this name."""
        before = self._place
        self._changes.append((before.hash, name))
        self._place = HistoryPlace(before.counter + 1, zlib.crc32(name.encode(), before.hash))

    def since(self, place: HistoryPlace) -> Sequence[str] | None:
        """Return the names that changed after a position, in order; None: everything."""
        behind = self._place.counter - place.counter
        if place.counter < 0 or not 0 <= behind <= len(self._changes):
            return None
        if behind == 0:
            return () if place.hash == self._place.hash else None
        if self._changes[-behind][0] != place.hash:
            return None
        names = [self._changes[index][1] for index in range(-behind, 0)]
        # A dict keeps the position of the first of equal keys, but the last change is needed.
        return tuple(dict.fromkeys(reversed(names)))[::-1]


# The name of a change of the worker itself; no task has this id, because no folder can have it.
WORKER: Final = "/"


class TaskStatusSource(Protocol):
    """Statuses of a worker and its tasks, for the answers."""

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
        statuses: Returns the statuses of the worker and its tasks.
        waiters_max: Maximum number of open polls.
    """

    def __init__(
        self,
        history: ChangeHistory,
        processor: MailboxProcessor,
        statuses: TaskStatusSource,
        waiters_max: int,
    ) -> None:
        self._history = history
        self._processor = processor
        self._statuses = statuses
        self._waiters_max = waiters_max
        self._waiting: dict[Future[WorkerChanges], tuple[HistoryPlace, Timer]] = {}

    def changed(self, name: str) -> None:
        """Record a change and answer all open polls."""
        self._history.add(name)
        self._answer_all()

    def answer_on_change(
        self, answer: Future[WorkerChanges], after: HistoryPlace, wait_ms: int
    ) -> None:
        """Answer when something changed after a position, or when the time runs out."""
        if wait_ms <= 0 or after != self._history.place:
            _complete(answer, self._since(after))
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
            _complete(answer, self._since(place))

    def _forget_gone(self) -> None:
        for answer in [answer for answer in self._waiting if answer.cancelled()]:
            _place, timer = self._waiting.pop(answer)
            timer.cancel()

    def _expire(self, answer: Future[WorkerChanges]) -> None:
        found = self._waiting.pop(answer, None)
        if found is not None:
            _complete(answer, self._since(found[0]))

    def _since(self, place: HistoryPlace) -> WorkerChanges:
        now, enabled = self._history.place, self._statuses.enabled
        names = self._history.since(place)
        if names is None:
            report = self._statuses.everything()
            return WorkerChanges(now, reset=True, report=report, enabled=enabled)
        found = [(name, self._statuses.task(name)) for name in names if name != WORKER]
        return WorkerChanges(
            now,
            tasks=tuple(task for _name, task in found if task is not None),
            removed=tuple(name for name, task in found if task is None),
            enabled=enabled,
        )


def _complete(answer: Future[WorkerChanges], changes: WorkerChanges) -> None:
    # The caller may have disconnected.
    if answer.set_running_or_notify_cancel():
        answer.set_result(changes)
