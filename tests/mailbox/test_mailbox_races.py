"""Races on the mailbox: every place where a thread can lose the interpreter, and real threads.

The first half needs no second thread and no luck. It runs one operation under a tracer that, at one
chosen bytecode of the mailbox's own code, runs what another thread might do there; and does so for
each bytecode in turn.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import Closed
from penstock.mailbox import MailOptions, TaskMailbox, task_mailbox
from penstock.mailbox.mail import Mail
from penstock.testing.clock import VirtualClock
from tests.harness.cluster_simulation.fibers import one_core
from tests.mailbox.stepping_kit import SteppedMutex, SteppedThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from _typeshed import TraceFunction

OPTIONS = [MailOptions.DEFAULT, MailOptions.URGENT]


def mail(name: str, options: MailOptions = MailOptions.DEFAULT) -> Mail:
    return Mail(lambda: None, description=name, options=options)


def preempted(operation: Callable[[], None], intruders: dict[int, Callable[[], None]]) -> bool:
    """Run the operation with intruders before its n-th bytecodes; False if it has fewer."""
    seen, left, inside = 0, dict(intruders), False

    def trace(frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        nonlocal seen, inside
        if frame.f_code.co_filename != task_mailbox.__file__ or inside:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not holds_lock(frame):
            intruder = left.pop(seen, None)
            if intruder is not None:
                inside = True
                intruder()
                inside = False
            seen += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        operation()
    finally:
        sys.settrace(before)
    return not left


def holds_lock(frame: FrameType) -> bool:
    """Return whether a `ClockWakeup` holds its lock: no other thread can come between then.

    The intruder runs on the same thread, which may acquire the lock once more.
    """
    if not frame.f_code.co_qualname.startswith("ClockWakeup."):
        return False
    return bool(frame.f_locals["self"]._condition._is_owned())


def preempted_at(place: int, operation: Callable[[], None], intruder: Callable[[], None]) -> bool:
    return preempted(operation, {place: intruder})


def every_preemption(run: Callable[[int], bool]) -> int:
    place = 0
    while run(place):
        place += 1
    return place


def _run_after(run: Callable[[int, int], bool], first: int, place: int) -> bool:
    return run(first, first + 1 + place)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("closing", [True, False])
def test_a_put_cut_by_quiesce_or_close_is_either_refused_or_handed_out(
    options: MailOptions, closing: bool
) -> None:
    outcomes = set()

    def run(place: int) -> bool:
        box = TaskMailbox()
        one, handed_out, refused = mail("one", options), [], []
        box.put(mail("before", options))

        def end() -> None:
            if closing:
                handed_out.extend(box.close())
            else:
                box.quiesce()
                handed_out.extend(box.drain())

        def put() -> None:
            try:
                box.put(one)
            except Closed:
                refused.append(one)

        was_cut = preempted_at(place, put, end)
        if was_cut:
            # Nothing turns up later than at the quiesce: the drain had all of it.
            assert box.drain() == []
            assert [one.description for one in handed_out][:1] == ["before"]
            assert (one in handed_out) != (one in refused)
            outcomes.add(one in refused)
        return was_cut

    assert every_preemption(run) > 10
    assert outcomes == {True, False}


@pytest.mark.parametrize("options", OPTIONS)
def test_what_a_quiesced_mailbox_holds_never_grows(options: MailOptions) -> None:
    """The put is cut twice: by the quiesce, and later by a drain, which must find nothing more."""

    def run(first: int, second: int) -> bool:
        box, one, refused = TaskMailbox(), mail("one", options), []

        def put() -> None:
            try:
                box.put(one)
            except Closed:
                refused.append(one)

        found: list[int] = []

        def quiesce() -> None:
            box.quiesce()
            found.append(box.size)

        was_cut = preempted(put, {first: quiesce, second: lambda: found.append(len(box.drain()))})
        if was_cut:
            assert found[0] == found[1] == (one not in refused)
        return was_cut

    for first in range(every_preemption(lambda place: run(place, place + 1))):
        every_preemption(partial(_run_after, run, first))


@pytest.mark.parametrize("options", OPTIONS)
def test_a_put_at_any_place_of_a_quiesce_is_either_refused_or_handed_out(
    options: MailOptions,
) -> None:
    outcomes = set()

    def run(place: int) -> bool:
        box, refused = TaskMailbox(), []
        one = mail("one", options)
        box.put(mail("before", options))

        def put() -> None:
            try:
                box.put(one)
            except Closed:
                refused.append(one)

        was_cut = preempted_at(place, box.quiesce, put)
        if was_cut:
            assert (one in box.drain()) != (one in refused)
            outcomes.add(one in refused)
        return was_cut

    assert every_preemption(run) > 20
    assert outcomes == {True, False}


class Ending:
    """A put on one thread and the end of the mailbox on its owner's, cut as the test says."""

    def __init__(self, options: MailOptions, *, closing: bool) -> None:
        self.box = TaskMailbox(bind=False)
        self.box._mutex = SteppedMutex()  # type: ignore[assignment,misc]
        self.earlier = [mail("urgent", MailOptions.URGENT), mail("normal")]
        for one in self.earlier:
            self.box.put(one)
        self.late, self.closing = mail("late", options), closing
        self.handed_out: list[Mail] = []
        self.found: list[int] = []
        files = frozenset({task_mailbox.__file__})
        self.put = SteppedThread(lambda: self.box.put(self.late), files)
        self.end = SteppedThread(self._end, files, self.box.bind)

    def _end(self) -> None:
        if self.closing:
            self.handed_out += self.box.close()
        else:
            self.box.quiesce()
            self.found.append(self.box.size)
            self.handed_out += self.box.drain()
            self.found.append(len(self.handed_out))

    def finish(self) -> bool:
        """Run both to their ends; return whether the put was refused."""
        self.put.to_end()  # as far as it can: it may wait for the mutex of the other
        assert self.end.to_end()
        assert self.put.to_end()
        assert self.end.error is None
        refused = isinstance(self.put.error, Closed)
        assert refused or self.put.error is None
        assert [one for one in self.handed_out if one is not self.late] == self.earlier
        assert self.handed_out.count(self.late) == (not refused)
        assert self.found == ([] if self.closing else [len(self.handed_out)] * 2)
        return refused


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("closing", [True, False])
def test_a_half_done_put_resumed_at_any_place_of_the_end_is_refused_or_handed_out(
    options: MailOptions, closing: bool
) -> None:
    """All pairs of cuts: the put stops at the first, goes on when the end reached the second."""
    outcomes: set[bool] = set()

    def run(first: int, second: int) -> bool:
        ending = Ending(options, closing=closing)
        put_was_cut = not ending.put.step(first)
        end_was_cut = not ending.end.step(second)
        outcomes.add(ending.finish())
        return put_was_cut and end_was_cut

    with one_core():
        places = every_preemption(
            lambda place: not Ending(options, closing=closing).put.step(place)
        )
        pairs = sum(every_preemption(partial(run, first)) for first in range(places))
    assert outcomes == {True, False}
    assert pairs > 300


