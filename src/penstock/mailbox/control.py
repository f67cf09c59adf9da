"""Suspension of the default action of a mailbox loop, and control mail for the loop.

Owns the current suspension of the default action. Does not own the loop, nor the default action.
Invariants:

- Only the mailbox thread suspends; any thread may resume, other threads by urgent mail. So the
  suspension changes only on the mailbox thread, and the loop reads it without a lock.
- `resume` ends the suspension on which it is called, and no later one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, Conflict
from penstock.mailbox.mail import MIN_PRIORITY, Mail, MailOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.mailbox.metrics import PeriodTimer
    from penstock.mailbox.task_mailbox import TaskMailbox


def put_control(
    mailbox: TaskMailbox,
    action: Callable[[], object],
    description: str,
    *,
    priority: int = MIN_PRIORITY,
) -> None:
    """Put urgent mail for the loop itself; no effect unless the mailbox is open."""
    with suppress(Closed):
        mailbox.put(Mail(action, priority, description, options=MailOptions.URGENT))


class Suspension:
    """One suspension of the default action; `resume` ends it, and no later one."""

    __slots__ = ("_controller", "timer")

    def __init__(self, controller: DefaultActionController, timer: PeriodTimer | None) -> None:
        self._controller = controller
        self.timer: Final = timer

    def resume(self) -> None:
        """Let the default action run again; from any thread, any number of times.

        At once on the mailbox thread, otherwise by urgent mail. A stale or late resume has no
        effect.
        """
        self._controller.resume(self)


class DefaultActionController:
    """Interface of the default action to its loop; on the mailbox thread.

    Args:
        mailbox: The mailbox of the loop.
        complete: Ends the loop permanently.

    Attributes:
        suspension: The current one; None: the default action may run. Read from any thread.
    """

    __slots__ = ("_complete", "_mailbox", "suspension")

    def __init__(self, mailbox: TaskMailbox, complete: Callable[[], object]) -> None:
        self._mailbox = mailbox
        self._complete = complete
        self.suspension: Suspension | None = None

    def suspend_default_action(self, timer: PeriodTimer | None = None) -> Suspension:
        """Do not call the default action until the suspension is resumed.

        Args:
            timer: Runs while the loop sleeps in this suspension, such as `metrics.idle` or
                `metrics.back_pressured`; without one, that time counts as busy.

        Raises:
            Conflict: It is suspended already.
            WrongThread: The caller is not the mailbox thread.
        """
        if not self._mailbox.is_mailbox_thread:
            self._mailbox.has_mail()  # raises WrongThread with an explanation
        if self.suspension is not None:
            raise Conflict(
                f"mailbox {self._mailbox.name}: the default action is suspended already; "
                "resume that suspension first"
            )
        self.suspension = Suspension(self, timer)
        return self.suspension

    def resume(self, suspension: Suspension) -> None:
        """End a suspension if it is the current one; `Suspension.resume` calls this."""
        if self._mailbox.is_mailbox_thread:
            self._end(suspension)
        elif self.suspension is suspension:
            put_control(self._mailbox, lambda: self._end(suspension), "resume the default action")

    def all_actions_completed(self) -> None:
        """End the loop permanently."""
        self._complete()

    def _end(self, suspension: Suspension) -> None:
        if self.suspension is suspension:
            self.suspension = None
