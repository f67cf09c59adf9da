"""What the overlord deletes by itself: what was unused for long, under KILL locks, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from unittest.mock import Mock

import pytest

from penstock.core.errors import Closed, Fenced, Unavailable
from penstock.core.intervals import ETERNITY, Interval
from penstock.indexing.lockbox.lock_store import MetadataLockStore
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.lockbox.task_locks import LockTask, LockType
from penstock.indexing.overlord.duties.duty import DutyTools
from penstock.indexing.overlord.duties.unused_segments import KillReport, UnusedSegmentsDuty
from penstock.indexing.overlord.task_index import TaskIndex
from penstock.indexing.specs.batch.batch_task_specs import KillSpec
from penstock.indexing.task_spec import TaskSpec
from penstock.mailbox.lanes import ThreadLanes
from penstock.segments.delta.table_registry import DeltaEntry, DeltaRegistry, TableGoal
from penstock.segments.segment import Segment
from penstock.storage.metadata import MetadataStore, TaskRow
from tests.indexing.batch_kit import DAY_MS, BatchWorld, Cut, day, index, lines, world_of

BUFFER_MS = 30 * DAY_MS
ROWS = [(1, "x", 1), (2, "y", 2), (9, "z", 3)]


class Counted:
    """Events that are remembered."""

    def __init__(self) -> None:
        self.values: list[tuple[str, float, Mapping[str, str]]] = []

    def measured(self, metric: str, value: float, **dimensions: str) -> None:
        self.values.append((metric, value, dimensions))

    def alert(self, description: str, **data: str) -> None: ...


class Store:
    """Deep storage, where something happens before a file is deleted."""

    def __init__(self, world: BatchWorld) -> None:
        self._inner = world.deep_store
        self.at: Callable[[], None] = lambda: None

    def kill(self, load_spec: Mapping[str, object]) -> None:
        self.at()
        self._inner.kill(load_spec)


class Killing:
    """The duty in a world, under a term or none."""

    def __init__(self, world: BatchWorld, metadata: MetadataStore | None = None) -> None:
        self.world = world
        self.store = Store(world)
        self.events = Counted()
        tokens = iter(range(1_000_000))
        tools = DutyTools(
            metadata or world.store,
            world.lockboxes,
            TaskIndex(),
            _no_task,
            Future,
            world.clock,
            lambda: str(next(tokens)),
            events=self.events,
        )
        self.duty = UnusedSegmentsDuty(tools, self.store, BUFFER_MS)

    def locks(self) -> list[LockType]:
        return [held.lock.type for held in self.world.lockboxes.locks("d").result()]


def _no_task(_task: TaskSpec) -> Future[None]:
    raise AssertionError("it submits no task")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BatchWorld]:
    with world_of(tmp_path, ROWS) as made:
        yield made


def names(world: BatchWorld) -> list[str]:
    return sorted(str(row.interval) for row in world.store.segments.every())


def wait(world: BatchWorld, days: float = 31) -> None:
    world.clock.advance(days * 86_400)


def test_what_was_unused_for_the_buffer_period_goes_with_its_files(world: BatchWorld) -> None:
    killing = Killing(world)
    world.store.segments.mark_unused_within("d", Interval.parse(day(1, 2)))
    wait(world, 29)
    assert killing.duty.kill() == KillReport()
    world.store.segments.mark_unused_within("d", Interval.parse(day(9)))
    wait(world, 2)
    assert killing.duty.kill() == KillReport(2, 2)
    assert names(world) == [day(9)]
    assert len({f for f in world.files() if f.endswith(".parquet")}) == 1
    assert killing.locks() == []
    assert killing.events.values == [
        ("segment/killed/metadataStore/count", 2, {"dataSource": "d"}),
        ("segment/killed/deepStorage/count", 2, {"dataSource": "d"}),
    ]


def test_used_segments_stay_however_old(world: BatchWorld) -> None:
    wait(world, 4_000)
    assert Killing(world).duty.kill() == KillReport()
    assert world.rows() == ROWS


def test_it_goes_beside_every_lock_and_hinders_nobody(world: BatchWorld) -> None:
    world.store.segments.mark_unused_within("d", Interval.parse(day(1)))
    wait(world)
    busy = world.add(index(lines((1, "new", 4)), intervals=[day(1)]))
    seen: list[list[LockType]] = []
    killing = Killing(world)

    def overwrite() -> None:
        world.make(busy).run()
        seen.append(killing.locks())

    killing.store.at = overwrite
    assert killing.duty.kill() == KillReport(1, 1)
    assert sorted(seen[0]) == [LockType.EXCLUSIVE, LockType.KILL]
    assert (1, "new", 4) in world.rows()
    assert killing.locks() == [LockType.EXCLUSIVE]


def test_two_deletions_of_one_time_go_one_after_the_other(world: BatchWorld) -> None:
    world.store.segments.mark_unused_within("d", Interval.parse(day(1)))
    wait(world)
    other = LockTask("other", "other", "d", 25, embedded_killer=True)
    world.lockboxes.add(other).result()
    wish = other.request(Interval.parse(day(1, 3)), LockType.KILL)
    world.lockboxes.acquire([wish]).result()
    killing = Killing(world)
    assert killing.duty.kill() == KillReport()
    # Where nobody else deletes it goes on.
    world.store.segments.mark_unused_within("d", Interval.parse(day(9)))
    wait(world)
    assert killing.duty.kill() == KillReport(1, 1)
    assert names(world) == [day(1), day(2)]
    world.lockboxes.remove(other).result()
    assert killing.duty.kill() == KillReport(1, 1)


def test_scattered_days_of_a_datasource_go_in_one_transaction(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.store.segments.mark_unused_within("d", Interval.parse(day(1)))
    world.store.segments.mark_unused_within("d", Interval.parse(day(9)))
    wait(world)
    counted = Mock(wraps=world.store.segments.kill)
    monkeypatch.setattr(world.store.segments, "kill", counted)
    assert Killing(world).duty.kill() == KillReport(2, 2)
    assert (counted.call_count, names(world)) == (1, [day(2)])


def test_a_file_that_a_used_segment_shares_stays(world: BatchWorld) -> None:
    """An append beside a replacement: two rows, one file, and one of them is hidden."""
    concurrent = {"context": {"useConcurrentLocks": True}}
    replacing = world.add(
        index(lines((1, "r", 7)), mode="replace", intervals=[day(1)], **concurrent)
    )
    appended = index(lines((1, "beside", 8)), mode="append", **concurrent)
    world.engine.at = lambda _moment: _once(world, appended)
    world.make(replacing).run()
    world.end(replacing)
    before = world.rows()
    assert (1, "beside", 8) in before
    hidden = {row.id for row in world.store.segments.used("d")} - {
        str(s.id) for s in world.visible()
    }
    world.store.segments.mark_unused(hidden)
    wait(world)
    report = Killing(world).duty.kill()
    assert report.segments == len(hidden)
    assert report.files == len(hidden) - 1
    assert world.rows() == before


def _once(world: BatchWorld, value: Mapping[str, object]) -> None:
    world.engine.at = lambda _moment: None
    world.run(value)


def test_what_is_used_again_before_its_row_goes_stays(world: BatchWorld) -> None:
    world.store.segments.mark_unused_within("d", Interval.parse(day(1, 2)))
    wait(world)
    killing = Killing(world)
    segments, acquire = world.store.segments, world.lockboxes.acquire

    def bring_back(*args: object, **given: object) -> object:
        segments.mark_used_within("d", Interval.parse(day(1)))
        # This one is unused again, and for that it was not unused long enough.
        segments.mark_used_within("d", Interval.parse(day(2)))
        segments.mark_unused_within("d", Interval.parse(day(2)))
        return acquire(*args, **given)  # type: ignore[arg-type]

    world.lockboxes.acquire = bring_back  # type: ignore[method-assign, assignment]
    assert killing.duty.kill() == KillReport()
    assert world.rows() == [ROWS[0], ROWS[2]]
    segments.mark_used_within("d", ETERNITY)
    assert world.rows() == ROWS


def test_what_an_active_task_may_have_seen_stays_until_it_ended(world: BatchWorld) -> None:
    world.store.tasks.insert_new([TaskRow("long", "other", "index_parallel", "long", {})])
    wait(world, 1)
    world.store.segments.mark_unused_within("d", Interval.parse(day(1)))
    wait(world)
    duty = Killing(world).duty
    assert duty.kill() == KillReport()
    world.store.tasks.set_status("long", "SUCCESS")
    assert duty.kill() == KillReport(1, 1)


@pytest.mark.parametrize("moment", ["rows", "files"])
def test_a_cut_anywhere_leaves_orphans_at_most(
    world: BatchWorld, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.store.segments.mark_unused_within("d", Interval.parse(day(1)))
    wait(world)
    killing = Killing(world)

    def die(*_args: object, **_given: object) -> None:
        raise Cut

    if moment == "files":
        killing.store.at = die
    else:
        monkeypatch.setattr(world.store.segments, "kill", die)
    with pytest.raises(Cut):
        killing.duty.kill()
    monkeypatch.undo()
    rows = world.store.segments.every()
    kept = {world.deep_store.location(Segment.from_row(row).load_spec) for row in rows}
    assert kept <= world.files()
    # The next leader knows nothing of the lock, and of a file without a row the janitor does.
    duty = Killing(world).duty
    duty.kill()
    known = [row.payload["loadSpec"] for row in world.store.segments.every()]
    orphans = world.deep_store.list_orphans(known, modified_before_ms=1 << 60)  # type: ignore[arg-type]
    left = {f for f in orphans_paths(orphans) if f.endswith(".parquet")}
    assert len(left) == (moment == "files")
    assert names(world) == [day(2), day(9)]


def orphans_paths(orphans: list[Mapping[str, object]]) -> list[str]:
    return [str(one["path"]) for one in orphans]


def test_a_leader_that_is_none_any_more_deletes_nothing(world: BatchWorld) -> None:
    world.store.segments.mark_unused_within("d", Interval.parse(day(1)))
    wait(world)
    term = world.store.terms.take("overlord", "here", 10_000)
    assert term is not None
    killing = Killing(world, world.store.under(term))
    files = world.files()
    wait(world, 1)
    assert world.store.terms.take("overlord", "there", 10_000) is not None
    with pytest.raises(Fenced):
        killing.duty.kill()
    world.lockboxes.close()
    with pytest.raises(Closed):
        killing.duty.kill()
    assert len(names(world)) == 3
    assert world.files() == files


def test_a_lock_of_a_former_leader_is_forgotten(world: BatchWorld) -> None:
    holder = LockTask("killer_d_1", "killer_d_1", "d", 25, embedded_killer=True)
    world.lockboxes.add(holder).result()
    wish = holder.request(Interval.parse(day(1)), LockType.KILL)
    world.lockboxes.acquire([wish]).result()
    assert [row.type for row in world.store.locks.every()["d"]] == ["KILL"]
    lanes = ThreadLanes("next")
    following = Lockboxes(MetadataLockStore(world.store.locks), lanes, clock=world.clock)
    assert following.sync([]) == []
    assert world.store.locks.every() == {}
    following.close()
    lanes.close()


def test_a_lock_that_could_not_be_released_is_by_the_next_round(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.store.segments.mark_unused_within("d", Interval.parse(day(1)))
    wait(world)
    killing = Killing(world)
    sound = world.store.locks.apply

    def refuse(added: object = (), replaced: object = (), removed: object = ()) -> None:
        if removed:
            raise Unavailable("nobody answers")
        sound(added, replaced, removed)  # type: ignore[arg-type]

    monkeypatch.setattr(world.store.locks, "apply", refuse)
    with pytest.raises(Unavailable):
        killing.duty.kill()
    assert [row.type for row in world.store.locks.every()["d"]] == ["KILL"]
    monkeypatch.undo()
    assert killing.duty.kill() == KillReport()
    assert world.store.locks.every() == {}


def many_unused(world: BatchWorld) -> int:
    """Have segments on 28 days that are due, more than two portions; return how many."""
    days = [(n % 28 + 1, f"v{n}", n) for n in range(450)]
    world.run(
        index(
            lines(*days),
            mode="append",
            tuning={
                "type": "index_parallel",
                "partitionsSpec": {"type": "dynamic", "maxRowsPerSegment": 1},
            },
        )
    )
    world.store.segments.mark_unused_within("d", ETERNITY)
    wait(world)
    return len(world.store.segments.every())


def test_many_go_in_portions(world: BatchWorld) -> None:
    count = many_unused(world)
    killing = Killing(world)
    assert count > 400
    assert killing.duty.kill() == KillReport(count, count)
    assert killing.duty.kill() == KillReport()


def test_what_somebody_else_deletes_keeps_nothing_behind_it_waiting(world: BatchWorld) -> None:
    """The first portion may be of a task that deletes for hours."""
    count = many_unused(world)
    other = LockTask("other", "other", "d", 25, embedded_killer=True)
    world.lockboxes.add(other).result()
    wish = other.request(Interval.parse(day(1, 20)), LockType.KILL)
    world.lockboxes.acquire([wish]).result()
    killing = Killing(world)
    behind = sum(name >= day(21) for name in names(world))
    assert killing.duty.kill() == KillReport(behind, behind)
    world.lockboxes.remove(other).result()
    left = count - behind
    assert killing.duty.kill() == KillReport(left, left)


def test_a_kill_task_is_no_embedded_killer(world: BatchWorld) -> None:
    task = world.add({"type": "kill", "dataSource": "d", "interval": day(1)})
    assert isinstance(task, KillSpec)
    world.make(task).run()
    assert {held.lock.type for held in world.lockboxes.locks("d").result()} == {LockType.EXCLUSIVE}


def test_files_that_a_delta_table_needs_are_kept(world: BatchWorld) -> None:
    killing = Killing(world)
    store = world.store
    store.segments.mark_unused_within("d", Interval.parse(day(1)))
    needed = store.revision()
    store.segments.mark_unused_within("d", Interval.parse(day(2)))
    wait(world)
    entry = DeltaEntry("t", TableGoal.KEEP, unneeded=needed)
    DeltaRegistry(store).change("d", lambda _: entry)
    assert killing.duty.kill() == KillReport(1, 1)
    assert names(world) == [day(2), day(9)]
    assert killing.duty.kill() == KillReport()
    DeltaRegistry(store).change("d", lambda _: None)
    assert killing.duty.kill() == KillReport(1, 1)
