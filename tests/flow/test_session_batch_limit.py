"""How many FlowFiles a session may take after a trigger failed, however it takes them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import ProcessSession
from penstock.flow.queue.queue import FilterVerdict
from penstock.flow.repository.repository_changes import Changes
from penstock.flow.session.batch_limit import REMEMBERED_MS
from tests.flow.session_kit import SessionWorld

Take = Callable[[ProcessSession], list[FlowFile]]


def one_by_one(session: ProcessSession) -> list[FlowFile]:
    taken = []
    while (flowfile := session.get()) is not None:
        taken.append(flowfile)
    return taken


def many_twice(session: ProcessSession) -> list[FlowFile]:
    return [*session.get_many(2), *session.get_many(100)]


def matching(session: ProcessSession) -> list[FlowFile]:
    return session.get_where(lambda _: FilterVerdict.ACCEPT)


@pytest.fixture
def world() -> SessionWorld:
    return SessionWorld()


@pytest.mark.parametrize("take", [one_by_one, many_twice, matching])
@pytest.mark.parametrize("batching", [False, True])
def test_a_failed_batch_is_retried_in_halves_until_as_many_passed(
    world: SessionWorld, take: Take, batching: bool
) -> None:
    world.wire(inputs="a")
    world.feed("a", *[b""] * 8)
    session, transaction = world.begin()
    assert len(take(session)) == 8
    transaction.fail(ValueError("a bad one"))
    world.check()
    assert not any(one.penalty_until_ms for one in world.queues["a"].flowfiles)
    session, transaction = world.begin(batching=batching)
    for _ in range(2):
        taken = take(session)
        assert len(taken) == 4
        assert not take(session)
        session.transfer(taken, "success")
        session.commit()
    transaction.flush()
    world.feed("a", *[b""] * 9)
    session, transaction = world.begin()
    assert len(take(session)) == 9, "the eight that failed have passed: there is no limit any more"
    transaction.rollback()
    world.check()


def test_a_flowfile_that_fails_alone_is_penalized(world: SessionWorld) -> None:
    world.wire(inputs="a")
    world.feed("a", b"")
    session, transaction = world.begin()
    assert session.get() is not None
    transaction.fail(ValueError("a bad one"))
    assert [one.penalty_until_ms > 0 for one in world.queues["a"].flowfiles] == [True]
    world.check()


def test_a_rollback_of_the_processor_itself_sets_no_limit(world: SessionWorld) -> None:
    world.feed("a", *[b""] * 4)
    session, transaction = world.begin()
    session.get_many(100)
    session.rollback()
    assert len(session.get_many(100)) == 4
    transaction.rollback(penalize=True)
    assert world.session_context.batch_limit.count is None


def has_work(world: SessionWorld) -> bool:
    now_ms = world.clock.now_ms()
    return not all(one.is_penalized(now_ms) for one in world.queues["a"].flowfiles)


def failing_run(world: SessionWorld, bad: int, take: Take) -> tuple[list[int], bool]:
    """Run a session that raises if it took a FlowFile; return the ids, and whether it passed."""
    session, transaction = world.begin()
    taken = take(session)
    ids = [one.id for one in taken]
    if bad in ids:
        transaction.fail(ValueError("a bad one"))
    else:
        session.transfer(taken, "success")
        session.commit()
    transaction.calls.end()
    return ids, bad not in ids


@pytest.mark.parametrize("take", [one_by_one, many_twice, matching])
def test_a_flowfile_that_always_fails_is_taken_alone_after_each_penalty(
    world: SessionWorld, take: Take
) -> None:
    world.wire(inputs="a")
    bad = world.feed("a", *[b""] * 8)[5].id
    while has_work(world):
        failing_run(world, bad, take)
    for _ in range(3):
        world.clock.advance(ms=world.session_context.penalty_ms)
        new = {one.id for one in world.feed("a", *[b""] * 8)}
        runs = []
        while has_work(world):
            runs.append(failing_run(world, bad, take))
        assert ([bad], False) in runs
        passed = [ids for ids, is_good in runs if is_good]
        assert len(passed) == len(runs) - 1, "one run failed, and no other was divided"
        assert set().union(*map(set, passed)) == new
        assert world.session_context.batch_limit.count is None
        world.check()


def test_others_are_processed_between_suspects_that_fail(world: SessionWorld) -> None:
    world.wire(inputs="a")
    bad = {one.id for one in world.feed("a", *[b""] * 5)}
    for number in bad:
        world.session_context.batch_limit.failed(1, 1, [number], 0.0)
    outcomes = []
    while world.queues["a"].flowfiles and len(outcomes) < 10:
        new = {one.id for one in world.feed("a", b"", b"")}
        for _ in range(2):
            session, transaction = world.begin()
            taken = session.get_many(100)
            ids = {one.id for one in taken}
            if ids & bad:
                assert len(ids) == 1
                transaction.fail(ValueError("a bad one"))
                outcomes.append(False)
            else:
                assert ids == new
                session.transfer(taken, "success")
                session.commit()
                outcomes.append(True)
            transaction.calls.end()
    assert outcomes == [True, False] * 5
    world.check()


def test_a_suspect_that_the_processor_gives_back_is_then_taken_with_the_others(
    world: SessionWorld,
) -> None:
    world.wire(inputs="a")
    (bad,) = world.feed("a", b"")
    failing_run(world, bad.id, matching)
    world.feed("a", b"", b"")
    world.clock.advance(ms=world.session_context.penalty_ms)
    taken = []
    for _ in range(3):
        session, transaction = world.begin()
        taken.append(len(session.get_many(10)))
        session.rollback()
        transaction.calls.end()
    assert 1 in taken
    assert taken[-1] == 3
    world.check()


def test_the_number_of_suspects_is_bounded(world: SessionWorld) -> None:
    for number in range(5_000):
        world.session_context.batch_limit.failed(1, 1, [number], 0.0)
    assert list(world.session_context.batch_limit.suspects) == list(range(4_000, 5_000))


def test_an_exception_while_a_suspect_is_separated_loses_nothing(world: SessionWorld) -> None:
    world.wire(inputs="a")
    bad = world.feed("a", b"", b"", b"")[1].id
    world.session_context.batch_limit.failed(1, 1, [bad], 0.0)

    class Broken(dict[int, float]):
        def __contains__(self, _key: object) -> bool:
            raise MemoryError

    world.session_context.batch_limit.suspects = Broken({bad: math.inf})
    session, transaction = world.begin()
    with pytest.raises(MemoryError):
        session.get_many(10)
    transaction.calls.end()
    world.session_context.batch_limit.suspects = {}
    assert len(world.queues["a"].flowfiles) == 3
    world.check()


@pytest.mark.parametrize("how", ["expired", "dropped"])
def test_a_suspect_that_left_its_queue_is_forgotten(world: SessionWorld, how: str) -> None:
    """Otherwise each poll would compare its FlowFiles with it, for as long as the process lives."""
    world.wire(inputs="a")
    queue = world.queues["a"]
    (bad,) = world.feed("a", b"")
    assert failing_run(world, bad.id, matching) == ([bad.id], False)
    world.clock.advance(ms=world.session_context.penalty_ms + 1)
    if how == "expired":
        queue.expiration_ms = 1
    else:
        world.repository.commit(Changes(removes=queue.flowfiles))
        queue.flowfiles = []
    new = {one.id for one in world.feed("a", b"", b"")}
    assert set(failing_run(world, bad.id, matching)[0]) == new
    for _ in range(2):
        world.clock.advance(ms=REMEMBERED_MS)
        world.feed("a", b"")
        assert failing_run(world, bad.id, matching)[1]
    assert not world.session_context.batch_limit.suspects
    world.check()


def test_a_suspect_is_remembered_while_it_waits_for_its_penalty(world: SessionWorld) -> None:
    world.wire(inputs="a")
    bad = {one.id for one in world.feed("a", b"", b"")}
    for number in sorted(bad):
        failing_run(world, number, lambda session: session.get_many(1))
        world.clock.advance(ms=world.session_context.penalty_ms // 2)
    assert list(world.session_context.batch_limit.suspects) == sorted(bad)
    world.clock.advance(ms=world.session_context.penalty_ms)
    taken = [failing_run(world, -1, many_twice)[0] for _ in range(2)]
    assert sorted(taken) == [[number] for number in sorted(bad)], "each is taken alone"
    assert not world.session_context.batch_limit.suspects
    world.check()
