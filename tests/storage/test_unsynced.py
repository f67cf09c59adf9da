"""The age of unsynced data, and its alarm."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.core.errors import Unavailable
from penstock.storage.queue import group_commit
from penstock.storage.queue.group_commit import Syncer, SyncThreads, UnsyncedData
from penstock.testing.clock import VirtualClock


class Disk:
    """Syncs when the test lets it, or fails."""

    def __init__(self) -> None:
        self.begun, self.answers = threading.Semaphore(0), threading.Semaphore(0)
        self.error: Unavailable | None = None

    def sync(self) -> int:
        self.begun.release()
        assert self.answers.acquire(timeout=120)
        if self.error is not None:
            raise self.error
        return 0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def shared(clock: VirtualClock) -> Iterator[SyncThreads]:
    with SyncThreads(clock=clock, name="queues") as made:
        yield made


def syncer(disk: Disk, clock: VirtualClock, shared: SyncThreads) -> Syncer:
    return Syncer(
        disk.sync,
        every_messages=100,
        interval_ms=2_000,
        pause_ms=0,
        clock=clock,
        threads=shared,
        name="q",
    )


def test_age_counts_from_the_first_append_until_it_is_synced(
    clock: VirtualClock, shared: SyncThreads
) -> None:
    disk = Disk()
    queue = syncer(disk, clock, shared)
    assert shared.unsynced.age_s() == 0
    queue.wrote(1)
    clock.advance(1.5)
    queue.wrote(1)
    assert shared.unsynced.age_s() == 1.5
    clock.wait_for_waiting(1)
    clock.advance(0.5)  # a pass begins, and takes its time
    assert disk.begun.acquire(timeout=120)
    queue.wrote(1)
    clock.advance(3.0)
    assert shared.unsynced.age_s() == 5.0
    asked = queue.request()  # of the next pass
    disk.answers.release()
    assert disk.begun.acquire(timeout=120)
    assert shared.unsynced.age_s() == 3.0  # of what was appended meanwhile
    disk.answers.release()
    asked.result(120)
    assert shared.unsynced.age_s() == 0
    disk.answers.release()
    queue.close()


def test_a_pass_that_fails_makes_nothing_younger(clock: VirtualClock, shared: SyncThreads) -> None:
    disk = Disk()
    disk.error = Unavailable("no answer")
    queue = syncer(disk, clock, shared)
    queue.wrote(1)
    clock.advance(1.0)
    asked = queue.request()
    assert disk.begun.acquire(timeout=120)
    disk.answers.release()
    with pytest.raises(Unavailable):
        asked.result(120)
    clock.advance(0.5)
    assert shared.unsynced.age_s() == 1.5
    disk.error = None
    disk.answers.release()
    queue.request().result(120)
    assert shared.unsynced.age_s() == 0
    queue.close()


def test_data_that_is_too_old_raises_the_alarm_again_and_again(
    clock: VirtualClock, shared: SyncThreads, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    queue = syncer(disk, clock, shared)
    data = shared.unsynced
    assert data.limit_s == 20.0  # ten times the interval
    queue.wrote(1)
    clock.wait_for_waiting(1)
    clock.advance(2.0)
    assert disk.begun.acquire(timeout=120)  # the disk hangs
    clock.wait_for_waiting(1)
    clock.advance(17.9)
    assert data.sync_failure() is None
    for alarms, (after_s, age_s) in enumerate(((0.1, 20), (20.0, 40)), 1):
        clock.wait_for_waiting(1)
        clock.advance(after_s)
        assert data.sync_failure() == (
            f"queues: data has not been synced for {age_s} s, and a power loss would lose it"
            " (the limit is 20 s): check whether the disk responds"
        )
        clock.wait_until(lambda: len(_alarms(caplog)) == alarms)  # noqa: B023
    disk.answers.release()
    queue.request()
    disk.answers.release()
    queue.close()
    assert data.sync_failure() is None


def _alarms(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        one.getMessage()
        for one in caplog.records
        if one.name == group_commit.__name__ and one.levelno == logging.ERROR
    ]


def test_the_alarm_is_not_raised_for_data_that_is_synced_in_time(
    clock: VirtualClock, shared: SyncThreads, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    queue = syncer(disk, clock, shared)
    for _ in range(20):
        queue.wrote(1)
        clock.wait_for_waiting(1)
        clock.advance(2.0)
        assert disk.begun.acquire(timeout=120)
        asked = queue.request()
        disk.answers.release(2)
        asked.result(120)
        disk.begun.acquire(timeout=120)
    queue.close()
    assert _alarms(caplog) == []


def test_data_that_is_appended_during_a_check_has_its_alarm(clock: VirtualClock) -> None:
    planned: list[float | None] = []
    data = UnsyncedData("queues", clock)

    class Entries(dict[object, float]):
        reads = 0

        def values(self):  # type: ignore[no-untyped-def]
            found = dict(self).values()
            self.reads += 1
            if self.reads == 2:  # the check has seen that nothing waits
                planned.append(data.appended("b", 7.0))
            return found

    data._since_s = Entries()
    planned.append(data.appended("a", 0.0))
    data.check_planned = True
    assert data.appended("a", 1.0) is None
    data.synced("a", None)
    assert data.check() is None
    assert planned == [data.limit_s, 7.0 + data.limit_s]


class Interrupted(SyncThreads):
    """Calls `between` once, after a plan is made and before its maker continues."""

    between: Callable[[], None] | None = None

    def call_at(self, at_s: float, callback: Callable[[], None]) -> None:
        super().call_at(at_s, callback)
        between, self.between = self.between, None
        if between is not None:
            between()


def test_an_append_that_is_interrupted_while_it_plans_the_check_does_not_end_the_alarm(
    clock: VirtualClock,
) -> None:
    with Interrupted(clock=clock, name="queues") as shared:
        checked = threading.Semaphore(0)
        check = shared.unsynced.check

        def check_and_tell() -> float | None:
            try:
                return check()
            finally:
                checked.release()

        shared.unsynced.check = check_and_tell  # type: ignore[method-assign]

        def between() -> None:
            shared.unsynced.synced("a", None)
            clock.wait_for_waiting(1)
            clock.advance(shared.unsynced.limit_s)
            assert checked.acquire(timeout=120)  # All is synced: it plans no other check.
            clock.wait_for_waiting(1)

        shared.between = between
        shared.note_append("a", clock.monotonic_s())
        shared.note_append("a", clock.monotonic_s())
        clock.wait_for_waiting(1)
        clock.advance(shared.unsynced.limit_s)
        assert checked.acquire(timeout=120)


def test_without_memory_for_a_plan_the_next_append_plans_the_check(
    clock: VirtualClock, shared: SyncThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_at_s: float, _callback: Callable[[], None]) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(shared, "call_at", fail)
        shared.note_append("a", clock.monotonic_s())
    assert not shared.unsynced.check_planned
    shared.note_append("a", clock.monotonic_s())
    assert shared.unsynced.check_planned


def test_an_append_during_a_check_starts_no_second_chain_of_checks(
    clock: VirtualClock, shared: SyncThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = threading.Semaphore(0)
    check = shared.unsynced.check

    def check_with_append() -> float | None:
        again_s = check()
        shared.note_append("b", clock.monotonic_s())  # It plans a check, too.
        checks.release()
        return again_s

    monkeypatch.setattr(shared.unsynced, "check", check_with_append)
    shared.note_append("a", clock.monotonic_s())
    for _ in range(3):
        clock.wait_for_waiting(1)
        assert len(shared._planned) == 1
        clock.advance(shared.unsynced.limit_s)
        assert checks.acquire(timeout=120)
        clock.wait_for_waiting(1)
    assert not checks.acquire(blocking=False)


def test_messages_of_a_failed_pass_count_as_not_synced_again(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def sync() -> int:
        raise Unavailable("no answer")

    queue = Syncer(
        sync, every_messages=3, interval_ms=2_000, pause_ms=0, clock=clock, threads=None, name="q"
    )
    queue.wrote(3)
    assert (queue.failures, queue.unsynced_messages) == (1, 3)
    queue.wrote(2)
    assert (queue.failures, queue.unsynced_messages) == (1, 5), "retried after the interval"
    clock.advance(2.0)
    queue.wrote(1)
    assert (queue.failures, queue.unsynced_messages) == (2, 6)
    assert [r.getMessage() for r in caplog.records][:1] == ["q: cannot sync 3 messages: no answer"]
