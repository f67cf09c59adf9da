"""The queue under exceptions that nobody expects: each kind at each call of each of its ports."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from queue_world import World, flowfile, ids

from penstock.flow.prioritizers import FirstInFirstOut, NewestFlowFileFirst
from penstock.flow.queue.queue import Polled, Verdict
from penstock.flow.queue.size import QueueOptions
from penstock.flow.queue.swapped import windows
from penstock.flow.swap import columnar
from penstock.testing.injection import FAULTS

COUNT, MORE, PENALIZED = 24, 6, 90
OPTIONS = QueueOptions(swap_threshold=8, swap_batch=4, expiration_ms=50_000)
Jobs = list[Callable[[], None]]
Operation = Callable[[World, Jobs], Polled | None]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "PAGE_ROWS", 3)
    monkeypatch.setattr(windows, "WINDOW_ROWS_MIN", 1)
    monkeypatch.setattr(windows, "WINDOW_ROWS_MAX", 4)


def poll(world: World, _jobs: Jobs) -> Polled:
    return world.queue.poll_many(30)


def poll_where(world: World, _jobs: Jobs) -> Polled:
    return world.queue.poll_where(lambda one: Verdict.ACCEPT if one.id % 2 else Verdict.REJECT)


def put(world: World, _jobs: Jobs) -> None:
    world.queue.put_many([world.home.journal[number] for number in range(COUNT, COUNT + MORE)])


def expire(world: World, _jobs: Jobs) -> Polled:
    return world.queue.expire()


def drop(world: World, jobs: Jobs) -> None:
    world.queue.drop(lambda attributes: attributes["kind"] == "k1")
    run_jobs(world, jobs)


def drop_all(world: World, jobs: Jobs) -> None:
    world.queue.drop()
    run_jobs(world, jobs)


def run_jobs(_world: World, jobs: Jobs) -> None:
    while jobs:
        jobs.pop(0)()


def reorder(world: World, _jobs: Jobs) -> None:
    world.order([NewestFlowFileFirst()])


def look(world: World, _jobs: Jobs) -> None:
    world.queue.looking.first(30)
    world.queue.looking.count_by("kind")


def ask(world: World, _jobs: Jobs) -> None:
    world.queue.availability(world.clock.now_ms())
    world.queue.next_due_ms()


OPERATIONS: list[Operation] = [
    *(poll, poll_where, put, expire, drop, drop_all, run_jobs, reorder, look, ask),
]


def filled() -> tuple[World, Jobs, set[int]]:
    """Return a queue with FlowFiles in memory and in files, some of which are penalized or old."""
    jobs: Jobs = []
    world = World(OPTIONS, [FirstInFirstOut()], background=jobs.append)
    world.clock.advance(ms=100_000)
    now = world.clock.now_ms()
    for start in range(0, COUNT, 12):
        world.put(
            *(
                flowfile(
                    number,
                    entry_ms=now - (60_000 if number % 7 == 3 else 10),
                    queued_ms=now,
                    penalty_until_ms=now + 500 if number % 5 == 2 else 0,
                )
                for number in range(start, start + 12)
            )
        )
    more = [flowfile(n, entry_ms=now, queued_ms=now) for n in range(COUNT, COUNT + MORE)]
    world.home.commit(more)
    world.clock.advance(ms=600)
    gone: set[int] = set()
    for _ in range(COUNT):
        if jobs:  # a window is open, and the next one is asked for
            break
        polled = world.queue.poll_many(1)
        gone |= {*ids(polled.flowfiles), *ids(polled.expired)}
    now = world.clock.now_ms()
    world.put(flowfile(PENALIZED, entry_ms=now, queued_ms=now, penalty_until_ms=now + 1_500))
    return world, jobs, gone


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("error", FAULTS)
def test_no_exception_at_any_call_of_a_port_loses_a_flowfile(
    operation: Operation, error: type[BaseException]
) -> None:
    """Whatever is raised where, all FlowFiles come once afterwards, and nothing waits for ever."""
    at, raised = 0, True
    while raised:
        world, jobs, gone = filled()
        home, queue = world.home, world.queue
        inside = {PENALIZED, *range(COUNT + (MORE if operation is put else 0))}
        polled = None
        with world.faults.armed(error, at):
            polled = operation(world, jobs)
        raised = bool(world.faults.raised)
        where = f"{error.__name__} at call {at}, {world.faults.raised}"
        if polled is not None:
            gone |= {*ids(polled.flowfiles), *ids(polled.expired)}
        world.clock.advance(ms=2_000)
        run_jobs(world, jobs)
        found: list[int] = []
        while (left := queue.poll_many(1_000)).flowfiles or left.expired:
            found += [*ids(left.flowfiles), *ids(left.expired)]
        assert len(found) == len(set(found)), where
        assert not gone & set(found), where
        everything = gone | set(found) | set(home.swept) | set(home.removed)
        assert everything == inside, where
        assert queue.size.count == queue.size.unacknowledged_count, where
        assert not home.damages, where
        at += 1
    assert at > 1


def test_after_a_memory_error_at_swap_in_every_flowfile_comes() -> None:
    options = QueueOptions(swap_threshold=200, swap_batch=200)
    for error in (MemoryError, RuntimeError):
        world = World(options)
        world.put(*(flowfile(number) for number in range(1_000)))
        found: list[int] = []
        for at in range(80):
            with world.faults.armed(error, at % 7):
                found += world.poll(20)
        world.clock.advance(ms=2_000)
        found += world.drain()
        assert sorted(found) == list(range(1_000))
