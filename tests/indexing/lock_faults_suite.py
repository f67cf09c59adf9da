"""Exceptions of every kind at every call of the lockboxes' ports, one at a time and in pairs.

A test runs a sample of the cases, and the soak suite `faults` all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.indexing.lockbox.lock_lane import LocksChanged
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.lockbox.task_locks import (
    HeldLock,
    LockOutcome,
    LockTask,
    LockType,
    TaskRemoval,
)
from penstock.testing.clock import VirtualClock
from tests.harness.call_faults_kit import Faults
from tests.harness.lock_store_kit import MemoryLockStore
from tests.harness.mailbox_kit import StepLanes
from tests.indexing.lockbox_kit import DAY, NOW_MS, SOURCE, by_text, hours, task, word
from tests.kits.fault_cases_kit import CountedPart, DrawnCases, FaultPlan

Answer = TypeVar("Answer")

LOW, HIGH = task("low", priority=10), task("high", priority=90)
ENDS, NEW, LATER = task("ends"), task("new"), task("later")


@dataclass
class LockWorld:
    """Lockboxes whose ports a test can make fail, with some locks held."""

    faults: Faults = field(default_factory=Faults)
    store: MemoryLockStore = field(default_factory=MemoryLockStore)
    lanes: StepLanes = field(default_factory=StepLanes)
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(NOW_MS))
    active: dict[str, LockTask] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    failures: list[BaseException] = field(default_factory=list)
    futures: list[Future[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.boxes = self._opened()
        for one in (LOW, HIGH, ENDS):
            self.add(one)
        self.acquire(LOW, 0)
        self.acquire(ENDS, 2)
        self.acquire(HIGH, 4)
        self.run()

    # Receives the changes and the failures

    def put(self, change: LocksChanged) -> None:
        self.faults.call("put", lambda: self.released.update(change.released))

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def _opened(self) -> Lockboxes:
        boxes = Lockboxes(
            self.faults.port(self.store),
            self.faults.port(self.lanes),
            clock=self.faults.port(self.clock),
            changes=self,
        )
        boxes.sync(list(self.active.values()))
        return boxes

    def reopen(self) -> None:
        """Begin another term, as after an error that the lockboxes have reported."""
        self.lanes = StepLanes()
        self.failures.clear()
        self.boxes = self._opened()

    def run(self) -> None:
        while waiting := self.lanes.waiting():
            self.lanes.run_one(waiting[0])

    def keep(self, future: Future[Answer]) -> Future[Answer]:
        self.futures.append(future)
        return future

    def add(self, one: LockTask) -> Future[None]:
        self.active[one.id] = one
        return self.keep(self.boxes.add(one))

    def acquire(
        self, one: LockTask, hour: int, kind: LockType = LockType.EXCLUSIVE, **more: bool
    ) -> Future[list[LockOutcome]]:
        request = one.request(hours(hour, hour + 1), kind)
        return self.keep(self.boxes.acquire([request], **more))

    def remove(self, one: LockTask) -> Future[TaskRemoval]:
        self.active.pop(one.id, None)
        return self.keep(self.boxes.remove(one))

    def locks(self) -> list[HeldLock]:
        future = self.boxes.locks(SOURCE)
        self.run()
        return future.result(0)


def add(world: LockWorld) -> None:
    world.add(NEW)


def acquire(world: LockWorld) -> None:
    world.acquire(HIGH, 8)


def acquire_together(world: LockWorld) -> None:
    requests = [HIGH.request(hours(n, n + 1)) for n in (10, 11)]
    world.keep(world.boxes.acquire(requests, together=True, waits=True))


def revoke(world: LockWorld) -> None:
    world.acquire(HIGH, 0)


def be_refused(world: LockWorld) -> None:
    world.acquire(LOW, 4)


def release(world: LockWorld) -> None:
    world.keep(world.boxes.release(LOW, hours(0, 1)))


def remove(world: LockWorld) -> None:
    world.remove(ENDS)


def place(world: LockWorld) -> None:
    world.keep(world.boxes.place(LOW, waits=True))


def many(world: LockWorld) -> None:
    """Several callers, whose requests are one round."""
    world.add(NEW)
    world.acquire(NEW, 12)
    world.remove(ENDS)
    world.acquire(HIGH, 2)
    world.keep(world.boxes.locks(SOURCE))


def check_publish(world: LockWorld) -> None:
    action = world.faults.port(lambda _locks: "published")
    world.keep(world.boxes.critical(HIGH, action, intervals=[hours(4, 5)]))


def look(world: LockWorld) -> None:
    world.keep(world.boxes.locks_of(LOW))
    world.keep(world.boxes.room_for([HIGH.request(DAY)]))


Operation = Callable[[LockWorld], None]
OPERATIONS: Sequence[Operation] = (
    *(add, acquire, acquire_together, revoke, be_refused, release, remove, place, many),
    *(check_publish, look),
)


def check(world: LockWorld, where: str) -> None:
    """Insist that nobody waits, nothing is lost, and the next requests are served."""
    world.run()
    has_failed = bool(world.failures)
    if has_failed:  # The owner is told, and begins anew.
        world.reopen()
    for future in world.futures:
        assert future.done(), f"{where}: somebody waits for ever"
    world.add(LATER)
    later = world.acquire(LATER, 20)
    world.run()
    assert [word(one) for one in later.result(0)] == ["new"], where
    locks = world.locks()
    assert by_text(locks) == by_text(world.store.every()), f"{where}: memory is not the store"
    assert {one.task_id for one in locks} <= world.active.keys(), f"{where}: a lock was left"
    if not (has_failed or ENDS.id in world.active):
        assert ENDS.id in world.released, f"{where}: who waits for its locks is not told"
    for one in world.active.values():  # Each that is active may ask.
        mine = world.boxes.locks_of(one)
        asked = world.boxes.acquire([one.request(hours(22, 23), LockType.SHARED)])
        world.run()
        assert mine.exception(0) is None, where
        assert asked.exception(0) is None, f"{where}: {one.id} is not active"
    held = by_text(world.locks())
    world.reopen()
    assert by_text(world.locks()) == held, f"{where}: another term has other locks"


def attempt(operation: Operation, plan: FaultPlan) -> Faults:
    """Do an operation with a fault, check, and return what was raised."""
    world = LockWorld()
    with plan.armed(world.faults):
        try:
            operation(world)
        finally:
            world.run()
    raised = world.faults.raised
    check(world, f"{operation.__name__}: {plan} ({raised})")
    return world.faults


PART = CountedPart(OPERATIONS, attempt, (), gaps=2)
count, is_met, pair = PART.count, PART.is_met, PART.pair
PAIRS = DrawnCases(lambda number: ", then " in pair(number))
singles = PART.singles
