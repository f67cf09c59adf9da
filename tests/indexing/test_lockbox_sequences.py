"""The lockbox as stories: the worked sequences of locks, and what follows from each rule."""

from __future__ import annotations

import pytest

from penstock.core.errors import Conflict, InvalidRequest, LockRevoked, Unavailable
from penstock.indexing.lockbox.lockbox import AcquireLocks
from penstock.indexing.lockbox.task_locks import (
    APPEND_VERSION,
    LockGranted,
    LockGranularity,
    LockRefused,
    LockType,
    TaskRemoval,
)
from tests.indexing.lockbox_kit import (
    DAY,
    HOUR_MS,
    NOW_MS,
    Story,
    hours,
    killer,
    task,
    version_at,
    word,
)

EXCLUSIVE, SHARED, REPLACE, APPEND, KILL = LockType


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_group_shares_its_lock_and_a_higher_priority_takes_it(story: Story) -> None:
    story.add(task("t1", "g1"), task("t2", "g1"), task("t3", "g2"), task("t4", "g2b", 75))
    story.add(task("t5", "g3"))
    first = story.ask("t1")  # 1
    assert isinstance(first, LockGranted)
    assert first.lock.version == version_at(NOW_MS)
    joined = story.ask("t2", interval=hours(3, 4))  # 2
    assert joined == LockGranted(first.lock, fresh=True)
    assert len(story.store.every()) == 2
    assert story.say("t3", interval=hours(3, 4)) == "refused"  # 3
    assert story.say("t4", interval=hours(3, 4)) == "new"  # 4
    assert story.held("t1") == story.held("t2") == [(EXCLUSIVE, DAY, True)]
    assert story.released, "beside the smaller lock there is room now"
    assert story.say("t1", interval=hours(10, 11)) == "revoked"  # 5
    assert story.say("t5", interval=hours(10, 11)) == "new"  # 6
    story.release("t1")
    assert story.say("t1", interval=hours(12, 13)) == "revoked", "its group has not let go of it"
    story.release("t2")
    assert story.say("t1", interval=hours(12, 13)) == "new"
    story.check_stored()


def test_a_larger_interval_must_be_asked_for_first(story: Story) -> None:  # 7
    story.add(task("t1"))
    assert story.say("t1", interval=hours(0, 2)) == "new"
    assert story.say("t1") == "refused"


def test_a_group_may_change_the_type_of_what_it_holds(story: Story) -> None:  # 8
    story.add(task("t1"))
    assert story.say("t1", EXCLUSIVE) == "new"
    assert story.say("t1", APPEND) == "new"
    assert len(story.held("t1")) == 2
    story.check_stored()


def test_an_append_goes_beside_the_replace_around_it(story: Story) -> None:
    story.add(task("t1", "g1", 75), task("t2", "g2", 25))
    assert story.say("t2", REPLACE) == "new"
    appended = story.ask("t1", APPEND, hours(0, 1))  # 9
    assert isinstance(appended, LockGranted)
    assert appended.lock.version == APPEND_VERSION
    assert story.held("t2") == [(REPLACE, DAY, False)]
    assert story.say("t1", APPEND, hours(0, 2)) == "new"  # 10
    assert story.held("t1") == [(APPEND, hours(0, 2), False)]
    story.check_stored()


def test_an_append_takes_the_replace_that_does_not_enclose_it(story: Story) -> None:  # 11
    story.add(task("t1", "g1", 75), task("t2", "g2", 25))
    assert story.say("t2", REPLACE, hours(0, 2)) == "new"
    assert story.say("t1", APPEND) == "new"
    assert story.held("t2") == [(REPLACE, hours(0, 2), True)]


def test_a_replace_of_lower_priority_waits_for_an_append_around_it(story: Story) -> None:  # 12
    story.add(task("t1", "g1", 75), task("t2", "g2", 25))
    assert story.say("t1", APPEND) == "new"
    assert story.say("t2", REPLACE, hours(0, 2)) == "refused"


