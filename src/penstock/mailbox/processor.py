"""The loop of a mailbox thread: mails first, then the default action, and sleep when neither can.

Owns the control flags of the loop, which belong to the mailbox thread; other threads change them by
urgent mail, so the loop checks nothing but its mailbox. Invariants:

- Between two runs of the default action at most one batch of normal mails runs.
- The default action does not run while it is suspended, and does after each resume.
- After `suspend` or `all_actions_completed` took effect nothing more runs in this pass; what is
  left runs in the next, except after all actions completed.
- `close` drops what is left, and cancels each dropped mail that somebody waits for.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import Closed, Conflict
from penstock.mailbox.executor import MailboxExecutor
from penstock.mailbox.mail import MIN_PRIORITY, Mail, MailOptions
from penstock.mailbox.metrics import MailboxMetrics, PeriodTimer
from penstock.mailbox.taskmailbox import MailboxState, TaskMailbox
from penstock.mailbox.timers import MailboxTimers

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)


class Suspension:
    """One suspension of the default action; `resume` ends it, and no later one."""

    __slots__ = ("_processor", "timer")

    def __init__(self, processor: MailboxProcessor, timer: PeriodTimer | None) -> None:
        self._processor = processor
        self.timer: Final = timer

    def resume(self) -> None:
        """Let the default action run again; from any thread, any number of times.

        At once on the mailbox thread, else by urgent mail. A stale or late resume does nothing.
        """
        self._processor.resume(self)


class DefaultActionController:
    """What the default action may say to its loop; on the mailbox thread."""

    __slots__ = ("_processor",)

    def __init__(self, processor: MailboxProcessor) -> None:
        self._processor = processor

    def suspend_default_action(self, timer: PeriodTimer | None = None) -> Suspension:
        """Do not call the default action until the suspension is resumed.

        Args:
            timer: Runs while the loop sleeps in this suspension, such as `metrics.idle` or
                `metrics.back_pressured`; without one that time counts as busy.

        Raises:
            Conflict: It is suspended already.
            WrongThread: The caller is not the mailbox thread.
        """
        return self._processor.suspend_default_action(timer)

    def all_actions_completed(self) -> None:
        """End the loop for good."""
        self._processor.all_actions_completed()


class MailboxProcessor:
    """Runs the mails of a mailbox and its default action, on one thread.

    Args:
        default_action: Called again and again when no mail waits; None for a mailbox that only
            runs mail.
        name: Of the mailbox, for errors and metrics.
        clock: For timers and metrics.
        mailbox: A bounded one, for instance; else an unbounded one is made, owned by the
            constructing thread.
        latency_probe_interval_ms: Measure every so often how long a mail waits; 0 is never. An
            idle loop wakes for it, so it is off unless wanted.
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
        self._clock: Final = clock or SystemClock()
        self._mailbox: Final = mailbox or TaskMailbox(name, clock=self._clock)
        self.timers: Final = MailboxTimers(self._mailbox, self._clock)
        self.metrics: Final = MailboxMetrics(self._mailbox, self._clock)
        self.main_executor: Final = self.executor(MIN_PRIORITY)
        self._default_action: Final = default_action or self._wait_for_mail_only
        self._controller: Final = DefaultActionController(self)
        self._suspension: Suspension | None = None
        self._suspended = False
        self._loop_running = True
        self._probe_interval_ms = latency_probe_interval_ms
        self._probe_started = latency_probe_interval_ms == 0

    # Any thread

    @property
    def mailbox(self) -> TaskMailbox:
        """The mailbox whose mails this runs."""
        return self._mailbox

    def executor(self, priority: int) -> MailboxExecutor:
        """Return an executor whose mails have this priority."""
        return MailboxExecutor(
            self._mailbox,
            priority,
            is_default_action_suspended=lambda: not self.is_default_action_available,
        )

    def suspend(self) -> None:
        """Have the loop return after the current mail or action; no effect unless open."""
        self._put_control(self._suspend, "suspend the loop")

    def all_actions_completed(self) -> None:
        """Have the loop return for good; no effect unless open."""
        self._put_control(self._complete, "all actions completed")

    def report_throwable(self, error: BaseException) -> None:
        """Have the loop end with this exception.

        Raises:
            Closed: The mailbox is quiesced or closed: nobody would see it.
        """

        def fail() -> None:
            raise error

        self._mailbox.put(
            Mail(fail, description="report %r", arguments=(error,), options=MailOptions.URGENT)
        )

    def resume(self, suspension: Suspension) -> None:
        """End a suspension if it is the current one; `Suspension.resume` calls this."""
        if self._mailbox.is_mailbox_thread:
            self._resume(suspension)
        elif self._suspension is suspension:
            self._put_control(lambda: self._resume(suspension), "resume the default action")

    @property
    def is_default_action_available(self) -> bool:
        """Whether the default action is not suspended."""
        return self._suspension is None

    @property
    def is_mailbox_loop_running(self) -> bool:
        """Whether all actions have not completed."""
        return self._loop_running

    # The mailbox thread

    def run(self) -> None:
        """Run mails and the default action until suspended or completed; may be called again.

        What a mail or the default action raises ends the loop and goes to the caller; the mailbox
        stays open, and `close` cancels what is left in it.

        Raises:
            WrongThread: The mailbox belongs to another thread.
            Closed: The mailbox is not open.
        """
        self._begin_pass()
        self.metrics.loop.start()
        try:
            while not self._suspended:
                self._run_mails()
                if not self._suspended:
                    self._default_action(self._controller)
        finally:
            self.metrics.loop.stop()

    def run_single_loop(self) -> bool:
        """Run one mail if any, then one default action if it may; True if either ran. Never waits.

        Raises as `run`.
        """
        self._begin_pass()
        ran_mail = not self._suspended and self._run_one_mail()
        return self._run_default_action_once() or ran_mail

    def run_mailbox_step(self) -> bool:
        """Run one mail, or else one default action, or else return False. Never waits.

        Raises as `run`.
        """
        self._begin_pass()
        return not self._suspended and (self._run_one_mail() or self._run_default_action_once())

    def drain(self) -> None:
        """Run all mails that wait now, in the loop's own order.

        Mails stay in the mailbox until their turn: one that yields still sees those behind it, and
        if one raises, those behind it are left for `close` to cancel. Mails posted meanwhile are
        not run, unless urgent.

        Raises:
            WrongThread: The caller is not the mailbox thread.
            Closed: The mailbox is closed.
        """
        self._mailbox.extend_batch()
        for mail in self._mailbox.batch():
            self._run_mail(mail)

    def prepare_close(self) -> None:
        """Accept no more mails, and forget all timers.

        Raises:
            WrongThread: The caller is not the mailbox thread.
        """
        self.timers.quiesce()
        self._mailbox.quiesce()

    def close(self) -> None:
        """Close the mailbox, dropping and cancelling what is left in it. Again: no effect.

        Raises:
            WrongThread: The caller is not the mailbox thread.
            ExceptionGroup: Some cancellations raised; the others were made all the same.
        """
        self.timers.quiesce()
        errors: list[Exception] = []
        for mail in self._mailbox.close():
            self.metrics.mails_dropped += 1
            try:
                if not mail.try_cancel():
                    _log.debug("mailbox %s closed: dropped %r", self._mailbox.name, mail)
            except Exception as error:  # noqa: BLE001 - raised together below
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"mailbox {self._mailbox.name}: cancelling mail failed", errors)

    def suspend_default_action(self, timer: PeriodTimer | None = None) -> Suspension:
        """Suspend the default action; `DefaultActionController` says how. Raises as there."""
        if not self._mailbox.is_mailbox_thread:
            self._mailbox.has_mail()  # raises WrongThread with the story
        if self._suspension is not None:
            raise Conflict(
                f"mailbox {self._mailbox.name}: the default action is suspended already; "
                "resume that suspension first"
            )
        self._suspension = Suspension(self, timer)
        return self._suspension

    # Inside

    def _wait_for_mail_only(self, controller: DefaultActionController) -> None:
        controller.suspend_default_action(self.metrics.idle)

    def _begin_pass(self) -> None:
        self._mailbox.bind()
        if self._mailbox.state is not MailboxState.OPEN:
            raise Closed(
                f"mailbox {self._mailbox.name} is {self._mailbox.state.value}; "
                "to run its loop it must be open"
            )
        self._suspended = not self._loop_running

    def _run_mails(self) -> None:
        """Run one batch; then, while the default action is suspended, mails as they come."""
        if self._mailbox.create_batch():
            self._run_batch()
        while self._suspension is not None and not self._suspended:
            if self._mailbox.create_batch():
                self._run_batch(until_resumed=True)
            else:
                self._run_mail(self._sleep_until_mail(self._suspension.timer))
                self._start_probe()

    def _run_batch(self, *, until_resumed: bool = False) -> None:
        """Run a batch; one of a suspension ends where the default action may run again."""
        metrics = self.metrics
        mail: Mail | None = None
        try:
            for mail in self._mailbox.batch():
                metrics.mails_run += 1
                mail.action()
                if self._suspended or (until_resumed and self._suspension is None):
                    return
        except Exception as error:
            self._tell_which(error, mail)
            raise
        self._start_probe()

    def _run_one_mail(self) -> bool:
        if not self._mailbox.create_batch():
            return False
        mail = self._mailbox.try_take_from_batch()
        if mail is None:
            return False
        self._run_mail(mail)
        self._start_probe()
        return True

    def _run_default_action_once(self) -> bool:
        if self._suspended or self._suspension is not None:
            return False
        self._default_action(self._controller)
        return True

    def _run_mail(self, mail: Mail) -> None:
        self.metrics.mails_run += 1
        try:
            mail.action()
        except Exception as error:
            self._tell_which(error, mail)
            raise

    def _tell_which(self, error: Exception, mail: Mail | None) -> None:
        if mail is not None:
            error.add_note(f"in mailbox {self._mailbox.name}, {mail!r}")

    def _sleep_until_mail(self, timer: PeriodTimer | None) -> Mail:
        """Take one mail. The timer runs here and nowhere else, so no mail's time is in it."""
        if timer is None:
            return self._mailbox.take()
        timer.start()
        try:
            return self._mailbox.take()
        finally:
            timer.stop()

    def _put_control(self, action: Callable[[], object], description: str) -> None:
        with suppress(Closed):
            self._mailbox.put(Mail(action, description=description, options=MailOptions.URGENT))

    def _suspend(self) -> None:
        self._suspended = True

    def _complete(self) -> None:
        self._loop_running = False
        self._suspended = True

    def _resume(self, suspension: Suspension) -> None:
        if self._suspension is suspension:
            self._suspension = None

    def _start_probe(self) -> None:
        """Begin to measure latency, after the first mail that was no poison."""
        if self._probe_started or self._suspended:
            return
        self._probe_started = True
        self._schedule_probe()

    def _schedule_probe(self) -> None:
        def observe() -> None:
            # From when it was due, not from when it was posted: a mail that held the thread for
            # a second also held back the posting.
            self.metrics.latency.observe(max(0.0, self._clock.monotonic_s() - timer.due_s))
            self._schedule_probe()

        timer = self.timers.schedule_after(self._probe_interval_ms, observe, "latency probe")
