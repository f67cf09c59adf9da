"""Intake of submitted tasks: tasks that wait at the same time share a transaction.

Only collects the tasks; the queue validates them. Any thread may submit.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import Closed, InvalidRequest, PenstockError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox import MailboxProcessor

TASKS_PER_TRANSACTION: Final = 500
"""Tasks that are stored together: a larger number would delay the mailbox's other mail."""


class Adding(Protocol):
    """The part of the task queue that the intake uses."""

    def add_all(self, tasks: Sequence[TaskSpec]) -> Sequence[PenstockError | None]:
        """Store new tasks; return an error for each refused task and None for each stored one."""
        ...


class Intake:
    """The intake.

    The mutex guards the inbox, which callers fill and the mailbox empties. It is held for a few
    statements only.

    Args:
        queue: Returns the current queue, or raises NotLeading; called on the mailbox.
        processor: The overlord's mailbox.
    """

    def __init__(self, queue: Callable[[], Adding], processor: MailboxProcessor) -> None:
        self._queue = queue
        self._processor = processor
        self._mutex = threading.Lock()
        self._inbox: list[tuple[TaskSpec, Future[str]]] = []

    def submit(self, task: TaskSpec) -> Future[str]:
        """Submit a task; the future has its id, or raises the errors of `TaskQueue.add`."""
        future: Future[str] = Future()
        with self._mutex:
            self._inbox.append((task, future))
            is_first = len(self._inbox) == 1
        if is_first:
            self._post()
        return future

    def _post(self) -> None:
        try:
            mail = self._processor.main_executor.submit_change(self._serve, "submitted tasks")
        except Closed as error:
            self._refuse(error)
        except BaseException as error:
            self._refuse(Unavailable(f"the task could not be submitted: try again ({error!r})"))
            raise
        else:
            mail.add_done_callback(self._posted)

    def _posted(self, mail: Future[None]) -> None:
        if mail.cancelled():
            self._refuse(Closed("the overlord stops: submit the task to the next leader"))

    def _refuse(self, error: PenstockError) -> None:
        for _task, future in self._taken(None):
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _taken(self, most: int | None) -> list[tuple[TaskSpec, Future[str]]]:
        with self._mutex:
            taken = self._inbox[:most]
            self._inbox = [] if most is None else self._inbox[most:]
        return taken

    def _serve(self) -> None:
        taken = self._taken(TASKS_PER_TRANSACTION)
        with self._mutex:
            more = bool(self._inbox)
        try:
            if more:
                self._post()
        finally:
            waiting = [one for one in taken if one[1].set_running_or_notify_cancel()]
            try:
                self._add(waiting)
            except BaseException as error:
                for _task, future in waiting:
                    if not future.done():
                        future.set_exception(error)
                raise

    def _add(self, waiting: Sequence[tuple[TaskSpec, Future[str]]]) -> None:
        if not waiting:
            return
        try:
            answers = self._queue().add_all([task for task, _future in waiting])
        except PenstockError as error:
            if isinstance(error, InvalidRequest) and len(waiting) > 1:
                # The store refused one of them; the others must still be added.
                for one in waiting:
                    self._add([one])
                return
            for _task, future in waiting:
                future.set_exception(error)
            return
        for (task, future), refusal in zip(waiting, answers, strict=True):
            if refusal is None:
                future.set_result(task.id)
            else:
                future.set_exception(refusal)
