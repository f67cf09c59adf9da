"""A thread that owns one mailbox, from its start to its orderly end.

Owns the one place that creates mailbox threads and handles an exception of a loop.
Invariants: the mailbox is closed when the thread ends, however it ends, so no future of a dropped
mail stays pending; a failure is kept, reported to `on_failure`, and is the death of an
`OwnedThread`: it is logged once and ends a process of Penstock.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Self

from penstock.core.errors import Conflict
from penstock.core.threads import OwnedThread
from penstock.mailbox.mailbox_processor import MailboxProcessor
from penstock.mailbox.task_mailbox import MailboxState, TaskMailbox

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from penstock.core.clock import Clock
    from penstock.mailbox.control import DefaultActionController
    from penstock.mailbox.executor import MailboxExecutor
    from penstock.mailbox.timers import MailboxTimers

_log = logging.getLogger(__name__)


class MailboxThread:
    """Runs a processor on a thread of its own; a context manager starts and stops it.

    Args:
        name: Name of the thread and its mailbox.
        default_action: As in `MailboxProcessor`.
        clock: As in `MailboxProcessor`.
        on_failure: Called on the mailbox thread with the exception that ended the loop.
        daemon: Let the process end without waiting for the thread.
    """

    def __init__(
        self,
        name: str,
        default_action: Callable[[DefaultActionController], object] | None = None,
        *,
        clock: Clock | None = None,
        on_failure: Callable[[BaseException], object] | None = None,
        daemon: bool = False,
    ) -> None:
        self.name: Final = name
        mailbox = TaskMailbox(name, clock=clock, bind=False)
        self.processor: Final = MailboxProcessor(default_action, clock=clock, mailbox=mailbox)
        self.failure: BaseException | None = None
        self._on_failure = on_failure
        self._drain_at_end = True
        self._thread = OwnedThread(name, self._run, daemon=daemon, may_return=True)

    @property
    def executor(self) -> MailboxExecutor:
        """The main executor. Mail may be put before the thread starts."""
        return self.processor.main_executor

    @property
    def timers(self) -> MailboxTimers:
        """The timers of the mailbox."""
        return self.processor.timers

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread.

        Raises:
            Conflict: It was started or stopped before.
        """
        if self._thread.ident is not None or self.processor.mailbox.state is MailboxState.CLOSED:
            raise Conflict(f"mailbox thread {self.name} was started or stopped: create a new one")
        self._thread.start()

    def stop(self, *, drain: bool = True) -> None:
        """Request that the thread ends after the current mail; `join` waits for it.

        If the thread was never started, its mailbox is closed at once, and its mail is dropped.

        Args:
            drain: Run the mails accepted so far; otherwise drop and cancel them, and let a current
                mail that waits in a yield end with `Closed` there.
        """
        self._drain_at_end = drain
        if self._thread.ident is None:
            self.processor.mailbox.bind()
            self.processor.close()
        elif drain:
            self.processor.all_actions_completed()
        else:
            self.processor.abort()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the thread; return False if the time-out came first."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(drain=error is None)
        self.join()

    def _run(self) -> None:
        """Run to the end, and raise the exception that ended the loop early, if there was one."""
        failure: BaseException | None = None
        try:
            self.processor.run()
            self.processor.prepare_close()
            if self._drain_at_end:
                self.processor.drain()
        except BaseException as error:  # noqa: BLE001 - raised below
            failure = error
        try:
            self.processor.close()
        except BaseException as error:  # noqa: BLE001 - raised below, or logged here
            if failure is None:
                failure = error
            else:
                failure.add_note(f"closing mailbox {self.name} failed, too: {error!r}")
                _log.error("closing mailbox %s failed after it failed", self.name, exc_info=error)
        if failure is not None:
            self.failure = failure
            if self._on_failure is not None:
                self._on_failure(failure)
            raise failure
