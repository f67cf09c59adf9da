"""Timers: what is due comes as mail, in order, under the virtual clock and under the real one."""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.mailbox import MailboxProcessor, MailboxThread, Timer
from penstock.testing.clock import VirtualClock
from tests.harness.call_faults_kit import Faults


class Timed:
    """A processor that only runs mail, stepped by the test."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.processor = MailboxProcessor(clock=self.clock)
        self.timers = self.processor.timers
        self.said: list[str] = []
        self.run()

    def say(self, word: str) -> Callable[[], object]:
        return lambda: self.said.append(f"{word}@{self.clock.monotonic_s():g}")

    def run(self, seconds: float = 0) -> list[str]:
        self.clock.advance(seconds)
        while self.processor.run_mailbox_step():
            pass
        return self.said


def test_timers_fire_in_the_order_of_their_time_then_of_their_making() -> None:
    timed = Timed()
    timed.timers.schedule_after(2_000, timed.say("b"))
    timed.timers.schedule_after(1_000, timed.say("a"))
    timed.timers.schedule_at(timed.clock.now_ms() + 2_000, timed.say("c"))
    timed.timers.schedule_after(-5, timed.say("now"))
    assert timed.run() == ["now@0"]
    assert timed.run(0.999) == ["now@0"]
    assert timed.run(0.001) == ["now@0", "a@1"]
    assert timed.run(9) == ["now@0", "a@1", "b@10", "c@10"]
    assert timed.timers.pending == 0
    assert timed.processor.mailbox.alarm_s == math.inf


def test_a_timer_is_mail_and_waits_behind_what_waits_already() -> None:
    timed = Timed()
    timed.timers.schedule_after(1_000, timed.say("timer"))
    timed.processor.main_executor.execute(timed.say("mail"))
    assert timed.run(5) == ["mail@5", "timer@5"]


def test_a_cancelled_timer_does_not_fire_even_if_its_mail_waits() -> None:
    timed = Timed()
    early = timed.timers.schedule_after(1_000, timed.say("early"))
    late = timed.timers.schedule_after(1_000, timed.say("late"))
    early.cancel()
    timed.clock.advance(1)
    assert timed.processor.mailbox.has_mail()  # the mail of `late` waits now
    late.cancel()
    assert timed.run() == []


def test_a_repeated_timer_keeps_its_grid_and_leaves_out_what_it_missed() -> None:
    timed = Timed()
    every = timed.timers.schedule_every(1_000, timed.say("tick"), first_after_ms=500)
    for _ in range(4):
        timed.run(0.5)
    assert timed.said == ["tick@0.5", "tick@1.5"]
    assert timed.run(3.2)[2:] == ["tick@5.2"]
    assert timed.run(0.3)[3:] == ["tick@5.5"]
    every.cancel()
    assert timed.run(10)[4:] == []
    with pytest.raises(InvalidRequest, match="interval 0"):
        timed.timers.schedule_every(0, timed.say("never"))


def test_a_timer_of_fixed_delay_waits_its_delay_after_each_run() -> None:
    timed = Timed()

    def slow() -> None:
        timed.said.append(f"begins@{timed.clock.monotonic_s():g}")
        timed.clock.advance(3)

    timer = timed.timers.schedule_with_delay(1_000, slow, first_after_ms=500)
    assert timed.run(0.5) == ["begins@0.5"]
    assert timed.run(0.9) == ["begins@0.5"]
    assert timed.run(0.1)[1:] == ["begins@4.5"]
    assert timed.run(10)[2:] == ["begins@17.5"]  # it waited: no run is made up for
    timer.cancel()
    assert timed.run(10)[3:] == []


def test_a_timer_of_fixed_delay_first_runs_after_one_delay_and_ends_when_it_raises() -> None:
    timed = Timed()
    timed.timers.schedule_with_delay(1_000, lambda: 1 // 0, "divides")
    assert timed.run(0.9) == []
    with pytest.raises(ZeroDivisionError):
        timed.run(0.1)
    assert timed.timers.pending == 0


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_delays_and_intervals_that_are_not_finite_are_refused(wrong: float) -> None:
    timed = Timed()
    timers, say = timed.timers, timed.say("never")
    with pytest.raises(InvalidRequest, match=r"timer 'x': delay .* must be a finite"):
        timers.schedule_after(wrong, say, "x")
    with pytest.raises(InvalidRequest, match="must be a finite number"):
        timers.schedule_at(cast("int", wrong), say)
    for schedule in (timers.schedule_every, timers.schedule_with_delay):
        with pytest.raises(InvalidRequest, match="must be a finite number"):
            schedule(wrong, say)
        with pytest.raises(InvalidRequest, match=r"first delay .* must be a finite"):
            schedule(1, say, first_after_ms=wrong)
    with pytest.raises(InvalidRequest, match="must be above 0"):
        timers.schedule_with_delay(0, say)
    with pytest.raises(InvalidRequest, match="latency_probe_interval_ms"):
        MailboxProcessor(latency_probe_interval_ms=cast("int", wrong))
    assert timers.pending == 0


def test_a_repeated_timer_may_cancel_itself_and_ends_when_it_raises() -> None:
    timed = Timed()
    made: list[Timer] = []

    def stop() -> None:
        made[0].cancel()

    made.append(timed.timers.schedule_every(1_000, stop))
    timed.timers.schedule_every(1_000, lambda: 1 // 0, "divides")
    with pytest.raises(ZeroDivisionError):
        timed.run(1)
    timed.run(5)
    assert timed.timers.pending == 0


def test_a_yield_lets_timers_of_its_priority_fire() -> None:
    timed = Timed()
    own = timed.processor.executor(3)
    timed.timers.schedule_after(1_000, timed.say("hidden"))
    timed.timers.schedule_after(1_000, timed.say("seen"), priority=3)
    timed.clock.advance(1)
    assert own.try_yield()
    assert not own.try_yield()
    assert timed.said == ["seen@1"]


def test_after_quiesce_nothing_fires_and_new_timers_are_dead() -> None:
    timed = Timed()
    pending = timed.timers.schedule_after(1_000, timed.say("a"))
    timed.timers.quiesce()
    dead = timed.timers.schedule_after(1_000, timed.say("b"))
    assert pending.cancelled
    assert dead.cancelled
    assert timed.run(5) == []


def test_timers_of_a_closed_mailbox_are_dead_for_every_thread() -> None:
    timed = Timed()
    timed.processor.close()
    made: list[bool] = []
    thread = threading.Thread(
        target=lambda: made.append(timed.timers.schedule_after(1, timed.say("a")).cancelled)
    )
    thread.start()
    thread.join()
    assert made == [True]
    assert timed.timers.schedule_after(1, timed.say("b")).cancelled


def test_cancelled_timers_are_let_go_of() -> None:
    timed = Timed()
    for _ in range(10_000):
        timed.timers.schedule_after(3_600_000, timed.say("time out")).cancel()
    assert len(timed.timers._heap) < 200


@given(
    st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=30),
    st.lists(st.integers(1, 20), min_size=1, max_size=10),
)
def test_any_timers_fire_once_in_order_and_never_early(
    wanted: list[tuple[int, bool]], advances: list[int]
) -> None:
    timed = Timed()
    fired: list[tuple[int, int, float]] = []

    def note(delay_s: int, number: int) -> None:
        fired.append((delay_s, number, timed.clock.monotonic_s()))

    for number, (delay_s, cancelled) in enumerate(wanted):
        timer = timed.timers.schedule_after(
            1000 * delay_s,
            partial(note, delay_s, number),
        )
        if cancelled:
            timer.cancel()
    for seconds in advances:
        timed.run(seconds)
    end = sum(advances)
    due = [(d, n) for n, (d, cancelled) in enumerate(wanted) if d <= end and not cancelled]
    assert [(d, n) for d, n, _ in fired] == sorted(due)
    assert all(at >= d for d, _, at in fired)


def test_other_threads_set_timers_of_a_sleeping_mailbox_under_both_clocks() -> None:
    with MailboxThread("real") as thread:
        fired = threading.Event()
        thread.timers.schedule_after(1, fired.set)
        assert fired.wait(120)

    clock = VirtualClock()
    with MailboxThread("virtual", clock=clock) as thread:
        fired, early = threading.Event(), threading.Event()
        thread.timers.schedule_after(60_000, fired.set)
        thread.timers.schedule_after(59_000, early.set)
        # Once the mailbox has run what was posted and sleeps again, time may move.
        thread.executor.submit(lambda: None).result(120)
        clock.wait_for_waiting(1)
        clock.advance(59)
        assert early.wait(120)
        clock.wait_for_waiting(1)
        assert not fired.is_set()
        clock.advance(1)
        assert fired.wait(120)


# Not the callbacks: a mail that raises ends the loop, and its timer.
_INSIDE = ("penstock.mailbox.timers", "penstock.mailbox.alarm", "penstock.mailbox.task_mailbox")


def test_an_exception_at_any_call_leaves_each_timer_that_was_set_and_no_other() -> None:
    """One that was set had no alarm, and came when another one was due, or never."""
    met, at = set[str](), 0
    while True:
        timed, faults, wanted = Timed(), Faults(), list[str]()
        for number in range(63):  # cancelled ones, which are removed when many were set
            timed.timers.schedule_after(90_000 + number, timed.say("never")).cancel()
        with faults.armed_inside(_INSIDE, MemoryError, at):
            for name, due_s in (("d", 4), ("b", 2), ("c", 3), ("a", 1), ("e", 5)):
                timed.timers.schedule_after(due_s * 1_000, timed.say(name))
                wanted.append(f"{name}@{due_s}")
        for due_s in range(1, 6):
            timed.run(1)
            assert timed.said == sorted(wanted)[: len(timed.said)], f"at {faults.raised}"
            assert len(timed.said) == sum(int(one[-1]) <= due_s for one in wanted), faults.raised
        if not faults.raised:
            break
        met.add(faults.raised.rpartition(".")[2])
        at += 1
    assert met >= {"_register", "_prune", "set", "_add"}


def test_an_exception_after_a_timer_is_added_leaves_its_number_to_no_other_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two timers with one number and one due time cannot be compared."""
    timed, faults = Timed(), Faults()
    with monkeypatch.context() as patch, faults.armed(KeyboardInterrupt, 0, after=True):
        patch.setattr(heapq, "heappush", faults.port(heapq.heappush))
        timed.timers.schedule_after(1_000, timed.say("interrupted"))
    assert faults.raised
    for name in "ab":
        timed.timers.schedule_after(1_000, timed.say(name))
    assert timed.run(1)[-2:] == ["a@1", "b@1"]


def test_an_exception_while_timers_are_posted_posts_each_of_them_once() -> None:
    at = 0
    while True:
        timed, faults = Timed(), Faults()
        for name in "abc":
            timed.timers.schedule_after(1_000, timed.say(name))
        timed.timers.schedule_after(2_000, timed.say("d"))
        timed.clock.advance(1)
        with faults.armed_inside(_INSIDE, MemoryError, at):
            timed.processor.mailbox.alarm.ring_if_due()
        assert timed.run() == ["a@1", "b@1", "c@1"], f"at {faults.raised}"
        assert timed.run(1) == ["a@1", "b@1", "c@1", "d@2"], f"at {faults.raised}"
        if not faults.raised:
            break
        at += 1
    assert at > 5
