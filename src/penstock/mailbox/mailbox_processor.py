"""The loop of a mailbox thread: mails first, then the default action; sleep if neither can run.

Does not own how the loop ends, nor whether the default action is suspended (`control`).
Invariants:

- Between two runs of the default action at most one batch of normal mails runs.
- The default action does not run while it is suspended, and runs after each resume.
- After `suspend` or `all_actions_completed` took effect, nothing more runs in this pass; the rest
  runs in the next pass, unless all actions have completed.
- `close` drops the remaining mails, and cancels each that a caller waits for.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import Closed
from penstock.mailbox.control import DefaultActionController, LoopEnd, Suspension
from penstock.mailbox.executor import MailboxExecutor
from penstock.mailbox.mail import DEFAULT, MIN_PRIORITY, Mail
from penstock.mailbox.mailbox_metrics import LatencyProbe, MailboxMetrics
from penstock.mailbox.task_mailbox import TaskMailbox
from penstock.mailbox.timers import MailboxTimers

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.mailbox.mail import MailOptions

_log = logging.getLogger(__name__)


class MailboxProcessor:
    """Runs the mails of a mailbox and its default action, on one thread.

    Args:
        default_action: Called repeatedly while no mail waits; None for a mailbox that only runs
            mail.
        name: Name of the mailbox, for errors and metrics.
        clock: For timers and metrics.
        mailbox: The mailbox; None: a new one, owned by the constructing thread.
        latency_probe_interval_ms: Interval of measuring how long a mail waits; 0: never. It wakes
            an idle loop, so it is off by default.

    Attributes:
        mailbox: The mailbox whose mails are run.
        timers: Post mail to it later.
        metrics: Counters of the loop.
        controller: Suspends the default action; passed to the default action.
        main_executor: Puts mail of the lowest priority.
    """

    def __init__(
        self,
        default_action: Callable[[DefaultActionController], object] | None = None,
        *,
        name: str = "mailbox",
        clock: Clock | None = None,
        mailbox: TaskMailbox | None = None,
        latency_probe_interval_ms: int = 0,
    ) -> None:
        clock = clock or SystemClock()
        self.mailbox: Final = mailbox or TaskMailbox(name, clock=clock)
        self.timers: Final = MailboxTimers(self.mailbox, clock)
        self.metrics: Final = MailboxMetrics(self.mailbox, clock)
        self._end: Final = LoopEnd(self.mailbox)
        self.controller: Final = DefaultActionController(self.mailbox, self._end)
        self.main_executor: Final = self.executor(MIN_PRIORITY)
        self._default_action: Final = default_action or self._wait_for_mail_only
        self._probe: Final = LatencyProbe(
            self.timers, clock, self.metrics.latency, latency_probe_interval_ms
        )

    # Any thread

    def executor(self, priority: int) -> MailboxExecutor:
        """Return an executor whose mails have this priority."""
        return MailboxExecutor(self.mailbox, priority, self.controller)

    def suspend(self) -> None:
        """Make the loop return after the current mail or action; no effect unless open."""
        self._end.suspend()

    def all_actions_completed(self) -> None:
        """Make the loop return permanently; no effect unless open."""
        self._end.complete()

    def abort(self) -> None:
        """Make the loop return permanently without finishing a mail that waits in a yield.

        That yield, and each later one, raises `Closed`; the loop does not fail if the mail
        propagates it. No effect unless open.
        """
        self._end.abort()

    def post(
        self,
        command: Callable[[], object],
        description: str = "",
        *arguments: object,
        options: MailOptions = DEFAULT,
    ) -> None:
        """Run a command that must not be lost, such as the outcome of a call, on the loop.

        If its mail cannot be put, for example because memory ran out, the loop ends with that
        error. No effect if the mailbox is quiesced or closed: the command is not needed then.
        """
        try:
            self.main_executor.execute(command, description, *arguments, options=options)
        except BaseException as error:
            if isinstance(error, Closed):
                return
            with suppress(Closed):
                self.report_throwable(error)
            raise

    def report_throwable(self, error: BaseException) -> None:
        """End the loop with this exception; a mail that waits in a yield gets it there.

        The loop ends with it even if that mail catches it or raises another one.

        Raises:
            Closed: The mailbox is quiesced or closed: the exception would be lost.
        """
        self._end.report(error)

    @property
    def is_mailbox_loop_running(self) -> bool:
        """Whether the loop may run further, because not all actions have completed."""
        return self._end.is_loop_running

    # The mailbox thread

    def run(self) -> None:
        """Run mails and the default action until suspended or completed; may be called again.

        An exception of a mail or the default action ends the loop and is raised here; the mailbox
        stays open, and `close` cancels its remaining mails.

        Raises:
            WrongThread: The mailbox belongs to another thread.
            Closed: The mailbox is not open.
        """
        with self._end.one_pass():
            self.metrics.loop.start()
            try:
                while not self._end.is_pass_over:
                    self._run_mails()
                    if not self._end.is_pass_over:
                        self._default_action(self.controller)
            finally:
                self.metrics.loop.stop()

    def run_mailbox_step(self) -> bool:
        """Run one mail, or else one default action, or else return False. Never waits.

        Raises as `run`.
        """
        ran = True
        with self._end.one_pass():
            ran = not self._end.is_pass_over and (
                self._run_one_mail() or self._run_default_action_once()
            )
        return ran  # noqa: RET504 - the pass suppresses the `Closed` of an aborted mail

    def drain(self) -> None:
        """Run all waiting mails in the order of the loop.

        Mails stay in the mailbox until their turn: a mail that yields still sees the later ones,
        and if one raises, the later ones remain for `close` to cancel. Mails posted meanwhile do
        not run, unless urgent.

        Raises:
            WrongThread: The caller is not the mailbox thread.
            Closed: The mailbox is closed.
        """
        self.mailbox.extend_batch()
        for mail in self.mailbox.batch():
            self._run_mail(mail)

    def prepare_close(self) -> None:
        """Accept no further mails, and cancel all timers.

        Raises:
            WrongThread: The caller is not the mailbox thread.
        """
        self.timers.quiesce()
        self.mailbox.quiesce()

    def close(self) -> None:
        """Close the mailbox, dropping and cancelling its remaining mails. Idempotent.

        Raises:
            WrongThread: The caller is not the mailbox thread.
            BaseExceptionGroup: Some cancellations raised; all were tried. It is an
                `ExceptionGroup` unless it contains a Ctrl-C or an exit.
        """
        self.timers.quiesce()
        errors: list[BaseException] = []
        for mail in self.mailbox.close():
            self.metrics.mails_dropped += 1
            try:
                if not mail.try_cancel():
                    _log.debug("mailbox %s closed: dropped %r", self.mailbox.name, mail)
            except BaseException as error:  # noqa: BLE001 - each mail is cancelled; all are raised below
                errors.append(error)
        if errors:
            raise BaseExceptionGroup(f"mailbox {self.mailbox.name}: cancelling mail failed", errors)

    # Inside

    def _wait_for_mail_only(self, controller: DefaultActionController) -> None:
        controller.suspend_default_action(self.metrics.idle)

    def _run_mails(self) -> None:
        """Run one batch; then, while the default action is suspended, mails as they arrive."""
        if self.mailbox.create_batch():
            self._run_batch()
        controller = self.controller
        while (suspension := controller.suspension) is not None and not self._end.is_pass_over:
            if self.mailbox.create_batch():
                self._run_batch(until_resumed=True)
            else:
                self._run_mail(_sleep_until_mail(self.mailbox, suspension))
                self._start_probe()

    def _run_batch(self, *, until_resumed: bool = False) -> None:
        """Run a batch; with `until_resumed`, stop once the default action may run again."""
        metrics, controller, end = self.metrics, self.controller, self._end
        mail: Mail | None = None
        try:
            for mail in self.mailbox.batch():
                metrics.mails_run += 1
                mail.action()
                if end.is_pass_over or (until_resumed and controller.suspension is None):
                    return
        except BaseException as error:
            _tell_which(self.mailbox, mail, error)
            raise
        self._start_probe()

    def _run_one_mail(self) -> bool:
        if not self.mailbox.create_batch():
            return False
        mail = self.mailbox.try_take_from_batch()
        if mail is None:
            return False
        self._run_mail(mail)
        self._start_probe()
        return True

    def _run_default_action_once(self) -> bool:
        if self._end.is_pass_over or self.controller.suspension is not None:
            return False
        self._default_action(self.controller)
        return True

    def _run_mail(self, mail: Mail) -> None:
        self.metrics.mails_run += 1
        try:
            mail.action()
        except BaseException as error:
            _tell_which(self.mailbox, mail, error)
            raise

    def _start_probe(self) -> None:
        """Start measuring latency after the first mail that did not end the loop."""
        if not (self._probe.started or self._end.is_pass_over):
            self._probe.start()


def _tell_which(mailbox: TaskMailbox, mail: Mail | None, error: BaseException) -> None:
    if mail is not None:
        error.add_note(f"in mailbox {mailbox.name}, {mail!r}")


def _sleep_until_mail(mailbox: TaskMailbox, suspension: Suspension) -> Mail:
    """Take one mail. The idle timer runs only here, so it never includes a mail's run time."""
    timer = suspension.timer
    if timer is None:
        return mailbox.take()
    timer.start()
    try:
        return mailbox.take()
    finally:
        timer.stop()
