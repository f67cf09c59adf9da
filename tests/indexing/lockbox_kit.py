"""A lockbox to play with: tasks by name, hours of one day, answers in short words."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.errors import PenstockError, Unavailable
from penstock.core.intervals import Interval, format_time
from penstock.indexing.lockbox.lock_store import StoredLocks
from penstock.indexing.lockbox.lockbox import (
    AcquireLocks,
    AddTask,
    Lockbox,
    LockCommand,
    ReleaseLocks,
    RemoveTask,
)
from penstock.indexing.lockbox.task_locks import (
    HeldLock,
    LockChanges,
    LockGranted,
    LockGranularity,
    LockOutcome,
    LockRefused,
    LockRequest,
    LockTask,
    LockType,
    Revoked,
    TaskLock,
    TaskRemoval,
)
from tests.harness.lock_store_kit import MemoryLockStore

HOUR_MS = 3_600_000
DAY_START_MS = 1_704_067_200_000  # 2024-01-01
NOW_MS = DAY_START_MS + 100 * HOUR_MS
SOURCE = "wiki"


def hours(start: int, end: int) -> Interval:
    """Return hours counted from the start of the day."""
    return Interval(DAY_START_MS + start * HOUR_MS, DAY_START_MS + end * HOUR_MS)


DAY = hours(0, 24)


def task(name: str, group: str = "", priority: int = 50, allocator: str = "") -> LockTask:
    return LockTask(name, group or name, SOURCE, priority, allocator)


def killer(name: str = "killer") -> LockTask:
    return LockTask(name, name, SOURCE, 25, embedded_killer=True)


def stored_lock(
    owner: LockTask,
    type: LockType = LockType.EXCLUSIVE,  # noqa: A002 - as the model has it
    interval: Interval = DAY,
    version: str = "v",
    *,
    revoked: bool = False,
    partition: int | None = None,
) -> HeldLock:
    granularity = LockGranularity.TIME_CHUNK if partition is None else LockGranularity.SEGMENT
    return HeldLock(
        owner.id,
        TaskLock(
            granularity,
            type,
            owner.group,
            owner.datasource,
            interval,
            version,
            owner.priority,
            revoked,
            partition,
        ),
    )


def word(outcome: LockOutcome) -> str:
    match outcome:
        case LockGranted(_, fresh):
            return "new" if fresh else "same"
        case Revoked():
            return "revoked"
        case LockRefused():
            return "refused"


class BrokenStore(MemoryLockStore):
    """Fails when told to, before or after it has stored."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = ""
        self.transactions = 0

    def apply(self, changes: LockChanges) -> None:
        if self.fails == "before":
            raise Unavailable("no answer")
        super().apply(changes)
        self.transactions += 1
        if self.fails == "after":
            raise Unavailable("the connection broke")


class Story:
    """One box and its rows, driven a command at a time."""

    def __init__(self) -> None:
        self.box = Lockbox(SOURCE)
        self.store = BrokenStore()
        self.rows = StoredLocks(self.store)
        self.tasks: dict[str, LockTask] = {}
        self.now_ms = NOW_MS
        self.released: frozenset[str] = frozenset()
        self.yielded: tuple[str, ...] = ()

    def do(self, command: LockCommand) -> list[LockOutcome] | TaskRemoval | None:
        """Handle one command as a batch of its own; raise what it answers if that is an error."""
        result = self.box.handle([command], self.now_ms)
        try:
            self.rows.apply(result.changes)
        except PenstockError:
            self.box.undo()
            if isinstance(command, RemoveTask):
                self.box.retire(command.task_id)
            raise
        self.box.accept()
        self.released, self.yielded = result.released, result.yielded
        (answer,) = result.answers
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def add(self, *tasks: LockTask) -> None:
        for one in tasks:
            self.tasks[one.id] = one
            self.do(AddTask(one))

    def request(
        self,
        name: str,
        type: LockType,  # noqa: A002 - as the model has it
        interval: Interval,
        partition: int | None = None,
        version: str = "v",
    ) -> LockRequest:
        if partition is None:
            return self.tasks[name].request(interval, type)
        return self.tasks[name].request(
            interval,
            type,
            granularity=LockGranularity.SEGMENT,
            version=version,
            partition_number=partition,
        )

    def ask(
        self,
        name: str,
        type: LockType = LockType.EXCLUSIVE,  # noqa: A002 - as the model has it
        interval: Interval = DAY,
        partition: int | None = None,
        version: str = "v",
    ) -> LockOutcome:
        answer = self.do(AcquireLocks((self.request(name, type, interval, partition, version),)))
        assert isinstance(answer, list)
        (outcome,) = answer
        return outcome

    def say(
        self,
        name: str,
        type: LockType = LockType.EXCLUSIVE,  # noqa: A002 - as the model has it
        interval: Interval = DAY,
        partition: int | None = None,
        version: str = "v",
    ) -> str:
        return word(self.ask(name, type, interval, partition, version))

    def release(self, name: str, interval: Interval = DAY) -> None:
        self.do(ReleaseLocks(name, interval))

    def remove(self, name: str) -> TaskRemoval:
        answer = self.do(RemoveTask(name))
        assert isinstance(answer, TaskRemoval)
        return answer

    def held(self, name: str) -> list[tuple[LockType, Interval, bool]]:
        """Return what a task holds: type, interval, revoked."""
        return [(h.lock.type, h.lock.interval, h.lock.revoked) for h in self.box.locks(name)]

    def check_stored(self) -> None:
        """Insist that the rows are what the box remembers."""
        assert by_text(self.store.every()) == by_text(self.box.locks())


def by_text(rows: Iterable[HeldLock]) -> list[str]:
    return sorted(f"{r.task_id} {r.lock} {r.lock.granularity}" for r in rows)


def version_at(ms: int) -> str:
    return format_time(ms)
