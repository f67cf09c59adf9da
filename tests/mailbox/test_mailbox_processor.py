"""The loop, told as stories: mails, the default action, suspensions, the end."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import Closed, Conflict
from penstock.core.metrics import MetricRegistry
from penstock.mailbox import (
    MAX_PRIORITY,
    DefaultActionController,
    MailboxProcessor,
    MailboxThread,
    MailOptions,
    WrongThread,
)
from penstock.testing.clock import VirtualClock
from tests.mailbox.thread_kit import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

DEFERRABLE, URGENT = MailOptions.DEFERRABLE, MailOptions.URGENT


class Story:
    """A processor whose mails and default action write down that they ran."""

    def __init__(
        self, act: Callable[[Story, DefaultActionController], object] | None = None
    ) -> None:
        self.said: list[str] = []
        self._act = act or (lambda story, controller: story.end())
        self.processor = MailboxProcessor(self._default, name="story")
        self.executor = self.processor.main_executor

    def _default(self, controller: DefaultActionController) -> None:
        self.said.append("default")
        self._act(self, controller)

    def say(self, word: str, **options: MailOptions) -> None:
        self.executor.execute(lambda: self.said.append(word), word, **options)

    def end(self) -> None:
        self.processor.suspend()

    def run(self) -> str:
        self.processor.run()
        return " ".join(self.said)


# The loop


def test_mails_run_before_the_default_action() -> None:
    story = Story()
    story.say("a")
    story.say("b")
    story.say("U", options=URGENT)
    assert story.run() == "U a b default"


def test_a_suspended_loop_goes_on_where_it_stopped() -> None:
    story = Story()
    story.say("a")
    story.end()
    story.say("b")
    assert story.run() == ""  # poison is urgent: nothing ran, nothing is lost
    assert story.run() == "a b default"


def test_after_all_actions_completed_the_loop_never_runs_again() -> None:
    story = Story()
    story.say("a")
    story.processor.all_actions_completed()
    assert story.run() == ""
    assert not story.processor.is_mailbox_loop_running
    assert story.run() == ""
    assert not story.processor.run_mailbox_step()
    story.processor.close()
    story.processor.all_actions_completed()  # safe after close
    story.processor.suspend()


def test_a_mail_that_posts_itself_again_leaves_the_default_action_its_turns() -> None:
    turns: list[int] = []
    story = Story(lambda story, _: story.end() if len(turns) >= 5 else None)

    def again() -> None:
        turns.append(len(story.said))
        story.executor.execute(again, "again")

    again()
    story.run()
    assert turns == [0, 0, 1, 2, 3]
    assert len(story.said) == 4


def test_an_exception_of_a_mail_ends_the_loop_and_says_which_mail() -> None:
    story = Story()
    story.executor.execute(lambda: 1 // 0, "divide %s", "by zero")
    story.say("later")
    with pytest.raises(ZeroDivisionError) as caught:
        story.run()
    assert caught.value.__notes__ == ["in mailbox story, <Mail divide by zero>"]
    assert story.run() == "later default"


def test_a_reported_throwable_ends_the_loop_before_other_mail() -> None:
    story = Story()
    story.say("a")
    story.processor.report_throwable(KeyError("lost"))
    with pytest.raises(KeyError, match="lost"):
        story.run()
    assert story.said == []
    story.processor.close()
    with pytest.raises(Closed):
        story.processor.report_throwable(KeyError("lost"))


def test_the_loop_belongs_to_one_thread_and_to_an_open_mailbox() -> None:
    story = Story()
    with pytest.raises(WrongThread, match="belongs to another thread"):
        in_thread(story.processor.run)
    story.processor.prepare_close()
    with pytest.raises(Closed, match="story is quiesced"):
        story.run()


# Steps


def test_a_step_is_one_mail_or_else_one_default_action() -> None:
    story = Story(lambda _, controller: controller.suspend_default_action())
    story.say("a")
    story.say("b")
    steps = [story.processor.run_mailbox_step() for _ in range(4)]
    assert story.said == ["a", "b", "default"]
    assert steps == [True, True, True, False]


# Suspensions of the default action


def test_while_the_default_action_is_suspended_mails_run_as_they_come() -> None:
    def act(story: Story, controller: DefaultActionController) -> None:
        if story.said.count("default") >= 2:
            story.end()
            return
        suspension = controller.suspend_default_action()

        def post() -> None:
            story.say("mail")
            story.executor.execute(suspension.resume, "resume")
            story.say("behind")

        story.executor.execute(post)

    story = Story(act)
    # What lies behind the resume waits for its turn after the default action.
    assert story.run() == "default mail default"
    assert story.run() == "default mail default behind default"


def test_suspending_twice_is_an_error_and_a_stale_resume_does_nothing() -> None:
    story = Story(lambda story, _: story.end())
    first = story.processor.controller.suspend_default_action()
    with pytest.raises(Conflict, match="suspended already"):
        story.processor.controller.suspend_default_action()
    first.resume()
    first.resume()
    second = story.processor.controller.suspend_default_action()
    first.resume()
    assert story.processor.controller.suspension is not None
    second.resume()
    assert story.processor.controller.suspension is None


def test_a_resume_from_another_thread_comes_as_mail_and_not_after_close() -> None:
    story = Story()
    suspension = story.processor.controller.suspend_default_action()
    in_thread(suspension.resume)
    assert story.processor.controller.suspension is not None
    assert story.run() == "default"
    late = story.processor.controller.suspend_default_action()
    story.processor.close()
    in_thread(late.resume)


def test_only_the_mailbox_thread_suspends() -> None:
    story = Story()
    with pytest.raises(WrongThread):
        in_thread(story.processor.controller.suspend_default_action)


# Yield


def test_a_yield_runs_its_own_and_later_operators_mails_inside_the_current_one() -> None:
    story = Story()
    upstream, own, downstream = (story.processor.executor(place) for place in range(3))

    def wait_for_room() -> None:
        story.said.append("(")
        own.yield_()
        while own.try_yield():
            pass
        story.said.append(")")

    own.execute(wait_for_room)
    upstream.execute(lambda: story.said.append("up"))
    downstream.execute(lambda: story.said.append("down"))
    own.execute(lambda: story.said.append("later"), options=DEFERRABLE)
    story.say("nobody's")
    own.execute(lambda: story.said.append("own"))
    story.processor.executor(MAX_PRIORITY).execute(lambda: story.said.append("news"))
    assert story.run() == "( down own news ) up later nobody's default"


def test_the_end_of_an_operator_also_sees_deferrable_mail() -> None:
    story = Story()
    own = story.processor.executor(1)
    own.execute(lambda: story.said.append("long"), options=DEFERRABLE)
    assert not own.try_yield()
    assert own.try_yield_ignoring_deferrable()
    assert not own.try_yield_ignoring_deferrable()
    assert story.said == ["long"]


def test_a_yield_that_could_wait_for_ever_says_so() -> None:
    story = Story()
    story.processor.prepare_close()
    with pytest.raises(Closed, match="none can arrive"):
        story.executor.yield_()


def test_an_executor_knows_when_nothing_is_left_to_do() -> None:
    story = Story()
    assert not story.executor.is_idle()  # the default action could run
    suspension = story.processor.controller.suspend_default_action()
    assert story.executor.is_idle()
    story.say("a")
    assert story.executor.should_interrupt()
    assert not story.executor.is_idle()
    story.processor.drain()
    assert story.executor.is_idle()
    assert not story.executor.should_interrupt()
    suspension.resume()
    story.processor.controller.suspend_default_action()
    story.processor.prepare_close()
    assert not story.executor.is_idle()


# Futures


def test_a_submitted_command_answers_through_its_future_and_does_not_end_the_loop() -> None:
    story = Story()
    good = story.executor.submit(lambda: 42, "answer")
    bad = story.executor.submit(lambda: 1 // 0)
    unwanted: Future[None] = story.executor.submit(lambda: story.said.append("unwanted"))
    assert unwanted.cancel()
    assert story.run() == "default"
    assert good.result(0) == 42
    with pytest.raises(ZeroDivisionError):
        bad.result(0)


def test_ctrl_c_inside_a_submitted_command_also_ends_the_loop() -> None:
    story = Story()

    def interrupt() -> None:
        raise KeyboardInterrupt

    future = story.executor.submit(interrupt)
    with pytest.raises(KeyboardInterrupt):
        story.run()
    assert isinstance(future.exception(0), KeyboardInterrupt)


@pytest.mark.parametrize("error", [MemoryError, OSError, RuntimeError, KeyboardInterrupt])
def test_an_unexpected_error_of_a_change_goes_to_its_future_and_ends_the_loop(
    error: type[BaseException],
) -> None:
    story = Story()

    def change() -> None:
        raise error("half done")

    future = story.executor.submit_change(change, "a change")
    with pytest.raises(error, match="half done"):
        story.run()
    assert isinstance(future.exception(0), error)


def test_a_refused_change_does_not_end_the_loop() -> None:
    story = Story()

    def change() -> None:
        raise Conflict("no")

    refused = story.executor.submit_change(change)
    done = story.executor.submit_change(lambda: 42)
    assert story.run() == "default"
    with pytest.raises(Conflict):
        refused.result(0)
    assert done.result(0) == 42


def test_a_command_that_cannot_be_posted_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()

    def fail(*_arguments: object, **_options: object) -> None:
        raise MemoryError("no mail")

    with monkeypatch.context() as patch:
        patch.setattr(story.executor, "execute", fail)
        with pytest.raises(MemoryError):
            story.processor.post(lambda: None, "an outcome")
    with pytest.raises(MemoryError, match="no mail"):
        story.run()
    story.processor.close()
    story.processor.post(lambda: None, "nobody waits")


# The end


def test_drain_runs_everything_in_order_and_a_yield_in_it_sees_what_is_behind() -> None:
    story = Story()
    own = story.processor.executor(0)
    own.execute(own.yield_, "yields")
    story.say("a")
    own.execute(lambda: story.said.append("b"))
    story.say("U", options=URGENT)
    story.processor.prepare_close()
    story.processor.drain()
    assert story.said == ["U", "b", "a"]
    assert story.processor.mailbox.size == 0


def test_mail_posted_during_drain_is_left() -> None:
    story = Story()
    story.executor.execute(lambda: story.say("new"))
    story.say("old")
    story.processor.drain()
    assert story.said == ["old"]
    assert story.processor.mailbox.size == 1


def test_a_drain_that_fails_leaves_the_rest_for_close_to_cancel() -> None:
    story = Story()
    story.executor.execute(lambda: 1 // 0)
    left = story.executor.submit(lambda: story.said.append("left"))
    story.processor.prepare_close()
    with pytest.raises(ZeroDivisionError):
        story.processor.drain()
    story.processor.close()
    with pytest.raises(CancelledError):
        left.result(0)
    assert story.said == []


def test_close_cancels_every_dropped_future_even_if_one_cancellation_fails() -> None:
    class Stubborn:
        def __call__(self) -> None:
            raise AssertionError

        def cancel(self) -> None:
            raise RuntimeError("will not")

    story = Story()
    story.executor.execute(Stubborn())
    story.say("plain")
    future = story.executor.submit(lambda: None)
    with pytest.raises(ExceptionGroup, match="cancelling mail failed") as caught:
        story.processor.close()
    assert [str(error) for error in caught.value.exceptions] == ["will not"]
    assert future.cancelled()
    assert story.processor.metrics.mails_dropped == 3
    story.processor.close()
    with pytest.raises(Closed):
        story.executor.submit(lambda: None)


# Numbers


def test_statistics_and_published_metrics() -> None:
    story = Story()
    story.say("a")
    story.run()
    story.say("b")
    numbers = story.processor.metrics.statistics()
    assert (numbers.mails_run, numbers.mails_waiting) == (2, 1)  # "a" and the suspension
    registry = MetricRegistry()
    story.processor.metrics.publish(registry)
    values = {sample.name: sample.value for sample in registry.snapshot()}
    assert values["penstock_mailbox_mails_total"] == 2
    assert values["penstock_mailbox_size"] == 1
    assert set(values) >= {f"penstock_mailbox_{kind}_seconds_total" for kind in ("idle", "busy")}


def test_the_latency_probe_counts_the_time_in_which_a_mail_held_the_thread() -> None:
    clock = VirtualClock()
    processor = MailboxProcessor(
        lambda controller: controller.suspend_default_action(),
        clock=clock,
        latency_probe_interval_ms=1_000,
    )
    processor.main_executor.execute(lambda: None)
    processor.run_mailbox_step()
    processor.main_executor.execute(lambda: clock.advance(4))
    while processor.run_mailbox_step():
        pass
    assert processor.metrics.latency.value.count == 1
    assert processor.metrics.latency.value.sum == pytest.approx(3.0)
    assert processor.mailbox.alarm_s == pytest.approx(5.0)


def test_a_task_that_only_sees_poison_is_never_probed() -> None:
    processor = MailboxProcessor(latency_probe_interval_ms=1_000)
    processor.suspend()
    processor.run()
    assert processor.timers.pending == 0


# A thread of its own


def test_a_mailbox_thread_runs_what_it_accepted_before_it_ends() -> None:
    ran: list[int] = []
    with MailboxThread("worker") as thread:
        for number in range(100):
            thread.executor.execute(partial(ran.append, number))
        name = thread.executor.submit(lambda: threading.current_thread().name)
        assert name.result(120) == "worker"
    assert ran == list(range(100))
    assert not thread.is_alive
    with pytest.raises(Closed):
        thread.executor.execute(lambda: None)
    with pytest.raises(Conflict):
        thread.start()


def test_a_mailbox_thread_stopped_without_drain_cancels_what_is_left() -> None:
    entered, go_on = threading.Event(), threading.Event()
    thread = MailboxThread("worker")
    thread.executor.execute(lambda: (entered.set(), go_on.wait(120)))
    left = thread.executor.submit(lambda: 1)
    thread.start()
    assert entered.wait(120)
    thread.stop(drain=False)
    go_on.set()
    assert thread.join(120)
    assert left.cancelled()


@pytest.mark.usefixtures("deaths")
def test_a_mailbox_thread_that_fails_tells_cancels_and_keeps_the_failure() -> None:
    told: list[BaseException] = []
    thread = MailboxThread("worker", on_failure=told.append)
    thread.executor.execute(lambda: 1 // 0)
    left = thread.executor.submit(lambda: 1)
    thread.start()
    assert thread.join(120)
    assert isinstance(thread.failure, ZeroDivisionError)
    assert told == [thread.failure]
    assert left.cancelled()


def test_a_mailbox_thread_never_started_drops_its_mail_at_stop() -> None:
    thread = MailboxThread("worker")
    left = thread.executor.submit(lambda: 1)
    thread.stop()
    assert thread.join()
    assert left.cancelled()
    with pytest.raises(Conflict):
        thread.start()


# The end of a loop whose mail waits in a yield


def thread_that_yields(mail_priority: int, ends: list[str]) -> tuple[MailboxThread, Future[None]]:
    """Start a thread whose first mail yields until it is interrupted, and wait until it does."""
    entered: Future[None] = Future()
    thread = MailboxThread("worker")
    own = thread.processor.executor(mail_priority)

    def wait_for_room() -> None:
        entered.set_result(None)
        try:
            while True:
                own.yield_()
        except BaseException as error:
            ends.append(f"{type(error).__name__}: {error}")
            raise

    thread.executor.execute(wait_for_room, "wait for room")
    left = thread.executor.submit(lambda: None)
    thread.start()
    entered.result(120)
    return thread, left


@pytest.mark.parametrize("priority", [0, 7, MAX_PRIORITY])
def test_stopping_without_drain_ends_a_yield_and_is_no_failure(priority: int) -> None:
    ends: list[str] = []
    thread, left = thread_that_yields(priority, ends)
    thread.stop(drain=False)
    assert thread.join(120)
    assert ends == ["Closed: mailbox worker ends without running the remaining mails: stop waiting"]
    assert thread.failure is None
    assert left.cancelled()


@pytest.mark.usefixtures("deaths")
@pytest.mark.parametrize("priority", [0, 7, MAX_PRIORITY])
def test_a_reported_failure_ends_a_yield_and_is_the_failure(priority: int) -> None:
    ends: list[str] = []
    thread, left = thread_that_yields(priority, ends)
    lost = KeyError("lost")
    thread.processor.report_throwable(lost)
    assert thread.join(120)
    assert ends == ["KeyError: 'lost'"]
    assert thread.failure is lost
    assert left.cancelled()


def test_a_mail_that_catches_what_its_yield_raises_does_not_keep_the_loop_alive() -> None:
    story, own = Story(), None
    own = story.processor.executor(1)
    seen: list[str] = []

    def stubborn() -> None:
        for _ in range(3):
            try:
                own.yield_()
            except KeyError as error:
                seen.append(str(error))
        with pytest.raises(KeyError):
            own.try_yield()

    story.executor.submit(stubborn)
    story.executor.submit(lambda: story.processor.report_throwable(KeyError("lost")))
    story.processor.report_throwable(KeyError("first"))
    story.say("later")
    with pytest.raises(KeyError, match="first"):
        story.run()
    story.executor.execute(stubborn, options=URGENT)
    story.processor.executor(1).execute(
        lambda: story.processor.report_throwable(KeyError("second")), options=URGENT
    )
    with pytest.raises(KeyError, match="second") as caught:
        story.run()
    assert not hasattr(caught.value, "__notes__")
    assert seen == ["'second'"] * 2  # the first yield ran the mail that reported it
    assert "later" not in story.said


@pytest.mark.usefixtures("deaths")
def test_a_failure_reported_to_a_yield_stays_the_cause_when_its_cleanup_raises() -> None:
    entered = threading.Event()
    thread = MailboxThread("worker")

    def clean_up_badly() -> None:
        entered.set()
        try:
            thread.executor.yield_()
            thread.executor.yield_()
        finally:
            raise RuntimeError("cleanup")

    thread.executor.execute(clean_up_badly)
    thread.start()
    assert entered.wait(120)
    lost = KeyError("lost")
    thread.processor.report_throwable(lost)
    assert thread.join(120)
    assert thread.failure is lost
    assert "afterwards, in mailbox worker: RuntimeError('cleanup')" in lost.__notes__


@pytest.mark.usefixtures("deaths")
def test_the_first_failure_stays_the_cause_when_closing_fails_too() -> None:
    class Stubborn:
        def __call__(self) -> None:
            raise AssertionError

        def cancel(self) -> None:
            raise RuntimeError("will not")

    told: list[BaseException] = []
    thread = MailboxThread("worker", on_failure=told.append)
    thread.executor.execute(lambda: 1 // 0)
    thread.executor.execute(Stubborn())
    left = thread.executor.submit(lambda: 1)
    thread.start()
    assert thread.join(120)
    assert isinstance(thread.failure, ZeroDivisionError)
    assert told == [thread.failure]
    assert "will not" in thread.failure.__notes__[-1]
    assert left.cancelled()


def test_ctrl_c_while_one_future_is_cancelled_cancels_the_others_all_the_same() -> None:
    story = Story()
    interrupted, other = story.executor.submit(lambda: 1), story.executor.submit(lambda: 2)

    def strike(future: Future[int]) -> None:
        raise KeyboardInterrupt

    interrupted.add_done_callback(strike)
    with pytest.raises(BaseExceptionGroup) as caught:
        story.processor.close()
    assert isinstance(caught.value.exceptions[0], KeyboardInterrupt)
    assert other.cancelled()