def test_a_replace_takes_the_appends_that_cross_its_end(story: Story) -> None:  # 13
    story.add(task("t1", "g1", 75), task("t3", "g3", 0), task("t2", "g2", 25))
    assert story.say("t1", APPEND, hours(0, 1)) == "new"
    assert story.say("t3", APPEND, hours(20, 30)) == "new"
    assert story.say("t2", REPLACE) == "new"
    assert story.held("t3") == [(APPEND, hours(20, 30), True)]
    assert story.held("t1") == [(APPEND, hours(0, 1), False)]


def test_shared_locks_go_together_and_with_nothing_else(story: Story) -> None:  # 14, 15
    story.add(task("t1", "g1", 50), task("t2", "g2", 0), task("t3", "g3", 50))
    assert story.say("t1", SHARED) == "new"
    assert story.say("t2", SHARED, hours(5, 30)) == "new"
    assert story.say("t3", APPEND, hours(0, 2)) == "refused"


def test_locks_on_segments(story: Story) -> None:  # 16, 17
    story.add(task("t1", "g1"), task("t2", "g2"), task("t3", "g1"))
    assert story.say("t1", partition=3) == "new"
    assert story.say("t2", partition=4) == "new"
    assert story.say("t2", partition=3) == "refused"
    assert story.say("t2", interval=hours(0, 12), partition=9) == "refused"
    story.release("t2")
    assert story.say("t2", EXCLUSIVE) == "refused"
    assert story.say("t3", EXCLUSIVE) == "new"
    story.check_stored()


def test_a_lock_on_a_segment_is_for_one_version(story: Story) -> None:
    """Of another version the task has nothing to do any more, but others of its group may have."""
    story.add(task("t1", "g1"), task("t2", "g1"), task("t3", "g2"))
    assert story.say("t1", partition=3, version="v1") == "new"
    assert story.say("t1", partition=4, version="v1") == "new"
    assert story.say("t2", partition=3, version="v1") == "new"
    assert story.say("t1", partition=3, version="v2") == "new"
    assert story.say("t1", partition=3, version="v2") == "same"
    held = {(h.task_id, h.lock.version, h.lock.partition_number) for h in story.box.locks()}
    assert held == {("t1", "v2", 3), ("t1", "v1", 4), ("t2", "v1", 3)}
    assert story.say("t3", partition=3, version="v2") == "refused"
    story.check_stored()


def test_that_a_segment_was_taken_is_told_whatever_version_is_asked_for(story: Story) -> None:
    story.add(task("t1", priority=10), task("t2", priority=20))
    story.ask("t1", partition=3, version="v1")
    story.ask("t2")
    story.release("t2")
    assert story.say("t1", partition=3, version="v2") == "revoked"


@pytest.mark.parametrize("other", [EXCLUSIVE, SHARED, REPLACE, APPEND])
@pytest.mark.parametrize("first", ["killer", "other"])
@pytest.mark.parametrize("priority", [0, 90])
def test_kill_locks_hinder_kill_locks_alone(
    story: Story, other: LockType, first: str, priority: int
) -> None:  # 18
    story.add(killer(), task("other", priority=priority))
    types = {"killer": KILL, "other": other}
    for name in sorted(types, key=lambda name: name != first):
        assert story.say(name, types[name]) == "new"
    assert not any(revoked for name in types for _, _, revoked in story.held(name))


def test_who_must_wait_is_told_for_whom(story: Story) -> None:
    story.add(task("t1", "g1"), task("t2", "g1"), task("t3", "g2"))
    story.ask("t1")
    story.ask("t2")
    story.now_ms += HOUR_MS
    refused = story.ask("t3", SHARED, hours(3, 4))
    assert isinstance(refused, LockRefused)
    (refusal,) = refused.refusals
    assert (refusal.task_ids, refusal.group, refusal.type) == (("t1", "t2"), "g1", EXCLUSIVE)
    assert (refusal.interval, refusal.priority, refusal.since_ms) == (DAY, 50, NOW_MS)
    assert refused.text() == (
        "SHARED lock on wiki 2024-01-01T03:00:00.000Z/2024-01-01T04:00:00.000Z with priority 50"
        " must wait for: EXCLUSIVE lock on 2024-01-01T00:00:00.000Z/2024-01-02T00:00:00.000Z held"
        " by t1, t2 (group g1, priority 50) since 2024-01-05T04:00:00.000Z"
    )