class _Asleep(Exception):
    """The taker went to sleep although mail is there."""


class NoSleepClock(VirtualClock):
    """Refuses to sleep: a set wake-up does not come here."""

    slept = False

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        self.slept = True
        raise _Asleep


@pytest.mark.parametrize("options", OPTIONS)
def test_a_take_never_sleeps_over_a_mail_put_at_any_place_of_it(options: MailOptions) -> None:
    def run(place: int) -> bool:
        clock = NoSleepClock()
        box = TaskMailbox(clock=clock)
        box.put(mail("hidden"))
        visible = Mail(lambda: None, 5, "visible", (), options)
        taken, put_awake = [], []

        def put() -> None:
            put_awake.append(not clock.slept)
            box.put(visible)

        try:
            preempted_at(place, lambda: taken.append(box.take(5)), put)
        except _Asleep:
            assert put_awake != [True]
            return False  # the take reached its sleep before the place
        assert taken == [visible]
        return True

    assert every_preemption(run) > 30


def test_two_puts_to_a_sleeper_wake_it_wherever_the_first_is_cut() -> None:
    class PutsAsleep(VirtualClock):
        """What happens while the taker sleeps: one put is cut by another, at the place."""

        place: int
        box: TaskMailbox

        def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
            self.sleeps = getattr(self, "sleeps", 0) + 1
            if self.sleeps > 1:
                raise _Asleep
            self.was_cut = preempted_at(
                self.place,
                lambda: self.box.put(Mail(lambda: None, 5, "first")),
                lambda: self.box.put(Mail(lambda: None, 5, "second")),
            )
            return True

    def run(place: int) -> bool:
        clock = PutsAsleep()
        clock.place = place
        clock.box = box = TaskMailbox(clock=clock)
        taken = {box.take(5).description}
        if clock.was_cut:
            taken.add(box.take(5).description)
            assert taken == {"first", "second"}
        return clock.was_cut

    assert every_preemption(run) > 10


