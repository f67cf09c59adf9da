"""Exceptions of every kind in the allocation of segment ids, at each call of a port and inside.

`attempt` has one caller, whose rounds run at once. `attempt_round` has several callers on threads
of their own, which wait for one round that runs on the thread of the test. A test runs a sample of
the cases of `attempt`, and the soak suite `faults` all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

from penstock.core.errors import Conflict, PenstockError
from penstock.indexing.actions import AllocatedSegment, SegmentAllocate
from penstock.indexing.lockbox.lock_store import MetadataLockStore
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.overlord import segment_allocator
from penstock.indexing.overlord.lock_requests import lock_task
from penstock.indexing.overlord.segment_allocator import SegmentAllocator
from penstock.mailbox.lanes import Lanes
from penstock.storage.metadata import AllocateRequest, MetadataStore, PendingRow
from penstock.testing.clock import VirtualClock
from tests.harness.call_faults_kit import Faults
from tests.harness.cluster_simulation.memory import MemoryDatabase
from tests.harness.mailbox_kit import InlineLanes
from tests.indexing.action_kit import DAY, NEXT_DAY, batch
from tests.kits.fault_cases_kit import CountedPart, DrawnCases, FaultPlan

INSIDE = (segment_allocator.__name__,)
# Rounds complete the futures of callers, and that may fail, too.
INSIDE_ROUND = (*INSIDE, "concurrent.futures._base")
_BOUND_S = 20.0


class HeldLanes:
    """Lanes whose work waits until the test runs it, with or without faults inside."""

    def __init__(self) -> None:
        self._works: list[tuple[Future[None], Callable[[], None]]] = []

    def submit(self, _lane: str, work: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        self._works.append((future, work))
        return future

    def run(self, armed: AbstractContextManager[None]) -> None:
        """Run the work that waits; the faults are armed in the work only."""
        works, self._works = self._works, []
        for future, work in works:
            error: BaseException | None = None
            with armed:
                try:
                    work()
                except BaseException as raised:
                    error = raised
                    raise
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def close(self) -> None:
        """Do nothing."""


class OneByOne:
    """A store that refuses the requests of several tasks in one transaction."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.segments = store.segments

    def allocate_segments(self, requests: Sequence[AllocateRequest]) -> list[PendingRow | None]:
        if len({one.allocator_id for one in requests}) > 1:
            raise Conflict("one of the requests is invalid")
        return self._store.allocate_segments(requests)


@dataclass
class Caller:
    """A task that requests a segment id on a thread of its own."""

    thread: threading.Thread
    places: list[AllocatedSegment] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)


class AllocatorWorld:
    """An allocator whose ports a test can make fail, with tasks and a first allocated id."""

    def __init__(self, lanes: HeldLanes | None = None) -> None:
        self.faults = Faults()
        self.clock = VirtualClock()
        self.database = MemoryDatabase(self.clock)
        self.truth = MetadataStore(self.database)
        self.lockboxes = Lockboxes(
            MetadataLockStore(self.truth.locks), InlineLanes(), clock=self.clock
        )
        self.lockboxes.sync([])
        self.allocator = SegmentAllocator(
            MetadataStore(self.faults.port(self.database)),
            self.faults.port(self.lockboxes),
            cast("Lanes", self.faults.port(lanes or InlineLanes())),
            self.faults.port(self.clock),
        )
        context: dict[str, Any] = {"useConcurrentLocks": True, "taskLockType": "APPEND"}
        self.tasks = {name: batch(name, **context) for name in ("a", "b", "c", "late")}
        self.tasks["alone"] = batch("alone", datasource="other")
        for task in self.tasks.values():
            self.lockboxes.add(lock_task(task)).result(0)

    def allocate(self, name: str, action: SegmentAllocate | None = None) -> list[AllocatedSegment]:
        action = action or SegmentAllocate(f"sequence-{name}", (DAY,))
        return self.allocator.allocate(self.tasks[name], action)

    def call(self, name: str) -> Caller:
        """Have a task request an id; return when the request waits in the inbox."""
        inboxes = self.allocator._inboxes
        datasource = self.tasks[name].datasource
        count = len(inboxes.get(datasource, ()))

        def run() -> None:
            try:
                caller.places += self.allocate(name)
            except BaseException as error:  # noqa: BLE001 - the answer of the caller
                caller.errors.append(error)

        caller = Caller(threading.Thread(target=run, name=f"caller {name}", daemon=True))
        caller.thread.start()
        while caller.thread.is_alive() and len(inboxes.get(datasource, ())) <= count:
            caller.thread.join(0.001)
        assert caller.thread.is_alive(), caller.errors
        return caller


