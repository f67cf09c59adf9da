"""The lockboxes under exceptions that nobody expects: `lock_faults_suite` has the cases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar, cast

import pytest

from penstock.core.errors import Unavailable
from penstock.indexing.lockbox.lockbox import Lockbox
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.mailbox.lanes import ThreadLanes
from penstock.testing.clock import VirtualClock
from tests.harness.call_faults_kit import FAULTS
from tests.harness.lock_store_kit import MemoryLockStore
from tests.indexing.action_kit import Desk, allocate, batch
from tests.indexing.lock_faults_suite import (
    OPERATIONS,
    LockWorld,
    Operation,
    attempt,
    check,
    count,
    pair,
)
from tests.indexing.lockbox_kit import DAY, NOW_MS, hours, task, word
from tests.kits.fault_cases_kit import FaultPlan

Answer = TypeVar("Answer")

PAIRS = range(300)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_no_exception_at_any_call_of_a_port_loses_a_lock_or_an_answer(
    operation: Operation, *, after: bool
) -> None:
    for error in FAULTS:
        for at in range(count(operation)):
            assert attempt(operation, FaultPlan(error, at, after)).raised


def test_no_two_exceptions_lose_a_lock_or_an_answer() -> None:
    assert sum("then" in pair(number) for number in PAIRS) > 20


def refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def without_thread(_lane: str, _work: object) -> Future[None]:
    """Answer as `ThreadLanes` without a thread."""
    failed: Future[None] = Future()
    failed.set_exception(Unavailable("can't start new thread"))
    return failed


def test_a_thread_that_cannot_start_once_costs_one_answer_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every later request of the datasource waited for ever."""
    lanes = ThreadLanes("locks")
    boxes = Lockboxes(MemoryLockStore(), lanes, clock=VirtualClock(NOW_MS))
    boxes.sync([])
    one, other = task("one"), task("other")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        failed = boxes.add(one)
        with pytest.raises(Unavailable, match="can't start new thread"):
            failed.result(120)
    boxes.add(other).result(120)
    # That the task is active is not lost: nobody says it again.
    outcomes = boxes.acquire([one.request(hours(0, 1))]).result(120)
    assert [word(outcome) for outcome in outcomes] == ["new"]
    with monkeypatch.context() as patch:
        patch.setattr(lanes, "submit", without_thread)
        with pytest.raises(Unavailable):
            boxes.remove(one).result(120)
    assert boxes.locks(one.datasource).result(120) == []
    lanes.close()


def test_a_lane_that_closes_answers_those_who_wait() -> None:
    begun, let_go = threading.Event(), threading.Event()
    lanes = ThreadLanes("locks")
    boxes = Lockboxes(MemoryLockStore(), lanes, clock=VirtualClock(NOW_MS))
    boxes.sync([])

    def hang(_box: object) -> None:
        begun.set()
        let_go.wait(120)

    one = task("one")
    boxes.add(one).result(120)
    boxes.critical(one, hang)
    assert begun.wait(120)
    waiting = boxes.acquire([one.request(DAY)])
    lanes.close()
    let_go.set()
    assert waiting.exception(120) is not None


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_locks_that_may_differ_from_the_store_are_refused_and_reported(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory may run out between a change and the note of how to undo it."""
    world = LockWorld()

    def fail(*_arguments: object) -> None:
        raise error("amid a batch")

    monkeypatch.setattr(Lockbox, "handle", fail)
    failed = world.acquire(task("high", priority=90), 6)
    world.run()
    assert isinstance(failed.exception(0), error)
    assert [type(one) for one in world.failures] == [error]
    refused = world.acquire(task("high", priority=90), 6)
    world.run()
    with pytest.raises(Unavailable, match="must be read again"):
        refused.result(0)


def test_a_place_is_given_after_a_thread_could_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every later allocation of the datasource waited for ever."""
    lanes = ThreadLanes("locks")
    desk = Desk(tmp_path, lanes)
    desk.add(batch("one"))
    submit = lanes.submit
    allocations: list[object] = []

    def fail_once(lane: str, work: Callable[[], Answer]) -> Future[Answer]:
        if "SegmentAllocator" in repr(work) and not allocations:
            allocations.append(lane)
            return cast("Future[Answer]", without_thread(lane, work))
        return submit(lane, work)

    monkeypatch.setattr(lanes, "submit", fail_once)
    with pytest.raises(Unavailable, match="can't start new thread"):
        allocate(desk, "one", sequence="one")
    assert allocations
    (place,) = allocate(desk, "one", sequence="one")
    assert place.partition_number == 0
    lanes.close()


@pytest.mark.parametrize("error", [MemoryError, OSError, RuntimeError, KeyboardInterrupt])
def test_a_place_is_given_after_its_round_could_not_begin(
    tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = ThreadLanes("locks")
    desk = Desk(tmp_path, lanes)
    desk.add(batch("one"))
    submit, left = lanes.submit, [error("no room")]

    def fail_once(lane: str, work: Callable[[], Answer]) -> Future[Answer]:
        if "SegmentAllocator" in repr(work) and left:
            raise left.pop()
        return submit(lane, work)

    monkeypatch.setattr(lanes, "submit", fail_once)
    with pytest.raises(error):
        allocate(desk, "one", sequence="one")
    assert len(allocate(desk, "one", sequence="one")) == 1
    lanes.close()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
def test_memory_may_run_out_at_any_call_of_a_round(operation: Operation) -> None:
    """A stored batch must not be undone, and everybody gets an answer."""
    for at in range(10_000):
        world = LockWorld()
        operation(world)
        with world.faults.armed_inside(["penstock.indexing.lockbox"], MemoryError, at):
            world.run()
        if not world.faults.raised:
            break
        check(world, f"{operation.__name__}: no memory at {at} ({world.faults.raised})")
    assert at > 5
