"""Suspending the default action, probing latency and the alarm, with no loop around them."""

from __future__ import annotations

import math

import pytest

from penstock.core.errors import Conflict
from penstock.core.metrics import Histogram
from penstock.mailbox import MailboxTimers, TaskMailbox, WrongThread
from penstock.mailbox.alarm import Alarm
from penstock.mailbox.control import DefaultActionController, LoopEnd, put_control
from penstock.mailbox.mailbox_metrics import LatencyProbe
from penstock.testing.clock import VirtualClock
from tests.mailbox.thread_kit import in_thread


def controller_of(box: TaskMailbox) -> DefaultActionController:
    return DefaultActionController(box, LoopEnd(box))


def test_there_is_one_suspension_at_a_time_and_a_stale_one_ends_nothing() -> None:
    controller = controller_of(TaskMailbox())
    first = controller.suspend_default_action()
    with pytest.raises(Conflict, match="suspended already"):
        controller.suspend_default_action()
    first.resume()
    second = controller.suspend_default_action()
    first.resume()
    assert controller.suspension is second


def test_another_thread_resumes_by_urgent_mail_and_cannot_suspend() -> None:
    box = TaskMailbox()
    controller = controller_of(box)
    suspension = controller.suspend_default_action()
    in_thread(suspension.resume)
    with pytest.raises(WrongThread):
        in_thread(controller.suspend_default_action)
    assert controller.suspension is suspension
    mail = box.try_take()
    assert mail is not None
    assert mail.urgent
    mail.run()
    assert controller.suspension is None


def test_a_closed_mailbox_takes_no_control() -> None:
    box = TaskMailbox()
    box.close()
    put_control(box, lambda: None, "nothing")
    assert box.size == 0


def test_a_probe_observes_how_late_its_mail_runs_and_goes_on() -> None:
    clock = VirtualClock()
    box = TaskMailbox(clock=clock)
    latency = Histogram()
    probe = LatencyProbe(MailboxTimers(box, clock), clock, latency, interval_ms=1000)
    probe.start()
    for held_s in (0.5, 2.0):
        clock.advance(1.0 + held_s)
        mail = box.try_take()
        assert mail is not None
        mail.run()
    assert latency.value.count == 2
    assert latency.value.sum == pytest.approx(2.5)


def test_a_probe_without_an_interval_has_nothing_to_start() -> None:
    clock = VirtualClock()
    box = TaskMailbox(clock=clock)
    assert LatencyProbe(MailboxTimers(box, clock), clock, Histogram(), interval_ms=0).started


def test_an_alarm_rings_when_it_is_looked_at_and_due_and_until_it_is_set_anew() -> None:
    clock = VirtualClock()
    alarm = Alarm(clock, lambda: None)
    rung: list[float] = []
    assert alarm.left_s() is None
    alarm.set(clock.monotonic_s() + 2.0, lambda: rung.append(clock.monotonic_s()))
    assert alarm.left_s() == pytest.approx(2.0)
    alarm.ring_if_due()
    assert not rung
    clock.advance(3.0)
    assert alarm.left_s() == 0.0
    alarm.ring_if_due()
    alarm.ring_if_due()
    assert len(rung) == 2
    alarm.cancel()
    alarm.ring_if_due()
    assert len(rung) == 2
    assert alarm.at_s == math.inf


def test_timers_that_another_thread_would_end_stay() -> None:
    clock = VirtualClock()
    box = TaskMailbox(clock=clock)
    timers = MailboxTimers(box, clock)
    timers.schedule_after(1000, lambda: None)
    with pytest.raises(WrongThread):
        in_thread(timers.quiesce)
    assert timers.pending == 1
    assert box.alarm_s == pytest.approx(clock.monotonic_s() + 1)
