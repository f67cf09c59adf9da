"""The nine promises of the mailbox, each as a property."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import Closed
from penstock.mailbox import (
    MIN_PRIORITY,
    DefaultActionController,
    MailboxProcessor,
    MailboxThread,
    MailOptions,
    Suspension,
)
from penstock.testing.clock import VirtualClock
from tests.harness.mailbox_kit import Interleaver

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT, DEFERRABLE, URGENT = MailOptions.DEFAULT, MailOptions.DEFERRABLE, MailOptions.URGENT
all_options = st.sampled_from(list(MailOptions))
# Real threads cost more than an example is worth.
few = settings(max_examples=15)


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


def run_until_quiet(processor: MailboxProcessor, most: int = 10_000) -> None:
    for _ in range(most):
        if not processor.run_mailbox_step():
            return
    raise AssertionError("never quiet")


@few
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=20), st.integers(1, 3))
def test_1_only_the_owner_runs_actions_and_none_overlap_but_in_a_yield(
    mails: list[tuple[int, bool]], producers: int
) -> None:
    seen: list[tuple[int, int]] = []
    running: list[bool] = []  # for each action under way, whether it is inside a yield

    def act(priority: int, yields: bool) -> None:
        assert all(running), "an action began beside one that does not yield"
        running.append(False)
        seen.append((threading.get_ident(), priority))
        if yields:
            running[-1] = True
            thread.processor.executor(priority).try_yield()
        running.pop()

    def produce() -> None:
        for priority, yields in mails:
            executor = thread.processor.executor(priority)
            executor.execute(partial(act, priority, yields))

    with MailboxThread("owner") as thread:
        owner = thread.executor.submit(threading.get_ident).result(120)
        join([threading.Thread(target=produce) for _ in range(producers)])
    assert thread.failure is None
    assert {ident for ident, _ in seen} <= {owner}
    assert len(seen) == producers * len(mails)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), all_options), max_size=30))
def test_2_mails_of_a_producer_and_kind_run_in_the_order_they_were_put(
    mails: list[tuple[int, int, MailOptions]],
) -> None:
    processor = MailboxProcessor()
    ran: list[int] = []

    def run(number: int) -> None:
        ran.append(number)
        if number % 7 == 3:
            processor.executor(1).try_yield()

    for number, (_, priority, options) in enumerate(mails):
        processor.executor(priority).execute(partial(run, number), options=options)
    processor.drain()
    for kind in {(producer, priority, options) for producer, priority, options in mails}:
        of_kind = [number for number in ran if mails[number] == kind]
        assert of_kind == sorted(of_kind)
    assert sorted(ran) == list(range(len(mails)))


class Generations:
    """Mails that post mails, and a default action that counts the turns it gets."""

    def __init__(self, children: list[tuple[int, MailOptions]]) -> None:
        self.children = children
        self.turn = 0
        self.posted_in: dict[int, int] = {}
        self.ran_in: dict[int, int] = {}
        self.processor = MailboxProcessor(self._default)

    def _default(self, controller: DefaultActionController) -> None:
        self.turn += 1
        if self.processor.mailbox.size == 0:
            self.processor.suspend()

    def post(self, number: int) -> None:
        self.posted_in[number] = self.turn
        options = self.children[number][1]
        self.processor.main_executor.execute(lambda: self._run(number), options=options)

    def _run(self, number: int) -> None:
        self.ran_in[number] = self.turn
        for child, (parent, _) in enumerate(self.children):
            if parent == number and child > number:
                self.post(child)


families = st.lists(st.tuples(st.integers(-1, 12), all_options), min_size=1, max_size=25)


@given(families)
def test_3_no_mail_posted_during_a_batch_runs_in_it_unless_urgent(
    children: list[tuple[int, MailOptions]],
) -> None:
    world = Generations(children)
    roots = [number for number, (parent, _) in enumerate(children) if not 0 <= parent < number]
    for number in roots:
        world.post(number)
    world.processor.run()
    assert set(world.ran_in) == set(world.posted_in)
    for number, turn in world.ran_in.items():
        if number not in roots and children[number][1] is not URGENT:
            assert turn > world.posted_in[number]


@given(st.integers(0, 20), st.integers(0, 5))
def test_4_an_available_default_action_runs_after_at_most_the_mails_present(
    mails: int, more_each: int
) -> None:
    since_action = 0
    bounds: list[tuple[int, int]] = []
    present = mails

    def action(controller: DefaultActionController) -> None:
        nonlocal since_action, present
        bounds.append((since_action, present))
        since_action, present = 0, processor.mailbox.size
        if len(bounds) == 4:
            processor.suspend()

    def post() -> None:
        nonlocal since_action
        since_action += 1
        for _ in range(more_each if processor.mailbox.size < 500 else 0):
            processor.main_executor.execute(post)

    processor = MailboxProcessor(action)
    for _ in range(mails):
        processor.main_executor.execute(post)
    processor.run()
    assert len(bounds) == 4
    assert all(ran <= there for ran, there in bounds)


@given(
    st.integers(-1, 4),
    st.lists(st.tuples(st.integers(-1, 4), all_options), max_size=20),
)
def test_5_a_yield_never_runs_a_mail_below_its_priority(
    own: int, mails: list[tuple[int, MailOptions]]
) -> None:
    processor = MailboxProcessor()
    ran: list[int] = []
    for number, (priority, options) in enumerate(mails):
        processor.executor(priority).execute(partial(ran.append, number), options=options)
    executor = processor.executor(own)
    while executor.try_yield():
        pass

    def effective(number: int) -> int:
        priority, options = mails[number]
        return MIN_PRIORITY if options is DEFERRABLE else priority

    assert sorted(ran) == [number for number in range(len(mails)) if effective(number) >= own]
    while executor.try_yield_ignoring_deferrable():
        pass
    assert sorted(ran) == [number for number in range(len(mails)) if mails[number][0] >= own]


@given(st.lists(st.tuples(all_options, st.booleans()), max_size=20), st.integers(0, 20))
def test_6_after_quiesce_accepted_mail_runs_once_and_after_close_none_runs(
    mails: list[tuple[MailOptions, bool]], run_before: int
) -> None:
    for drains in (True, False):
        processor = MailboxProcessor()
        ran: Counter[int] = Counter()
        futures: dict[int, Future[None]] = {}

        def act(number: int, ran: Counter[int] = ran) -> None:
            ran[number] += 1

        for number, (options, submitted) in enumerate(mails):
            action = lambda number=number: act(number)  # noqa: E731
            if submitted:
                futures[number] = processor.main_executor.submit(action, options=options)
            else:
                processor.main_executor.execute(action, options=options)
        for _ in range(min(run_before, len(mails))):
            processor.run_mailbox_step()
        processor.prepare_close()
        ran_before_end = ran.total()
        if drains:
            processor.drain()
        processor.close()
        assert set(ran.values()) <= {1}
        assert ran.total() == (len(mails) if drains else ran_before_end)
        for number, future in futures.items():
            assert future.done()
            assert future.cancelled() == (ran[number] == 0)


@settings(max_examples=8)
@given(st.integers(1, 3), st.integers(0, 60), st.booleans())
def test_7_a_put_raises_or_its_mail_is_run_or_cancelled(
    producers: int, mails_before_stop: int, drain: bool
) -> None:
    ran: Counter[tuple[int, int]] = Counter()
    accepted: dict[tuple[int, int], Future[None]] = {}
    refused: set[tuple[int, int]] = set()
    enough = threading.Event()
    thread = MailboxThread("owner")

    def act(key: tuple[int, int]) -> None:
        ran[key] += 1
        if ran.total() >= mails_before_stop:
            enough.set()

    def produce(producer: int) -> None:
        for number in range(100_000):
            key = (producer, number)
            try:
                accepted[key] = thread.executor.submit(partial(act, key))
            except Closed:
                refused.add(key)
                return

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(producers)]
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # Else thousands of mails are put before the owner has a turn.
    try:
        thread.start()
        for one in threads:
            one.start()
        assert enough.wait(120)
        thread.stop(drain=drain)
        assert thread.join(120)
        for one in threads:
            one.join(120)
    finally:
        sys.setswitchinterval(usual_s)
    assert len(refused) == producers
    assert set(ran.values()) <= {1}
    for key, future in accepted.items():
        assert future.done()
        assert future.cancelled() == (ran[key] == 0)
    assert not refused & set(ran)


@few
@given(st.integers(1, 30), st.integers(1, 3))
def test_8_no_resume_is_lost_and_the_action_never_runs_while_suspended(
    turns: int, resumers: int
) -> None:
    handed_over: list[Suspension] = []
    there = threading.Semaphore(0)
    current: list[Suspension] = []
    resumed: set[int] = set()
    ran = 0

    def action(controller: DefaultActionController) -> None:
        nonlocal ran
        if current:
            assert id(current[-1]) in resumed, "ran while suspended"
        ran += 1
        if ran > turns:
            controller.all_actions_completed()
            return
        current.append(controller.suspend_default_action())
        handed_over.append(current[-1])
        for _ in range(resumers):
            there.release()

    def resume() -> None:
        for _ in range(turns):
            assert there.acquire(timeout=30)
            for suspension in handed_over[-3:]:  # the current one, and stale ones
                resumed.add(id(suspension))
                suspension.resume()

    thread = MailboxThread("owner", action)
    thread.start()
    join([threading.Thread(target=resume) for _ in range(resumers)])
    assert thread.join(120)
    assert thread.failure is None
    assert ran == turns + 1


class SleepThroughClock(VirtualClock):
    """Moves on by itself to the end of each sleep, and counts the sleeps apart."""

    slept_s = 0.0

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        assert timeout_s is not None
        self.slept_s += timeout_s
        self.advance(timeout_s)
        return False


@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 300), st.sampled_from(["idle", "back", ""])),
        max_size=15,
    )
)
def test_9_idle_busy_and_back_pressured_time_add_up_and_mail_time_is_never_idle(
    mails: list[tuple[int, int, str]],
) -> None:
    clock = SleepThroughClock()
    turn = iter(mails)
    busy_ms = 0

    def work(ms: int) -> None:
        nonlocal busy_ms
        busy_ms += ms
        clock.advance(ms=ms)

    def action(controller: DefaultActionController) -> None:
        sleep_ms, work_ms, kind = next(turn, (0, 0, "end"))
        if kind == "end":
            processor.suspend()
            return
        metrics = processor.metrics
        timer = {"idle": metrics.idle, "back": metrics.back_pressured, "": None}[kind]
        suspension = controller.suspend_default_action(timer)

        def wake() -> None:
            work(work_ms)
            suspension.resume()

        processor.timers.schedule_after(sleep_ms, wake)
        work(7)

    processor = MailboxProcessor(action, clock=clock)
    processor.run()
    numbers = processor.metrics.statistics()
    wall_s = clock.monotonic_s()
    assert numbers.loop_s <= wall_s + 1e-9
    total_s = numbers.idle_s + numbers.busy_s + numbers.back_pressured_s
    assert abs(total_s - numbers.loop_s) < 1e-9
    assert numbers.busy_s >= busy_ms / 1000 - 1e-6
    assert numbers.idle_s + numbers.back_pressured_s <= clock.slept_s + 1e-9
    only_idle = all(kind == "idle" for _, _, kind in mails)
    if only_idle:
        assert abs(numbers.idle_s - clock.slept_s) < 1e-6


# And under seeded interleavings: a small protocol that is right in every order.


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 12))
def test_a_ring_of_mailboxes_passes_every_token_round_in_any_order(
    seed: int, members: int, tokens: int
) -> None:
    clock = VirtualClock()
    interleaver = Interleaver(clock, seed, jump_chance=0.1)
    held: list[list[int]] = [[] for _ in range(members)]
    rng = random.Random(seed)
    processors = [MailboxProcessor(clock=clock, name=f"m{n}") for n in range(members)]

    def receive(member: int, token: int, hops: int) -> Callable[[], None]:
        def act() -> None:
            if hops == 0:
                held[member].append(token)
                return
            following = (member + 1) % members
            step = receive(following, token, hops - 1)
            if rng.random() < 0.5:
                processors[following].main_executor.execute(step)
            else:
                processors[following].timers.schedule_after(rng.randrange(1000), step)

        return act

    for number, processor in enumerate(processors):
        interleaver.add(f"m{number}", processor)
    for token in range(tokens):
        processors[0].main_executor.execute(receive(0, token, members))
    interleaver.run()
    assert sorted(held[0]) == list(range(tokens))
    assert not any(held[1:])
