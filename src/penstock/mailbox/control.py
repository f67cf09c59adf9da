"""Whether the default action of a mailbox loop may run, and how others tell the loop so.

Owns the one suspension of the default action there is at a time. Does not own the loop, nor what
the default action does. Invariants:

- Only the mailbox thread suspends; any thread may resume, others than the mailbox thread by urgent
  mail. So the suspension changes on the mailbox thread alone, and the loop reads it unguarded.
- Resuming ends the suspension it was made for, and no later one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, Conflict
from penstock.mailbox.mail import MIN_PRIORITY, Mail, MailOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.mailbox.metrics import PeriodTimer
    from penstock.mailbox.taskmailbox import TaskMailbox


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

        At once on the mailbox thread, else by urgent mail. A stale or late resume does nothing.
        """
        self._controller.resume(self)


class DefaultActionController:
    """What the default action may say to its loop; on the mailbox thread.

    Args:
        mailbox: Whose thread it is.
        complete: Ends the loop for good.

    Attributes:
        suspension: The one that lasts; None: the default action may run. Read from any thread.
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
                `metrics.back_pressured`; without one that time counts as busy.

        Raises:
            Conflict: It is suspended already.
            WrongThread: The caller is not the mailbox thread.
        """
        if not self._mailbox.is_mailbox_thread:
            self._mailbox.has_mail()  # raises WrongThread with the story
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
        """End the loop for good."""
        self._complete()

    def _end(self, suspension: Suspension) -> None:
        if self.suspension is suspension:
            self.suspension = None
