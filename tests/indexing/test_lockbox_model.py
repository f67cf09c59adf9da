"""The lockbox against a model that is slow and plain: lists, and the tables as they are written."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import LockRevoked, PenstockError, Unavailable
from penstock.core.interval_index import IntervalIndex
from penstock.core.intervals import Interval
from penstock.indexing.lockbox.lock_store import StoredLocks
from penstock.indexing.lockbox.lock_table import LockGroup, LockTable
from penstock.indexing.lockbox.lockbox import (
    AcquireLocks,
    AddTask,
    CommandAnswer,
    Lockbox,
    LockCommand,
    ReleaseLocks,
    RemoveTask,
)
from penstock.indexing.lockbox.restored_locks import restore_locks
from penstock.indexing.lockbox.task_locks import (
    HeldLock,
    LockGranularity,
    LockRequest,
    LockTask,
    LockType,
    TaskLock,
)
from tests.indexing.lockbox_kit import (
    NOW_MS,
    SOURCE,
    BrokenStore,
    by_text,
    hours,
    stored_lock,
    task,
    word,
)

EXCLUSIVE, SHARED, REPLACE, APPEND, KILL = LockType
TASKS = [
    task("a1", "a", 50),
    task("a2", "a", 50),
    task("b1", "b", 50),
    task("c1", "c", 25),
    task("d1", "d", 75),
    task("e1", "e", 75),
    LockTask("k1", "k", SOURCE, 25, embedded_killer=True),
]
BY_ID = {one.id: one for one in TASKS}


@dataclass
class Held:
    """A lock of the model and its tasks."""

    type: LockType
    group: str
    interval: Interval
    partition: int | None
    priority: int
    tasks: list[str]
    revoked: bool = False
    version: str | None = None  # of a segment's


def both(a: LockType, at: Interval, b: LockType, bt: Interval) -> bool:
    if a is KILL or b is KILL:
        return a is not b
    if (a, b) == (SHARED, SHARED) or (a, b) == (APPEND, APPEND):
        return True
    if (a, b) == (REPLACE, APPEND):
        return at.start_ms <= bt.start_ms and bt.end_ms <= at.end_ms
    if (a, b) == (APPEND, REPLACE):
        return bt.start_ms <= at.start_ms and at.end_ms <= bt.end_ms
    return False


@dataclass
class Model:
    """The rules, word by word."""

    locks: list[Held] = field(default_factory=list)
    active: set[str] = field(default_factory=set)

    def do(self, command: LockCommand) -> list[str] | str | None:
        match command:
            case AddTask(added):
                self.active.add(added.id)
            case RemoveTask(name):
                self.active.discard(name)
                self.drop(name)
            case ReleaseLocks(name, interval):
                self.drop(name, interval)
            case AcquireLocks(requests, together):
                if requests[0].task_id not in self.active:
                    return "inactive"
                before = copy.deepcopy(self.locks)
                words = []
                for one in requests:
                    words.append(self.ask(one))
                    if together and words[-1] in ("refused", "revoked"):
                        self.locks = before
                        return words[-1:] * len(requests)
                return words
        return None

    def drop(self, name: str, interval: Interval | None = None) -> None:
        for lock in self.locks:
            if name in lock.tasks and interval in (None, lock.interval):
                lock.tasks.remove(name)
        self.locks = [lock for lock in self.locks if lock.tasks]

    def ask(self, one: LockRequest) -> str:
        found = [lock for lock in self.locks if lock.interval.overlaps(one.interval)]
        if one.partition_number is not None:
            found = [
                lock
                for lock in found
                if lock.partition is None
                or lock.interval != one.interval
                or lock.partition == one.partition_number
            ]
        fits = [
            lock
            for lock in found
            if (lock.type, lock.group, lock.partition)
            == (one.type, one.group, one.partition_number)
            and lock.interval.covers(one.interval)
            and (lock.revoked or lock.version == one.version)
        ]
        if fits:
            own = [lock for lock in fits if one.task_id in lock.tasks]
            alive = [lock for lock in own or fits if not lock.revoked]
            best = max(
                alive or own or fits,
                key=lambda lock: (lock.interval.length_ms, -lock.interval.start_ms),
            )
            if best.revoked:
                return "revoked"
            if one.task_id in best.tasks:
                return "same"
            if one.type is REPLACE:
                return "refused"
            best.tasks.append(one.task_id)
            self.drop_smaller(best, one.task_id)
            self.drop_other_versions(best, one.task_id)
            return "new"
        bad = [
            lock
            for lock in found
            if not lock.revoked and not both(one.type, one.interval, lock.type, lock.interval)
        ]
        if bad and max(lock.priority for lock in bad) >= one.priority:
            if any((lock.group, lock.interval) != (one.group, one.interval) for lock in bad):
                return "refused"
        else:
            for lock in bad:
                lock.revoked = True
        made = Held(
            *(one.type, one.group, one.interval, one.partition_number, one.priority),
            tasks=[one.task_id],
            version=one.version,
        )
        self.locks.append(made)
        self.drop_smaller(made, one.task_id)
        self.drop_other_versions(made, one.task_id)
        return "new"

    def drop_other_versions(self, new: Held, name: str) -> None:
        for lock in self.locks:
            if (
                lock.partition is not None
                and (lock.group, lock.interval, lock.partition)
                == (new.group, new.interval, new.partition)
                and lock.version != new.version
                and not lock.revoked
                and name in lock.tasks
            ):
                lock.tasks.remove(name)
        self.locks = [lock for lock in self.locks if lock.tasks]

    def drop_smaller(self, larger: Held, name: str) -> None:
        if larger.type is APPEND:
            for lock in self.locks:
                if (
                    lock.type is APPEND
                    and not lock.revoked
                    and name in lock.tasks
                    and lock.interval != larger.interval
                    and larger.interval.covers(lock.interval)
                ):
                    lock.tasks.remove(name)
            self.locks = [lock for lock in self.locks if lock.tasks]

    def held(self) -> list[str]:
        return sorted(
            f"{name} {lock.type} {lock.interval} {lock.partition} {lock.version} {lock.revoked}"
            for lock in self.locks
            for name in lock.tasks
        )


def box_held(box: Lockbox) -> list[str]:
    return sorted(
        f"{row.task_id} {row.lock.type} {row.lock.interval} {row.lock.partition_number}"
        f" {row.lock.version if row.lock.partition_number is not None else None}"
        f" {row.lock.revoked}"
        for row in box.locks()
    )


def in_words(answer: CommandAnswer) -> list[str] | str | None:
    if isinstance(answer, LockRevoked):
        return "inactive"
    assert not isinstance(answer, PenstockError), answer
    return [word(outcome) for outcome in answer] if isinstance(answer, list) else None


def check_no_conflict(locks: list[TaskLock]) -> None:
    alive = [lock for lock in locks if not lock.revoked]
    for number, one in enumerate(alive):
        for other in alive[number + 1 :]:
            if (one.group, one.interval) == (other.group, other.interval):
                continue
            if one.interval.overlaps(other.interval) and not (
                one.partition_number is not None
                and other.partition_number is not None
                and one.interval == other.interval
                and one.partition_number != other.partition_number
            ):
                assert both(one.type, one.interval, other.type, other.interval), (one, other)


starts = st.integers(0, 6)
intervals = st.builds(lambda a, n: hours(a, a + n), starts, st.sampled_from([1, 1, 2, 3, 8]))
names = st.sampled_from([one.id for one in TASKS])


@st.composite
def acquires(draw: st.DrawFn) -> AcquireLocks:
    one = BY_ID[draw(names)]
    asked = []
    for _ in range(draw(st.integers(1, 3))):
        interval = draw(intervals)
        kind = draw(st.sampled_from([EXCLUSIVE, SHARED, REPLACE, APPEND, KILL, None]))
        if kind is KILL and not one.embedded_killer:
            kind = APPEND
        if kind is None:
            asked.append(
                one.request(
                    interval,
                    granularity=LockGranularity.SEGMENT,
                    version=draw(st.sampled_from(["v1", "v2"])),
                    partition_number=draw(st.integers(0, 2)),
                )
            )
        else:
            asked.append(one.request(interval, kind))
    return AcquireLocks(tuple(asked), draw(st.booleans()))


commands = st.one_of(
    acquires(),
    acquires(),
    acquires(),
    st.builds(ReleaseLocks, names, intervals),
    st.builds(RemoveTask, names),
    names.map(lambda name: AddTask(BY_ID[name])),
)
batches = st.lists(
    st.tuples(
        st.lists(commands, min_size=1, max_size=4),
        st.sampled_from(["", "", "", "before", "after", "restart"]),
    ),
    max_size=25,
)


@given(batches)
def test_it_does_what_the_rules_say_and_stores_what_it_does(
    steps: list[tuple[list[LockCommand], str]],
) -> None:
    box, model, store = Lockbox(SOURCE), Model(), BrokenStore()
    rows = StoredLocks(store)
    now_ms = NOW_MS
    box.handle([AddTask(one) for one in TASKS], now_ms)
    box.accept()
    model.active = set(BY_ID)
    ended: set[str] = set()
    for wanted, event in steps:
        # Ids are used again, so as not to run out of tasks; but not before all of them is gone.
        batch = [c for c in wanted if not (isinstance(c, AddTask) and c.task.id in ended)]
        store.fails = event if event in ("before", "after") else ""
        result = box.handle(batch, now_ms)
        try:
            rows.apply(result.changes)
        except Unavailable:
            box.undo()
            model.active |= {c.task.id for c in batch if isinstance(c, AddTask)}
            for name in {c.task_id for c in batch if isinstance(c, RemoveTask)} & model.active:
                box.retire(name)
                ended.add(name)
                model.active.discard(name)
            assert box_held(box) == model.held()
            continue
        box.accept()
        for name in ended:
            model.drop(name)
        ended -= {c.task_id for c in batch if isinstance(c, RemoveTask)}
        assert [in_words(answer) for answer in result.answers] == [model.do(c) for c in batch]
        assert box_held(box) == model.held()
        if not rows.in_doubt:
            assert by_text(store.every()) == by_text(box.locks())
        check_no_conflict([row.lock for row in box.locks()])
        if event == "restart":
            rows, box = restarted(store, model, box)
            ended.clear()


def restarted(store: BrokenStore, model: Model, before: Lockbox) -> tuple[StoredLocks, Lockbox]:
    """A new term takes over exactly what is stored, and no group fails."""
    restored = restore_locks([BY_ID[name] for name in sorted(model.active)], store.every())
    assert restored.failed == []
    assert not restored.changes
    box = restored.boxes.get(SOURCE) or Lockbox(SOURCE)
    assert by_text(box.locks()) == by_text(before.locks()) == by_text(store.every())
    assert box.active_locks == sum(not lock.revoked for lock in box.group_locks())
    return StoredLocks(store), box


stored_rows = st.builds(
    lambda one, kind, interval, version, revoked: stored_lock(
        one, kind, interval, version, revoked=revoked
    ),
    st.sampled_from(TASKS),
    st.sampled_from(LockType),
    intervals,
    st.sampled_from(["v1", "v2", "v3"]),
    st.booleans(),
)


@given(st.lists(stored_rows, max_size=12), st.sets(names))
def test_whatever_was_stored_a_term_begins_without_conflict(
    rows: list[object], active: set[str]
) -> None:
    store = BrokenStore()
    found = {by_text([row])[0]: row for row in rows}  # type: ignore[list-item]
    stored = list(found.values())
    restored = restore_locks([BY_ID[name] for name in active], stored)  # type: ignore[arg-type]
    gone = set(by_text(restored.changes.removed))
    kept = sorted(set(found) - gone)
    held = [row for box in restored.boxes.values() for row in box.locks()]
    assert by_text(held) == kept
    check_no_conflict([row.lock for row in held])
    groups = {BY_ID[name].group for name in restored.failed}
    assert set(restored.failed) == {n for n in active if BY_ID[n].group in groups}
    assert not any(row.task_id in restored.failed for row in held)
    assert store.transactions == 0


segment_rows = st.builds(
    lambda one, interval, number: stored_lock(one, EXCLUSIVE, interval, partition=number),
    st.sampled_from(TASKS),
    intervals,
    st.integers(0, 2),
)
wishes = st.one_of(
    st.builds(
        lambda t, kind, i: t.request(i, kind),
        st.sampled_from(TASKS),
        st.sampled_from(LockType),
        intervals,
    ),
    st.builds(
        lambda t, i, n: t.request(i, granularity=LockGranularity.SEGMENT, partition_number=n),
        st.sampled_from(TASKS),
        intervals,
        st.sampled_from([None, 0, 1, 2]),
    ),
)


def is_left_out(lock: TaskLock, wish: LockRequest) -> bool:
    """Whether they are of two segments, or of two groups and go together."""
    if lock.granularity is wish.granularity is LockGranularity.SEGMENT:
        if wish.partition_number is None:
            return True
        return lock.interval == wish.interval and lock.partition_number != wish.partition_number
    if lock.group == wish.group or lock.type is not wish.type:
        return False
    return both(wish.type, wish.interval, lock.type, lock.interval)


@given(
    st.lists(st.tuples(st.one_of(stored_rows, segment_rows), st.booleans()), max_size=40), wishes
)
def test_left_out_is_only_what_goes_together_with_it(
    steps: list[tuple[HeldLock, bool]], wish: LockRequest
) -> None:
    table = LockTable()
    plain: list[tuple[str, LockGroup]] = []
    for number, (row, leaves) in enumerate(steps):
        if leaves and plain:
            name, group = plain.pop(number % len(plain))
            table.leave(group, name)
        else:
            group = LockGroup(row.lock)
            table.join(group, row.task_id)
            plain.append((row.task_id, group))
    asked = wish.interval
    over = [(name, one) for name, one in plain if one.lock.interval.overlaps(asked)]
    matters = {one for _, one in over if not is_left_out(one.lock, wish)}
    found = list(table.conflict_candidates(wish))
    assert (set(found), len(found)) == (matters, len(matters))
    assert set(table.overlapping(asked)) == {one for _, one in over}
    replacing = {o for _, o in over if o.lock.type is REPLACE}
    assert set(table.overlapping_replace_locks(asked)) == replacing
    mine = {one for name, one in over if name == wish.task_id}
    assert set(table.held_over(wish.task_id, asked)) == mine


def test_appends_of_many_groups_at_one_time_do_not_look_at_each_other() -> None:
    table = LockTable()
    for number in range(200):
        row = stored_lock(task(f"t{number}", f"g{number}"), APPEND, hours(0, 24), "v1")
        table.join(LockGroup(row.lock), row.task_id)
    asks = task("t7", "g7")
    (mine,) = table.conflict_candidates(asks.request(hours(0, 24), APPEND))
    assert list(mine.tasks) == ["t7"]
    assert len(list(table.conflict_candidates(asks.request(hours(0, 24), REPLACE)))) == 200


def test_of_many_segments_of_a_day_a_lock_on_one_looks_at_that_one() -> None:
    """To look at all of them for each took the square of their number: minutes for thousands."""
    asks, one = task("t"), LockGranularity.SEGMENT
    wishes = [
        asks.request(hours(0, 24), granularity=one, version="v", partition_number=number)
        for number in range(200)
    ]
    table = LockTable()
    for wish in wishes:
        row = stored_lock(asks, interval=hours(0, 24), partition=wish.partition_number)
        table.join(LockGroup(row.lock), row.task_id)
    assert [len(list(table.conflict_candidates(wish))) for wish in wishes] == [1] * 200
    assert not list(table.conflict_candidates(asks.request(hours(0, 24), granularity=one)))
    assert len(list(table.conflict_candidates(asks.request(hours(0, 1))))) == 200


@given(st.lists(st.tuples(intervals, st.booleans()), max_size=40), intervals)
def test_the_index_finds_what_overlaps(steps: list[tuple[Interval, bool]], asked: Interval) -> None:
    index: IntervalIndex[int] = IntervalIndex()
    plain: list[tuple[Interval, int]] = []
    for number, (interval, removes) in enumerate(steps):
        if removes and plain:
            where, item = plain.pop(number % len(plain))
            index.remove(where, item)
        else:
            index.add(interval, number)
            plain.append((interval, number))
    assert sorted(index.overlapping(asked)) == sorted(
        item for where, item in plain if where.overlaps(asked)
    )
    assert len(index) == len({where for where, _ in plain})
