"""The virtual clock and the seeded interleavings."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.mailbox import MailboxProcessor
from penstock.testing.clock import DEFAULT_START_MS, VirtualClock
from tests.harness.mailbox_kit import Interleaver, InterleavingFailure


def test_time_passes_only_when_told() -> None:
    clock = VirtualClock()
    assert (clock.now_ms(), clock.monotonic_s()) == (DEFAULT_START_MS, 0)
    clock.advance(1.5)
    clock.advance(ms=250)
    assert (clock.now_ms(), clock.monotonic_s()) == (DEFAULT_START_MS + 1750, 1.75)
    clock.advance_to(1)
    assert clock.monotonic_s() == 1.75
    clock.advance_to(2)
    assert clock.monotonic_s() == 2
    with pytest.raises(InvalidRequest, match="does not go back"):
        clock.advance(-1)


def waiter(
    clock: VirtualClock, timeout_s: float | None, outcomes: list[tuple[bool, float]]
) -> tuple[threading.Thread, threading.Condition]:
    condition = threading.Condition()

    def wait() -> None:
        with condition:
            notified = clock.wait(condition, timeout_s)
            outcomes.append((notified, clock.monotonic_s()))

    thread = threading.Thread(target=wait)
    thread.start()
    clock.wait_for_waiting(1)
    return thread, condition


def test_a_wait_ends_when_its_time_has_come_and_not_before() -> None:
    clock = VirtualClock()
    outcomes: list[tuple[bool, float]] = []
    thread, _ = waiter(clock, 10, outcomes)
    clock.advance(9.999)
    assert clock.waiting == 1
    clock.advance(5)
    thread.join(120)
    assert [notified for notified, _ in outcomes] == [False]
    assert clock.waiting == 0


def test_a_wait_ends_when_notified_at_the_time_of_that() -> None:
    clock = VirtualClock()
    outcomes: list[tuple[bool, float]] = []
    thread, condition = waiter(clock, None, outcomes)
    clock.advance(1_000)
    with condition:
        condition.notify()
    thread.join(120)
    assert outcomes == [(True, 1_000)]


def test_a_wait_that_is_over_does_not_begin() -> None:
    condition = threading.Condition()
    with condition:
        assert not VirtualClock().wait(condition, 0)


def test_waiting_for_waiters_that_never_come_is_an_error() -> None:
    with pytest.raises(Unavailable, match="0 threads wait"):
        VirtualClock().wait_for_waiting(1, real_timeout_s=0.01)


def ticking(seed: int) -> tuple[Interleaver, list[str]]:
    clock = VirtualClock()
    interleaver = Interleaver(clock, seed)
    said: list[str] = []
    for name in "abc":
        processor = MailboxProcessor(clock=clock, name=name)
        processor.timers.schedule_every(1_000, partial(said.append, name))
        interleaver.add(name, processor)
    return interleaver, said


def _has_sixty(said: list[str]) -> bool:
    return len(said) == 60


def test_the_same_seed_gives_the_same_steps_and_another_seed_others() -> None:
    stories = []
    for seed in (1, 1, 2):
        interleaver, said = ticking(seed)
        interleaver.run(until=partial(_has_sixty, said))
        assert interleaver.clock.monotonic_s() == 20
        stories.append(("".join(said), [str(step) for step in interleaver.steps]))
    assert stories[0] == stories[1] != stories[2]


def test_a_run_ends_when_nobody_can_step_and_skips_who_is_done() -> None:
    clock = VirtualClock()
    interleaver = Interleaver(clock, 0)
    done, closed = MailboxProcessor(clock=clock), MailboxProcessor(clock=clock)
    done.timers.schedule_after(5_000, done.all_actions_completed)
    done.timers.schedule_after(9_000, lambda: None)
    closed.close()
    interleaver.add("done", done)
    interleaver.add("closed", closed)
    interleaver.run()
    assert clock.monotonic_s() == 5
    interleaver.remove("done")
    assert not interleaver.step()


def test_a_failure_tells_the_seed_and_the_steps() -> None:
    interleaver, _ = ticking(7)
    with pytest.raises(InterleavingFailure, match="no end after 10 steps; seed 7, last steps 0:"):
        interleaver.run(max_steps=10)
    processor = MailboxProcessor(clock=interleaver.clock)
    processor.main_executor.execute(lambda: 1 // 0)
    interleaver.add("broken", processor)
    with pytest.raises(ZeroDivisionError) as caught:
        interleaver.run()
    assert any("seed 7" in note for note in caught.value.__notes__)


def test_who_is_due_and_has_yet_to_wake_up_waits_no_more() -> None:
    clock, may_wake = VirtualClock(), threading.Event()

    class Slow(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            return super().wait(timeout) and may_wake.wait(120)

    condition = Slow()

    def wait() -> None:
        with condition:
            clock.wait(condition, 1.0)

    thread = threading.Thread(target=wait)
    thread.start()
    clock.wait_for_waiting(1)
    clock.advance(0.5)
    assert clock.waiting == 1
    clock.advance(0.5)
    assert clock.waiting == 0
    may_wake.set()
    thread.join(120)
