"""Ends of tasks: stores them in the metadata store, then cleans up after the tasks.

State of the overlord's mailbox. Owns the ends that are not stored yet: all that are waiting share a
transaction, which is retried until it succeeds. Invariant: a task's end is stored before its locks
and its entry are released.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, Dependency, PenstockError, Unavailable, counted
from penstock.core.waits import WaitTable
from penstock.indexing.lockbox.lockboxes import lane_of
from penstock.indexing.overlord.lock_requests import lock_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.indexing.errand import Calls
    from penstock.indexing.events import Events
    from penstock.indexing.lockbox.lockboxes import Lockboxes
    from penstock.indexing.lockbox.model import Removal
    from penstock.indexing.overlord.entries.entry import QueuedTask
    from penstock.indexing.overlord.runner.runner import TaskEnd
    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.storage.metadata import JsonObject, MetadataStore

_log = logging.getLogger(__name__)

_ERROR_CHARACTERS_MAX: Final = 2_000
_STORE: Final = "store the ends of tasks"


class TaskEnds:
    """Ends of tasks that are to be stored. On the overlord's mailbox.

    Args:
        metadata: The metadata store.
        processor: The mailbox.
        clock: Time at which a task ended.
        events: Reports an end that came after another one.
        retry_ms: Delay before a retry when the store does not answer.
        worker_of: Returns the worker of a task.
        stored: Called for each end once it is stored.

    Attributes:
        waits: The wait for the metadata store, if ends cannot be stored; readable by any thread.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        processor: MailboxProcessor,
        clock: Clock,
        events: Events,
        *,
        retry_ms: int,
        worker_of: Callable[[str], str | None],
        stored: Callable[[QueuedTask, TaskEnd], None],
    ) -> None:
        self._metadata = metadata
        self._processor = processor
        self._clock = clock
        self._events = events
        self._retry_ms = retry_ms
        self.waits: Final = WaitTable(clock)
        self._worker_of = worker_of
        self._stored = stored
        self._unstored: dict[str, QueuedTask] = {}
        self._storing = False  # A mail or a timer will store them.
        self._stopped = False

    def stop(self) -> None:
        """Stop storing."""
        self._stopped = True

    def soon(self, ends: Sequence[tuple[QueuedTask, TaskEnd]]) -> None:
        """Store ends soon, together with all others reported until then, with retries.

        The first end of an entry is kept.
        """
        for entry, end in ends:
            if entry.end is None:
                entry.end = end
                self._unstored[end.task_id] = entry
        if self._unstored and not self._storing:
            self._storing = True
            with suppress(Closed):  # The overlord stops; the next one gets the ends from workers.
                self._processor.main_executor.execute(self._store_all, "store ends")

    def forget(self, task_id: str) -> None:
        """Do not store a task's end: the task was removed."""
        self._unstored.pop(task_id, None)

    def store(self, ends: Sequence[tuple[QueuedTask, TaskEnd]]) -> None:
        """Store ends in one transaction, now, without calling `stored`.

        Raises:
            Unavailable: The metadata store does not answer; no end is stored.
        """
        changes: list[tuple[str, str, JsonObject | None]] = []
        for entry, end in ends:
            status = {
                "worker": end.worker or self._worker_of(entry.task.id),
                "errorMsg": _storable(end.error),
                "endedMs": self._clock.now_ms(),
            }
            changes.append((entry.task.id, end.state, status))
        known = self._metadata.tasks.set_statuses(changes)
        for entry, end in ends:
            if entry.task.id not in known:
                text = (
                    f"task {entry.task.id} was complete already, or is gone: its end is not stored"
                )
                self._events.alert(text, taskId=entry.task.id, state=str(end.state))
                _log.warning("%s", text)

    def _store_all(self) -> None:
        if self._stopped or not self._unstored:
            self._storing = False
            return
        batch = [(entry, entry.end) for entry in self._unstored.values() if entry.end is not None]
        try:
            self.store(batch)
        except Unavailable as error:
            tasks = counted(len(batch), "task")
            _log.warning("the ends of %s are not stored yet: %s", tasks, error)
            self.waits.failed(_STORE, error, dependency=Dependency.METADATA)
            self._processor.timers.schedule_after(self._retry_ms, self._store_all, "store ends")
            return
        self._storing = False
        self.waits.ended(_STORE)
        self._unstored.clear()
        for entry, end in batch:
            self._stored(entry, end)


def _storable(error: str) -> str:
    """Return a worker's error message in a form that any store accepts.

    It may name a file whose name is not valid text, and one refused end would delay all others.
    """
    return error[:_ERROR_CHARACTERS_MAX].encode(errors="replace").decode()


class Leavings:
    """Clean-up after ended tasks: their locks, and data that belongs to the locks.

    Args:
        metadata: The metadata store.
        lockboxes: The locks.
        calls: Runs the calls and delivers their results.
    """

    def __init__(self, metadata: MetadataStore, lockboxes: Lockboxes, calls: Calls) -> None:
        self._metadata = metadata
        self._lockboxes = lockboxes
        self._calls = calls
        self._stopped = False

    def stop(self) -> None:
        """Stop cleaning up."""
        self._stopped = True

    def clear(self, task: TaskSpec) -> None:
        """Release a task's locks, then delete their data, on the datasource's lane."""
        with suppress(Closed):
            self._calls.watch(
                self._lockboxes.remove(lock_task(task)), self._released(task), _not_released
            )

    def _released(self, task: TaskSpec) -> Callable[[Removal], None]:
        def forget(removal: Removal) -> None:
            allocator = removal.last_of_allocator
            if self._stopped or (allocator is None and not removal.had_replace_lock):
                return

            def work() -> None:
                if removal.had_replace_lock:
                    # An append may have added an upgrade after the task's end was stored.
                    self._metadata.upgrades.forget([task.id])
                if allocator is not None:
                    self._metadata.segments.delete_pending(task.datasource, allocator_id=allocator)

            self._calls.call(
                lane_of(task.datasource),
                work,
                lambda _none: None,
                # The janitor deletes it some hours later.
                lambda error: _log.info("data of ended task %s stays for now: %s", task.id, error),
            )

        return forget


def _not_released(error: PenstockError) -> None:
    _log.warning("locks of a task that ended are released later: %s", error)