def test_a_refusal_knows_all_who_hold_a_lock_and_names_some(story: Story) -> None:
    members = [task(f"m{n}", "g") for n in range(12)]
    story.add(*members, task("t"))
    for one in members:
        story.ask(one.id)
    refused = story.ask("t")
    assert isinstance(refused, LockRefused)
    (refusal,) = refused.refusals
    assert refusal.task_ids == tuple(one.id for one in members)
    assert "m7 and 4 more (group g" in refusal.text()


def test_a_refusal_names_a_few_and_counts_the_rest(story: Story) -> None:
    story.add(task("t1"), task("t2"))
    for hour in range(20):
        story.ask("t1", interval=hours(hour, hour + 1))
    refused = story.ask("t2")
    assert isinstance(refused, LockRefused)
    assert (len(refused.refusals), refused.more) == (8, 12)


def test_one_lock_of_the_same_priority_saves_all_others(story: Story) -> None:
    story.add(task("low", priority=0), task("same", priority=50), task("t"))
    story.ask("low", interval=hours(0, 1))
    story.ask("same", interval=hours(1, 2))
    assert story.say("t") == "refused"
    assert story.held("low") == [(EXCLUSIVE, hours(0, 1), False)]


def test_asking_together_takes_nothing_when_one_is_refused(story: Story) -> None:
    story.add(task("low", priority=0), task("same"), task("t"))
    story.ask("low", interval=hours(0, 1))
    story.ask("same", interval=hours(1, 2))
    wishes = tuple(story.request("t", EXCLUSIVE, hours(h, h + 1)) for h in (0, 1, 2))
    answer = story.do(AcquireLocks(wishes, together=True))
    assert isinstance(answer, list)
    assert {word(outcome) for outcome in answer} == {"refused"}
    assert story.held("t") == []
    assert story.held("low") == [(EXCLUSIVE, hours(0, 1), False)]
    answer = story.do(AcquireLocks(wishes))
    assert isinstance(answer, list)
    assert [word(outcome) for outcome in answer] == ["new", "refused", "new"]
    story.check_stored()


def test_a_replace_lock_has_one_task(story: Story) -> None:
    story.add(task("t1", "g"), task("t2", "g"))
    assert story.say("t1", REPLACE) == "new"
    assert story.say("t1", REPLACE, hours(0, 1)) == "same"
    assert story.say("t2", REPLACE) == "refused"


def test_of_two_locks_that_fit_the_own_one_is_told(story: Story) -> None:
    story.add(task("t1", "g"), task("t2", "g"), task("t3", "g"))
    story.ask("t1", APPEND, hours(0, 1))
    story.ask("t2", APPEND, hours(0, 1))
    story.ask("t1", APPEND, hours(0, 2))
    assert story.held("t2") == [(APPEND, hours(0, 1), False)]
    assert story.say("t2", APPEND, hours(0, 1)) == "same"
    third = story.ask("t3", APPEND, hours(0, 1))
    assert isinstance(third, LockGranted)
    assert third.lock.interval == hours(0, 2)
    story.check_stored()


def test_a_revoked_lock_is_never_superseded(story: Story) -> None:
    story.add(task("t1", priority=10), task("t2", priority=20))
    story.ask("t1", APPEND, hours(0, 1))
    story.ask("t2", EXCLUSIVE, hours(0, 1))
    story.release("t2", hours(0, 1))
    assert story.say("t1", APPEND, hours(0, 2)) == "new"
    assert (APPEND, hours(0, 1), True) in story.held("t1")


def test_versions_grow_though_the_clock_does_not(story: Story) -> None:
    story.add(task("t1"), task("t2"), task("t3", priority=90))
    first = story.ask("t1")
    story.release("t1")
    story.now_ms -= HOUR_MS
    second = story.ask("t2")
    third = story.ask("t3")
    versions = [o.lock.version for o in (first, second, third) if isinstance(o, LockGranted)]
    assert versions == [version_at(NOW_MS + n) for n in range(3)]