def one_id(world: AllocatorWorld) -> None:
    world.allocate("a")


def several_ids(world: AllocatorWorld) -> None:
    world.allocate("a", SegmentAllocate("several", (DAY, DAY, NEXT_DAY)))


def by_segment(world: AllocatorWorld) -> None:
    world.allocate("alone", SegmentAllocate("single", (DAY,), by_segment=True))


def divide(world: AllocatorWorld) -> None:
    world.allocator.divide(world.tasks["a"], [DAY, NEXT_DAY])


Operation = Callable[[AllocatorWorld], None]
OPERATIONS: Sequence[Operation] = (one_id, several_ids, by_segment, divide)


def check(world: AllocatorWorld, where: str) -> None:
    """Insist that nobody waits, ids are unique, and later and repeated requests are served."""
    assert not world.allocator._inboxes, f"{where}: a request waits for ever"
    first, again = world.allocate("a"), world.allocate("a")
    assert first == again, f"{where}: a repeated request gets another id"
    numbers = [one.partition_number for name in ("a", "b", "late") for one in world.allocate(name)]
    assert len(set(numbers)) == len(numbers), f"{where}: {numbers}"
    pending = world.truth.segments.pending("flights")
    ids = [(row.interval, row.version, row.partition_number) for row in pending]
    assert len(set(ids)) == len(ids), f"{where}: {ids}"


def attempt(operation: Operation, plan: FaultPlan) -> Faults:
    """Do an operation with faults, check, and return what was raised."""
    world = AllocatorWorld()
    try:
        with plan.armed(world.faults):
            operation(world)
    except PenstockError:  # An answer: the caller asks again.
        if not world.faults.raised:
            raise
    check(world, f"{operation.__name__}: {plan} ({world.faults.raised})")
    world.database.close()
    return world.faults


PART = CountedPart(OPERATIONS, attempt, INSIDE, gaps=3)
count, is_met, pair = PART.count, PART.is_met, PART.pair
PAIRS = DrawnCases(lambda number: ", then " in pair(number), 10_000)
singles, insides = PART.singles, PART.insides


def attempt_round(plan: FaultPlan, *, is_bad: bool = False) -> str:
    """Let one round serve three callers with faults; return where they were raised.

    Args:
        plan: The faults of the round.
        is_bad: The shared transaction is refused, so that the requests are served one by one.
    """
    lanes = HeldLanes()
    world = AllocatorWorld(lanes)
    callers = [world.call(name) for name in ("a", "b", "c")]
    if is_bad:
        world.allocator._metadata = cast("MetadataStore", OneByOne(world.truth))
    lanes.run(plan.armed(world.faults))
    where = f"{plan} ({world.faults.raised})"
    for caller in callers:
        caller.thread.join(_BOUND_S)
        assert not caller.thread.is_alive(), f"{where}: {caller.thread.name} waits"
        assert caller.places or caller.errors, f"{where}: {caller.thread.name}"
    assert world.faults.raised or all(caller.places for caller in callers), where
    world.allocator._lanes = InlineLanes()
    check(world, where)
    world.database.close()
    return world.faults.raised
