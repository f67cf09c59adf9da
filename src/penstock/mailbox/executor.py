"""Executors: submit work to a mailbox thread, and run other work while waiting.

Owns the wrapping of commands into mail and of results into futures. An executor is bound to a
mailbox and a priority; the executors of operators in a chain have the position in the chain as
priority, so that a yield never runs mail of an operator further up.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.core.errors import PenstockError
from penstock.mailbox.mail import DEFAULT, MIN_PRIORITY, Mail
from penstock.mailbox.task_mailbox import MailboxState

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.mailbox.control import DefaultActionController
    from penstock.mailbox.mail import MailOptions
    from penstock.mailbox.task_mailbox import TaskMailbox

T = TypeVar("T")


class _Submitted(Generic[T]):
    """A command with a future, which gets its outcome or its cancellation.

    Args:
        command: The call to run.
        expected: Exceptions that go only to the future; any other exception also ends the loop.
    """

    __slots__ = ("_command", "_expected", "future")

    def __init__(self, command: Callable[[], T], expected: type[BaseException] = Exception) -> None:
        self._command = command
        self._expected = expected
        self.future: Future[T] = Future()

    def __call__(self) -> None:
        """Run the command unless its future was cancelled."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._command()
        except BaseException as error:  # passed to the future, as by any executor
            self.future.set_exception(error)
            if not isinstance(error, self._expected):
                raise
        else:
            self.future.set_result(result)

    def cancel(self) -> bool:
        """Cancel the future, and notify its waiters."""
        cancelled = self.future.cancel()
        if cancelled:
            self.future.set_running_or_notify_cancel()
        return cancelled

    def __repr__(self) -> str:
        return repr(self._command)


class MailboxExecutor:
    """Submits work to a mailbox thread; any thread may call `execute` and `submit`.

    Args:
        mailbox: The mailbox that receives the mail.
        priority: Priority of the mail and of the yields.
        controller: Controller of the default action, for `is_idle`; None: there is no such action.
    """

    def __init__(
        self,
        mailbox: TaskMailbox,
        priority: int = MIN_PRIORITY,
        controller: DefaultActionController | None = None,
    ) -> None:
        self._mailbox = mailbox
        self._put = mailbox.put
        self.priority: Final = priority
        self._controller = controller

    def execute(
        self,
        command: Callable[[], object],
        description: str = "",
        *arguments: object,
        options: MailOptions = DEFAULT,
    ) -> None:
        """Run a command on the mailbox thread; if it raises, the loop ends with its exception.

        Args:
            command: The call to run.
            description: For logs and errors, a %-format that is rendered lazily.
            *arguments: Arguments of the description.
            options: Default, deferrable or urgent.

        Raises:
            Closed: The mailbox is quiesced or closed; the command will not run.
        """
        self._put(Mail(command, self.priority, description, arguments, options))

    def submit(
        self,
        command: Callable[[], T],
        description: str = "",
        *arguments: object,
        options: MailOptions = DEFAULT,
    ) -> Future[T]:
        """Execute, with the result or exception in a future; an exception does not end the loop.

        Do not wait for the future on the mailbox thread, which must run the command. When a mail is
        dropped at close, its future is cancelled; the command of a cancelled future is not run.

        Raises:
            Closed: The mailbox is quiesced or closed; the command will not run.
        """
        submitted = _Submitted(command)
        self._put(Mail(submitted, self.priority, description, arguments, options))
        return submitted.future

    def submit_change(
        self, command: Callable[[], T], description: str = "", *arguments: object
    ) -> Future[T]:
        """Submit a command that changes the state of the mailbox's owner.

        A `PenstockError` is an answer: it goes to the future, and the loop continues. Any other
        exception may have left the state partly changed: it goes to the future and ends the loop,
        so that the owner restarts from the stored state.

        Raises:
            Closed: The mailbox is quiesced or closed; the command will not run.
        """
        submitted = _Submitted(command, PenstockError)
        self._put(Mail(submitted, self.priority, description, arguments))
        return submitted.future

    def yield_(self) -> None:
        """Wait for a mail of this priority or more, and run it inside the current one.

        For a resource that a mail of another thread will free: call it until the resource is free.
        An exception of the mail goes to the caller. A failure reported by `report_throwable` is
        raised here, too, so that the current mail ends.

        Raises:
            WrongThread: The caller is not the mailbox thread.
            Closed: The mailbox is closed, no such mail can arrive any longer, or the loop ends
                without running the remaining mails.
        """
        self._raise_if_interrupted()
        self._mailbox.take(self.priority).run()
        self._raise_if_interrupted()

    def try_yield(self) -> bool:
        """Run a mail of this priority or more if there is one; return whether one ran.

        Raises:
            WrongThread: The caller is not the mailbox thread.
            Closed: As in `yield_`.
        """
        return self._try_yield(ignoring_deferrable=False)

    def try_yield_ignoring_deferrable(self) -> bool:
        """Yield as `try_yield`, including deferrable mails: for the end of an operator.

        Raises as `try_yield`.
        """
        return self._try_yield(ignoring_deferrable=True)

    def should_interrupt(self) -> bool:
        """Return whether mail waits, so that a long action should stop and continue by mail.

        Raises:
            WrongThread: The caller is not the mailbox thread.
        """
        return self._mailbox.has_mail()

    def is_idle(self) -> bool:
        """Return whether the mailbox is open and empty, and its default action is suspended.

        Raises:
            WrongThread: The caller is not the mailbox thread.
        """
        return (
            (self._controller is None or self._controller.suspension is not None)
            and not self._mailbox.has_mail()
            and self._mailbox.state is MailboxState.OPEN
        )

    def _try_yield(self, *, ignoring_deferrable: bool) -> bool:
        self._raise_if_interrupted()
        mail = self._mailbox.try_take(self.priority, ignoring_deferrable=ignoring_deferrable)
        if mail is None:
            return False
        mail.run()
        self._raise_if_interrupted()
        return True

    def _raise_if_interrupted(self) -> None:
        if self._mailbox.interruption is not None:
            raise self._mailbox.interruption