@pytest.mark.parametrize("version", ["2999-99-99T00:00:00.000Z", "9999-12-31T23:59:59.999Z"])
def test_a_version_that_no_later_time_follows_hinders_no_lock_after_it(
    story: Story, version: str
) -> None:
    story.add(task("t1"), task("t2"))
    story.do(AcquireLocks((story.tasks["t1"].request(DAY, version=version),)))
    story.release("t1")
    answer = story.ask("t2")
    assert isinstance(answer, LockGranted)
    assert answer.lock.version == version_at(NOW_MS)


def test_a_version_that_is_asked_for_is_given(story: Story) -> None:
    story.add(task("t1"))
    answer = story.do(AcquireLocks((story.tasks["t1"].request(DAY, version="2020"),)))
    assert isinstance(answer, list)
    assert [o.lock.version for o in answer if isinstance(o, LockGranted)] == ["2020"]
    story.release("t1")
    assert story.say("t1") == "new"


def test_no_lock_outlives_its_task(story: Story) -> None:
    story.add(task("t1"), task("t2"))
    story.ask("t1")
    assert story.say("t2") == "refused"
    story.remove("t1")
    assert story.released
    with pytest.raises(LockRevoked, match="not active"):
        story.ask("t1")
    assert story.say("t2") == "new"
    story.remove("t2")
    assert story.box.is_empty
    assert story.store.every() == []


def test_who_asks_as_somebody_else_is_refused(story: Story) -> None:
    story.add(task("t1", "g1", 50), task("t2", "g1", 60), killer("k"))
    wrong = task("t1", "g1", 60).request(DAY)
    with pytest.raises(InvalidRequest, match="priority 50"):
        story.do(AcquireLocks((wrong,)))
    with pytest.raises(InvalidRequest, match="in a call of its own"):
        story.do(AcquireLocks((story.request("t1", SHARED, DAY), story.request("t2", SHARED, DAY))))
    with pytest.raises(InvalidRequest, match="KILL"):
        story.ask("t1", KILL)
    with pytest.raises(InvalidRequest, match="allocate the segment first"):
        story.do(
            AcquireLocks((story.tasks["t1"].request(DAY, granularity=LockGranularity.SEGMENT),))
        )
    story.ask("t1", SHARED)
    with pytest.raises(Conflict, match="same priority"):
        story.ask("t2", SHARED)
    with pytest.raises(Conflict, match="a different task"):
        story.add(task("t1", "g9"))


def test_what_goes_with_a_task_is_told_with_the_last_of_its_replicas(story: Story) -> None:
    story.add(task("a1", "g", allocator="g"), task("a2", "g", allocator="g"), task("r"))
    story.ask("r", REPLACE)
    assert story.remove("a1") == TaskRemoval("a1")
    assert story.remove("a2") == TaskRemoval("a2", last_of_allocator="g")
    assert story.remove("r") == TaskRemoval("r", had_replace_lock=True)
    assert story.remove("r") == TaskRemoval("r"), "once is enough"


def test_a_removal_that_cannot_be_stored_is_done_later(story: Story) -> None:
    story.add(task("t1", allocator="a"), task("t2"))
    story.ask("t1", REPLACE)
    story.store.fails = "before"
    with pytest.raises(Unavailable):
        story.remove("t1")
    with pytest.raises(Unavailable):
        story.ask("t2")
    story.store.fails = ""
    with pytest.raises(LockRevoked):
        story.ask("t1", REPLACE)
    assert story.say("t2") == "new", "the removal went with it"
    assert story.remove("t1") == TaskRemoval("t1", had_replace_lock=True, last_of_allocator="a")
    story.check_stored()
    story.remove("t2")
    assert story.box.is_empty


def test_what_may_have_been_stored_after_all_is_set_right(story: Story) -> None:
    story.add(task("t1", priority=1), task("t2", priority=2))
    story.ask("t1")
    story.store.fails = "after"
    with pytest.raises(Unavailable):
        story.ask("t2", interval=hours(0, 1))
    with pytest.raises(Unavailable):
        story.release("t1")
    assert story.held("t1") == [(EXCLUSIVE, DAY, False)]
    story.store.fails = ""
    story.ask("t1", interval=hours(30, 31))
    story.check_stored()
