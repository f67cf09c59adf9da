"""Control of a mailbox loop by urgent mail: suspension of the default action, and how it ends.

Owns the current suspension of the default action, and the flags that end a pass or the loop. Does
not own the loop, nor the default action. Invariants:

- Only the mailbox thread suspends; any thread may resume, other threads by urgent mail. So the
  suspension changes only on the mailbox thread, and the loop reads it without a lock.
- `resume` ends the suspension on which it is called, and no later one.
- The flags of `LoopEnd` belong to the mailbox thread; other threads change them by urgent mail, so
  the loop checks only its mailbox.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, Conflict
from penstock.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from penstock.mailbox.task_mailbox import MailboxState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.mailbox.mailbox_metrics import PeriodTimer
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
        end: Ends the loop.

    Attributes:
        suspension: The current one; None: the default action may run. Read from any thread.
    """

    __slots__ = ("_loop_end", "_mailbox", "suspension")

    def __init__(self, mailbox: TaskMailbox, end: LoopEnd) -> None:
        self._mailbox = mailbox
        self._loop_end = end
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
        """End a suspension if it is the current one. Called by `Suspension.resume`."""
        if self._mailbox.is_mailbox_thread:
            self._end(suspension)
        elif self.suspension is suspension:
            put_control(self._mailbox, lambda: self._end(suspension), "resume the default action")

    def all_actions_completed(self) -> None:
        """End the loop permanently."""
        self._loop_end.complete()

    def _end(self, suspension: Suspension) -> None:
        if self.suspension is suspension:
            self.suspension = None


class LoopEnd:
    """Ends a pass of a mailbox loop, or the loop. Any thread, except for `one_pass`.

    Args:
        mailbox: The mailbox of the loop.

    Attributes:
        is_pass_over: Whether nothing more runs in this pass. On the mailbox thread.
        is_loop_running: Whether a further pass may run: not all actions have completed.
    """

    __slots__ = ("_aborted", "_mailbox", "_reported", "is_loop_running", "is_pass_over")

    def __init__(self, mailbox: TaskMailbox) -> None:
        self._mailbox = mailbox
        self._reported: BaseException | None = None
        self._aborted: Closed | None = None
        self.is_pass_over = False
        self.is_loop_running = True

    def suspend(self) -> None:
        """End the pass after the current mail or action; no effect unless open."""
        put_control(self._mailbox, self._end_pass, "suspend the loop")

    def complete(self) -> None:
        """End the loop permanently; no effect unless open."""
        put_control(self._mailbox, self._end_loop, "all actions completed")

    def abort(self) -> None:
        """End the loop permanently, and let a mail that waits in a yield raise `Closed`."""
        put_control(self._mailbox, self._abort, "abort the loop", priority=MAX_PRIORITY)

    def report(self, error: BaseException) -> None:
        """End the loop with an exception; a mail that waits in a yield gets it there.

        Raises:
            Closed: The mailbox is quiesced or closed: the exception would be lost.
        """

        def fail() -> None:
            if self._reported is None:
                self._reported = error
            self.is_pass_over = True
            self._interrupt(error)
            raise error

        self._mailbox.put(Mail(fail, MAX_PRIORITY, "report %r", (error,), MailOptions.URGENT))

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Begin a pass, and at its end raise a reported error, even if a mail raised another one.

        Raises:
            WrongThread: The mailbox belongs to another thread.
            Closed: The mailbox is not open.
        """
        self._begin_pass()
        try:
            yield
        except Exception as error:
            if error is self._aborted:
                return
            if self._reported is None:
                raise
            if error is not self._reported:
                self._reported.add_note(f"afterwards, in mailbox {self._mailbox.name}: {error!r}")
        finally:
            reported, self._reported = self._reported, None
            if reported is not None:
                self._mailbox.interruption = self._aborted
        if reported is not None:
            raise reported

    def _begin_pass(self) -> None:
        self._mailbox.bind()
        if self._mailbox.state is not MailboxState.OPEN:
            raise Closed(
                f"mailbox {self._mailbox.name} is {self._mailbox.state.value}; "
                "to run its loop, it must be open"
            )
        self.is_pass_over = not self.is_loop_running

    def _end_pass(self) -> None:
        self.is_pass_over = True

    def _end_loop(self) -> None:
        self.is_loop_running = False
        self.is_pass_over = True

    def _abort(self) -> None:
        self._end_loop()
        self._aborted = Closed(
            f"mailbox {self._mailbox.name} ends without running the remaining mails: stop waiting"
        )
        self._interrupt(self._aborted)

    def _interrupt(self, error: BaseException) -> None:
        """Let yields raise; the first reason is kept."""
        if self._mailbox.interruption is None:
            self._mailbox.interruption = error
