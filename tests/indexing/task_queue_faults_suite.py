"""Exceptions of every kind at every call of the ports of task queue and workers.

A test runs a sample of the cases, and the soak suite `faults` all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from penstock.core.errors import PenstockError
from penstock.indexing.lockbox.lock_lane import LocksChanged
from penstock.indexing.lockbox.lock_store import AlertingLockStore, MetadataLockStore
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.overlord.errors import NotLeading
from penstock.indexing.overlord.task_queue import QueuePorts, TaskQueue, TaskQueueOptions
from penstock.indexing.ports import TaskState
from penstock.mailbox import MailboxProcessor
from penstock.mailbox.event_mail import EventMail
from penstock.storage.metadata import MetadataStore
from penstock.testing.clock import VirtualClock
from tests.harness.call_faults_kit import Faults
from tests.harness.cluster_simulation.memory import MemoryDatabase
from tests.harness.mailbox_kit import InlineLanes, StepLanes, settle
from tests.indexing.queue_kit import KeptEvents, SaidWorker, kill, noop
from tests.kits.fault_cases_kit import CountedPart, DrawnCases, FaultPlan

T = TypeVar("T")

OPTIONS = TaskQueueOptions(storage_sync_interval_ms=5_000)


class QueueWorld:
    """A task queue whose ports a test can make fail; it starts anew when its loop has ended."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.clock = VirtualClock()
        self.database = MemoryDatabase(self.clock)
        self.truth = MetadataStore(self.database)
        self.metadata = MetadataStore(self.faults.port(self.database))
        self.worker = SaidWorker("w", capacity=3)
        self.futures: list[Future[object]] = []
        self.restarts = -1
        self.start()
        for one in (noop("runs"), kill("holds"), kill("waits")):
            self.change(partial(self.queue.add, one))
            self.settle(2)

    def start(self) -> None:
        """Begin as the next overlord does."""
        self.restarts += 1
        self.lanes = StepLanes()
        self.processor = processor = MailboxProcessor(name="overlord", clock=self.clock)
        self.lockboxes = Lockboxes(
            AlertingLockStore(MetadataLockStore(self.metadata.locks), KeptEvents()),
            self.faults.port(InlineLanes()),
            clock=self.clock,
            changes=EventMail(processor, self._locks_changed, "locks changed"),
        )
        lanes = self.faults.port(self.lanes)
        ports = (self.metadata, self.lockboxes, self, lanes, processor, self.clock)
        self.queue = TaskQueue(QueuePorts(*ports), options=OPTIONS)
        self.change(self.queue.start)

    def _locks_changed(self, change: LocksChanged) -> None:
        self.queue.locks_changed(change)

    def workers(self) -> Sequence[SaidWorker]:
        return (self.faults.port(self.worker),)

    def has_begun(self) -> bool:
        """Whether the term could begin."""
        try:
            return self.queue.index is not None
        except NotLeading:
            return False

    def change(self, command: Callable[[], object]) -> Future[object]:
        self.futures.append(self.processor.main_executor.submit_change(command))
        return self.futures[-1]

    def settle(self, seconds: float = 0) -> None:
        settle(self.processor, self.clock, seconds, self.lanes)

    def active(self) -> set[str]:
        return set(self.truth.tasks.active_ids())

    def ask(self, command: Callable[[], object]) -> object:
        future = self.change(command)
        self.settle(10)
        return future.result(0)


def submit(world: QueueWorld) -> None:
    world.change(lambda: world.queue.add_all([noop("new"), kill("new2", (3, 4))]))


def shut_down(world: QueueWorld) -> None:
    world.change(lambda: world.queue.shutdown("holds", "by a user"))


def shut_down_all(world: QueueWorld) -> None:
    ids = ["runs", "holds", "waits"]
    world.change(lambda: world.queue.shutdown_all(ids, "by a user"))


def end(world: QueueWorld) -> None:
    world.worker.say("holds", TaskState.SUCCESS)


def fail(world: QueueWorld) -> None:
    world.worker.say("runs", TaskState.FAILED, error="it broke")


def wait(_world: QueueWorld) -> None:
    """Let the workers be asked, and the store be compared."""


def begin_anew(world: QueueWorld) -> None:
    world.start()


# Modules whose functions run out of memory.
INSIDE = ("penstock.indexing.overlord",)
Operation = Callable[[QueueWorld], None]
OPERATIONS: Sequence[Operation] = (
    *(submit, shut_down, shut_down_all, end, fail, wait, begin_anew),
)


def check(world: QueueWorld, where: str) -> None:
    """Insist that nothing is lost, doubled, stuck or leaked, and go on."""
    world.settle(30)
    queue, active = world.queue, world.active()
    assert set(queue.index.all()) == active, f"{where}: memory is not the store"
    assert {"runs", "holds", "waits", "new", "new2"} >= active, where
    assert len(world.worker.taken) == len(set(world.worker.taken)), f"{where}: handed out twice"
    assert set(world.worker.says) <= active, f"{where}: the worker keeps what has ended"
    rows = world.truth.locks.every().get("d", [])
    assert {row.task_id for row in rows} <= active, f"{where}: locks are left"
    if "holds" not in active and "waits" in active:
        assert "waits" in world.worker.says, f"{where}: it waits for locks that are free"
    world.ask(lambda: queue.shutdown_all(sorted(active), "the end"))
    world.ask(lambda: queue.add(kill("later")))
    assert "later" in world.worker.says, f"{where}: a later task does not run"
    world.worker.say("later", TaskState.SUCCESS)
    world.settle(30)
    row = world.truth.tasks.get("later")
    assert row is not None
    assert row.state == "SUCCESS", where
    assert not world.truth.locks.every().get("d"), where
    assert not queue.index.all(), where


def attempt(operation: Operation, plan: FaultPlan) -> Faults:
    """Do an operation with a fault, start anew if the loop ended, check; return what was raised."""
    world = QueueWorld()
    with plan.armed(world.faults):
        step: Callable[[], None] = functools.partial(operation, world)
        for _ in range(3):  # Two faults may end the loop twice.
            try:
                step()
                world.settle(8)
                break
            except BaseException as ended:
                if isinstance(ended, PenstockError) and not world.faults.raised:
                    raise
            step = world.start
    raised = world.faults.raised
    where = f"{operation.__name__}: {plan} ({raised})"
    if not world.has_begun():
        world.start()
    check(world, where)
    world.database.close()
    return world.faults


PART = CountedPart(OPERATIONS, attempt, INSIDE, gaps=6)
count, is_met, pair = PART.count, PART.is_met, PART.pair
PAIRS = DrawnCases(lambda number: ", then " in pair(number))
singles, insides = PART.singles, PART.insides