# Urgent mail and sleeping takes


@pytest.mark.parametrize("fast", [True, False])
def test_urgent_mails_put_while_a_take_waits_are_first_in_first_out(fast: bool) -> None:
    # Both arrive before the sleeper can look: it is held up on its way out of the wait.
    asleep, awake = threading.Event(), threading.Event()

    class HeldWakeup:
        def set(self) -> None:
            awake.set()

        def wait(self, timeout_s: float | None) -> None:
            asleep.set()
            assert awake.wait(120)
            assert both_put.wait(120)

    both_put = threading.Event()
    box = TaskMailbox(bind=False) if fast else TaskMailbox(bind=False, clock=VirtualClock())
    box._wakeup = HeldWakeup()  # type: ignore[misc]
    taken: list[str] = []

    def taker() -> None:
        box.bind()
        taken.extend(box.take().description for _ in range(3))

    thread = threading.Thread(target=taker)
    thread.start()
    assert asleep.wait(120)
    box.put(mail("normal"))
    box.put(mail("A", MailOptions.URGENT))
    box.put(mail("B", MailOptions.URGENT))
    both_put.set()
    thread.join(120)
    assert taken == ["A", "B", "normal"]


# Real threads


@contextmanager
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run_all(*actions: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def guarded(action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(action,)) for action in actions]
    with frequent_switches():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


@pytest.mark.parametrize("seed", range(5))
def test_puts_racing_a_close_are_refused_or_handed_out_exactly_once(seed: int) -> None:
    box = TaskMailbox(bind=False)
    accepted: list[set[Mail]] = [set(), set(), set()]
    handed_out: list[Mail] = []

    def producer(mine: set[Mail]) -> None:
        for number in range(100_000):
            one = mail("n", OPTIONS[number % 5 == seed])
            try:
                box.put(one)
            except Closed:
                return
            mine.add(one)

    def owner() -> None:
        box.bind()
        handed_out.extend(box.take() for _ in range(50 + 37 * seed))
        if seed % 2:
            box.quiesce()
            handed_out.extend(box.drain())
            assert box.close() == []
        else:
            handed_out.extend(box.close())

    run_all(owner, *(lambda mine=mine: producer(mine) for mine in accepted))
    assert len(handed_out) == len(set(handed_out))
    assert set(handed_out) == set().union(*accepted)


def test_a_thread_that_takes_one_at_a_time_is_always_woken() -> None:
    there, back = TaskMailbox(bind=False), TaskMailbox(bind=False)

    def ping() -> None:
        back.bind()
        for _ in range(2_000):
            there.put(mail("ping"))
            back.take()

    def pong() -> None:
        there.bind()
        for _ in range(2_000):
            there.take()
            back.put(mail("pong"))

    run_all(ping, pong)
    assert (there.size, back.size) == (0, 0)


def test_each_producer_is_served_in_its_own_order() -> None:
    box = TaskMailbox(bind=False)
    seen: list[str] = []

    def producer(name: str) -> None:
        for number in range(300):
            box.put(mail(f"{name} {number}"))

    def owner() -> None:
        box.bind()
        seen.extend(box.take().description for _ in range(900))

    run_all(owner, *(lambda name=name: producer(name) for name in "abc"))
    for name in "abc":
        numbers = [int(one.split()[1]) for one in seen if one.startswith(name)]
        assert numbers == list(range(300))
