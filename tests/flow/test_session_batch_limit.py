"""How many FlowFiles a session may take after a trigger failed, however it takes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from session_world import World

from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import ProcessSession
from penstock.flow.queue.queue import FilterVerdict

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
def world() -> World:
    return World()


@pytest.mark.parametrize("take", [one_by_one, many_twice, matching])
@pytest.mark.parametrize("batching", [False, True])
def test_a_failed_batch_is_retried_in_halves_until_as_many_passed(
    world: World, take: Take, batching: bool
) -> None:
    world.wire(inputs="a")
    world.feed("a", *[b""] * 8)
    session, transaction = world.begin()
    assert len(take(session)) == 8
    transaction.fail()
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


def test_a_flowfile_that_fails_alone_is_penalized(world: World) -> None:
    world.wire(inputs="a")
    world.feed("a", b"")
    session, transaction = world.begin()
    assert session.get() is not None
    transaction.fail()
    assert [one.penalty_until_ms > 0 for one in world.queues["a"].flowfiles] == [True]
    world.check()


def test_a_rollback_of_the_processor_itself_sets_no_limit(world: World) -> None:
    world.feed("a", *[b""] * 4)
    session, transaction = world.begin()
    session.get_many(100)
    session.rollback()
    assert len(session.get_many(100)) == 4
    transaction.rollback(penalize=True)
    assert world.wiring.batch_limit.count is None
