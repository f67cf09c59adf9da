"""The tables of locks: who has a say, what is reused, what goes together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval
from penstock.indexing.lockbox.lock_rules import coexist, concerns, reusable
from penstock.indexing.lockbox.task_locks import (
    LockGranularity,
    LockRequest,
    LockType,
    TaskLock,
)
from tests.indexing.lockbox_kit import DAY, SOURCE, Story, hours, killer, task

EXCLUSIVE, SHARED, REPLACE, APPEND, KILL = LockType

INNER = hours(3, 4)
CROSSING = hours(20, 30)

# Where the request lies, as (its interval, the interval of the lock that is held).
RELATIONS = {
    "equal": (DAY, DAY),
    "request inside": (INNER, DAY),
    "request around": (DAY, INNER),
    "crossing": (CROSSING, DAY),
}
ANY = set(RELATIONS)

# By (request, held): the relations in which both may be held; pairs that are missing: none.
TOGETHER = {
    (SHARED, SHARED): ANY,
    (APPEND, APPEND): ANY,
    (REPLACE, APPEND): {"equal", "request around"},
    (APPEND, REPLACE): {"equal", "request inside"},
    **{(KILL, other): ANY for other in LockType if other is not KILL},
    **{(other, KILL): ANY for other in LockType if other is not KILL},
}


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("held", LockType)
@pytest.mark.parametrize("asked", LockType)
def test_what_goes_together(asked: LockType, held: LockType, relation: str) -> None:
    asked_interval, held_interval = RELATIONS[relation]
    expected = relation in TOGETHER.get((asked, held), set())
    assert coexist(asked, asked_interval, held, held_interval) is expected
    assert coexist(held, held_interval, asked, asked_interval) is expected

    story = Story()
    owners = {
        "first": killer("first") if held is KILL else task("first"),
        "second": killer("second") if asked is KILL else task("second"),
    }
    # The same priority, so that nobody takes anything away.
    story.add(*(replace(one, priority=50) for one in owners.values()))
    assert story.say("first", held, held_interval) == "new"
    assert story.say("second", asked, asked_interval) == ("new" if expected else "refused")
    assert not any(revoked for _, _, revoked in story.held("first"))
    story.check_stored()


def lock(
    interval: Interval = DAY,
    type: LockType = EXCLUSIVE,  # noqa: A002 - as the model has it
    partition: int | None = None,
    group: str = "g",
) -> TaskLock:
    granularity = LockGranularity.TIME_CHUNK if partition is None else LockGranularity.SEGMENT
    return TaskLock(granularity, type, group, SOURCE, interval, "v", 50, partition_number=partition)


def request(
    interval: Interval = DAY,
    type: LockType = EXCLUSIVE,  # noqa: A002 - as the model has it
    partition: int | None = None,
    *,
    segment: bool = False,
    group: str = "g",
) -> LockRequest:
    granularity = (
        LockGranularity.SEGMENT if segment or partition is not None else LockGranularity.TIME_CHUNK
    )
    return LockRequest("t", group, SOURCE, interval, type, granularity, 50, "v", partition)


@pytest.mark.parametrize(
    ("held", "asked", "expected"),
    [
        (lock(), request(INNER), True),
        (lock(), request(hours(24, 25)), False),
        (lock(), request(INNER, segment=True), True),
        (lock(), request(INNER, partition=3), True),
        (lock(partition=3), request(INNER), True),
        (lock(partition=3), request(hours(24, 25)), False),
        (lock(partition=3), request(segment=True), False),
        (lock(partition=3), request(partition=3), True),
        (lock(partition=3), request(partition=4), False),
        (lock(partition=3), request(INNER, partition=9), True),
        (lock(partition=3), request(hours(24, 25), partition=3), False),
    ],
)
def test_who_has_a_say(held: TaskLock, asked: LockRequest, *, expected: bool) -> None:
    assert concerns(held, asked) is expected
    assert concerns(held.revoked_copy(), asked) is expected


@pytest.mark.parametrize("type", LockType)
def test_a_time_chunk_lock_is_reused_by_its_group_inside_of_it(
    type: LockType,  # noqa: A002 - as the model has it
) -> None:
    assert reusable(lock(type=type), request(type=type))
    assert reusable(lock(type=type), request(INNER, type))
    assert not reusable(lock(INNER, type), request(type=type))
    assert not reusable(lock(type=type), request(type=type, group="other"))
    other = APPEND if type is not APPEND else SHARED
    assert not reusable(lock(type=type), request(type=other))
    assert not reusable(lock(partition=3), request(type=type))


def test_a_segment_lock_is_reused_by_its_group_for_the_same_number() -> None:
    assert reusable(lock(partition=3), request(partition=3))
    assert reusable(lock(partition=3), request(INNER, partition=3))
    assert not reusable(lock(partition=3), request(partition=4))
    assert not reusable(lock(partition=3), request(partition=3, group="other"))
    assert not reusable(lock(), request(partition=3))


def test_requests_that_make_no_sense_are_refused() -> None:
    one = task("t1")
    with pytest.raises(InvalidRequest, match="empty interval"):
        one.request(Interval(5, 5))
    with pytest.raises(InvalidRequest, match="use EXCLUSIVE"):
        one.request(DAY, APPEND, granularity=LockGranularity.SEGMENT, partition_number=1)
    with pytest.raises(InvalidRequest, match="no partition number"):
        one.request(DAY, partition_number=1)


PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "locks.md"
CELLS = {
    frozenset(ANY): "yes",
    frozenset[str](): "no",
    frozenset({"equal", "request around"}): "if the REPLACE contains the APPEND",
    frozenset({"equal", "request inside"}): "if the REPLACE contains the APPEND",
}


def test_the_page_has_the_table() -> None:
    lines = PAGE.read_text().splitlines()
    for asked in LockType:
        cells = [
            CELLS[
                frozenset(
                    relation
                    for relation, (asked_interval, held_interval) in RELATIONS.items()
                    if coexist(asked, asked_interval, held, held_interval)
                )
            ]
            for held in LockType
        ]
        assert f"| **{asked}** | {' | '.join(cells)} |" in lines
