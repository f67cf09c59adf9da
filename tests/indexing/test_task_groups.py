"""Which offsets nobody reads, and where tasks begin: the choices of a supervisor."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.state_machine import IMPOSSIBLE, Transition
from penstock.indexing.ports import TaskPhase, TaskReport
from penstock.indexing.read_plan import AvailableRange
from penstock.indexing.supervisor.task_groups import (
    TASK_GROUP_MACHINE,
    GroupEffect,
    GroupEvent,
    GroupState,
    ReplicaChanges,
    StartPlan,
    TaskGroup,
    find_gaps,
    first_offsets,
    plan_starts,
)
from tests.indexing.indexing_kit import make_task


def group(
    start: Mapping[int, int], end: Mapping[int, int] | None = None, *, number: int = 0
) -> TaskGroup:
    name = f"{start}-{end}"
    state = GroupState.READING if end is None else GroupState.PUBLISHING
    task = make_task(start, id=name, base_sequence_name=name, group_id=number)
    made = TaskGroup(task, state, 0, end=end)
    made.add(task, 0.0, 0)
    return made


def gaps(
    committed: Mapping[int, int], *groups: TaskGroup
) -> list[tuple[Mapping[int, int], Mapping[int, int] | None]]:
    return [(gap.plan.start, gap.plan.end) for gap in find_gaps(committed, groups)]


def _ends(one: TaskGroup | StartPlan) -> Mapping[int, int]:
    assert one.end is not None
    return one.end


def test_a_chain_without_holes_has_no_gap() -> None:
    assert gaps({0: 5}, group({0: 5}, {0: 9}), group({0: 9})) == []
    assert gaps({0: 7}, group({0: 5}, {0: 9}), group({0: 9})) == []
    assert gaps({}, group({0: 5})) == []


def test_what_a_lost_task_left_is_a_gap() -> None:
    assert gaps({0: 5}, group({0: 9})) == [({0: 5}, {0: 9})]
    chain = (group({0: 5}, {0: 9}), group({0: 12}, {0: 20}), group({0: 20}))
    assert gaps({0: 5}, *chain) == [({0: 9}, {0: 12})]


def test_only_the_stream_partitions_that_are_missing_are_read_again() -> None:
    assert gaps({0: 5, 1: 9}, group({0: 9, 1: 9})) == [({0: 5}, {0: 9})]


def test_nothing_behind_a_task_whose_end_is_not_known_is_a_gap() -> None:
    assert gaps({0: 5}, group({0: 5}), group({0: 9})) == []


def test_tasks_of_other_groups_may_come_before() -> None:
    """Two groups become one: the reader of both begins behind each."""
    before = (group({0: 0}, {0: 9}), group({1: 0}, {1: 4}, number=1))
    assert gaps({0: 0, 1: 0}, *before, group({0: 9, 1: 4})) == []


@given(
    cuts=st.lists(st.integers(0, 30), min_size=2, max_size=6, unique=True).map(sorted),
    lost=st.sets(st.integers(0, 5)),
    committed=st.integers(0, 30),
)
def test_every_offset_is_committed_or_read_or_in_a_gap_once(
    cuts: Sequence[int], lost: set[int], committed: int
) -> None:
    committed = min(committed, cuts[-1])
    chain = [group({0: a}, {0: b}) for a, b in itertools.pairwise(cuts)]
    alive = [g for n, g in enumerate(chain) if n not in lost and _ends(g)[0] > committed]
    last = group({0: cuts[-1]})
    found = find_gaps({0: committed}, [*reversed(alive), last])
    spans = [(g.task.start_offsets[0], _ends(g)[0]) for g in alive]
    spans += [(gap.plan.start[0], _ends(gap.plan)[0]) for gap in found]
    for offset in range(committed, cuts[-1]):
        assert sum(begin <= offset < end for begin, end in spans) == 1, (offset, spans)


def test_groups_begin_behind_what_publishes_or_at_what_is_committed() -> None:
    committed = {0: 5, 1: 6, 2: 7}
    plans = plan_starts(range(3), committed, [group({0: 5, 2: 7}, {0: 9, 2: 8})], 2)
    assert plans == [StartPlan(0, {0: 9, 2: 8}), StartPlan(1, {1: 6})]
    assert plan_starts(range(3), committed, [group({0: 5, 2: 7}), group({1: 6})], 2) == []
    assert plan_starts(range(4), {0: 5}, [], 1) == [StartPlan(0, {0: 5})]


def test_messages_that_are_gone_are_named() -> None:
    there = {0: AvailableRange("f", 2, 8)}
    assert StartPlan(0, {0: 2}).gone(there) == {}
    assert StartPlan(0, {0: 8}).gone(there) == {}
    assert StartPlan(0, {0: 2}, {0: 8}).gone(there) == {}
    assert StartPlan(0, {0: 1}).gone(there).keys() == {0}
    assert StartPlan(0, {0: 9}).gone(there).keys() == {0}
    assert StartPlan(0, {0: 2}, {0: 9}).gone(there).keys() == {0}


def test_the_first_look_decides_and_later_ones_begin_at_the_earliest() -> None:
    there = {0: AvailableRange("f", 2, 8), 1: AvailableRange("f", 3, 9)}
    assert first_offsets(there, None, earliest=False) == {0: 8, 1: 9}
    assert first_offsets(there, None, earliest=True) == {0: 2, 1: 3}
    assert first_offsets(there, {0: 4}, earliest=False) == {1: 3}


# replicas and their server priorities


def replicated(*priorities: int, workers: set[int] | tuple[object, ...] | None = None) -> TaskGroup:
    """A group with a replica of each priority, those of one priority further on one by one."""
    task = make_task({0: 0}, base_sequence_name="B")
    made = TaskGroup(task, GroupState.READING, 0)
    for number, priority in enumerate(priorities):
        changes = {"id": f"t{number}", "server_priority": priority}
        replica = made.add(task.model_copy(update=changes), 0.0, 0)
        replica.has_worker = workers is None or number in workers
        current = {0: number}
        replica.report = TaskReport(TaskPhase.READING, current, current, None, {}, {})
    return made


def test_a_priority_that_no_replica_has_lacks_and_one_too_many_goes() -> None:
    assert replicated(1, 0).replica_changes((1, 0)) == ReplicaChanges((), ())
    assert replicated().replica_changes((1, 1, -2)) == ReplicaChanges((1, 1, -2), ())
    assert replicated(1, 0).replica_changes((2, 1)) == ReplicaChanges((2,), ("t1",))
    # Of equal ones the furthest stays, but one with a worker before all others.
    assert replicated(0, 0).replica_changes((0,)) == ReplicaChanges((), ("t0",))
    assert replicated(0, 0, workers={0}).replica_changes((0,)) == ReplicaChanges((), ("t1",))


def test_replica_changes_end_the_work_if_nobody_who_has_a_worker_stays() -> None:
    one = replicated(1, 0)
    assert one.is_at_end_with(one.replica_changes((3, 2)))
    assert not one.is_at_end_with(one.replica_changes((3, 1)))
    # The one that is wanted has no worker yet, and may get none beside the other.
    one = replicated(1, 0, workers={1})
    assert one.is_at_end_with(one.replica_changes((1,)))
    one = replicated(1, 0, workers=())
    assert not one.is_at_end_with(one.replica_changes((2,)))


priorities = st.lists(st.integers(-2, 2), max_size=10)


@given(priorities, priorities, st.sets(st.integers(0, 9)))
def test_no_more_replicas_change_than_must(
    there: Sequence[int], wanted: Sequence[int], workers: set[int]
) -> None:
    one = replicated(*there, workers=workers)
    changes = one.replica_changes(wanted)
    gone = [one.replicas[task_id].task.server_priority for task_id in changes.surplus]
    after = Counter(there) - Counter(gone) + Counter(changes.missing)
    assert after == Counter(wanted)
    assert not set(gone) & set(changes.missing)
    assert list(changes.missing) == sorted(changes.missing, reverse=True)


# the machine


_AGREEMENTS = {
    GroupEffect.AGREE_ON_END: {GroupEvent.END_AGREED, GroupEvent.END_NOT_AGREED},
    GroupEffect.AGREE_ON_CHECKPOINT: {
        GroupEvent.CHECKPOINT_AGREED,
        GroupEvent.CHECKPOINT_NOT_AGREED,
    },
}
_RESULTS = set().union(*_AGREEMENTS.values())
_OTHER_CALLS = {GroupEffect.CATCH_UP, GroupEffect.RESUME_TASK}
_IS_AGREEING = {GroupState.ROLLING, GroupState.CHECKPOINTING, GroupState.AGREEING_LATE}
_HAS_END = {GroupState.AGREEING_LATE, GroupState.PUBLISHING}


@dataclass(frozen=True)
class Facts:
    """Results of the effects of a walk so far.

    Attributes:
        state: State of the machine.
        agreement: The effect that began the agreement in progress. Its result may follow the end of
            the last task.
        has_end: The end of the group is set.
        has_deadline: The group must publish or make progress in time.
    """

    state: GroupState
    agreement: GroupEffect | None = None
    has_end: bool = False
    has_deadline: bool = False

    def may_be_reported(self, event: GroupEvent) -> bool:
        """Whether the owner may report an event now; the table must decide each of these."""
        if event in _RESULTS:
            return self.agreement is not None and event in _AGREEMENTS[self.agreement]
        if event is GroupEvent.OVERDUE:
            return self.has_deadline and self.state is not GroupState.ENDED
        # Reported for the groups of the supervisor, which an ended one is not.
        is_of_the_supervisor = event in {GroupEvent.UNASSIGNED, GroupEvent.EMPTY}
        return not is_of_the_supervisor or self.state is not GroupState.ENDED

    def after(self, event: GroupEvent) -> Facts:
        """Return the facts after an event, and check its effects."""
        outcome = TASK_GROUP_MACHINE.transition(self.state, event)
        assert isinstance(outcome, Transition)
        now = replace(self, state=outcome.state)
        if event in _RESULTS:
            now = replace(now, agreement=None)
        for effect in outcome.effects:
            if effect in _AGREEMENTS:
                assert now.agreement is None, "one agreement at a time"
                now = replace(now, agreement=effect)
            elif effect is GroupEffect.SET_END:
                assert not now.has_end, "an agreed end never changes"
                now = replace(now, has_end=True)
            elif effect is GroupEffect.SET_DEADLINE:
                now = replace(now, has_deadline=True)
            elif effect in _OTHER_CALLS:
                assert now.agreement is None, "tasks that it paused are not resumed by others"
        return now.checked(self)

    def checked(self, before: Facts) -> Facts:
        """Check the invariants between two events."""
        if self.state is GroupState.ENDED:
            return self
        assert before.state is not GroupState.ENDED
        assert self.has_end == self.has_deadline == (self.state in _HAS_END)
        assert (self.agreement is not None) == (self.state in _IS_AGREEING)
        assert (self.state is GroupState.ROLLING) <= (self.agreement is GroupEffect.AGREE_ON_END)
        if self.state is GroupState.CHECKPOINTING:
            assert self.agreement is GroupEffect.AGREE_ON_CHECKPOINT
        return self


def test_every_sequence_of_events_keeps_the_promises_and_reaches_every_cell() -> None:
    """All facts that any number of events can make: there are few."""
    left = [Facts(state) for state in TASK_GROUP_MACHINE.initial]
    known, reported = set(left), set()
    while left:
        facts = left.pop()
        for event in filter(facts.may_be_reported, GroupEvent):
            reported.add((facts.state, event))
            after = facts.after(event)
            if after not in known:
                known.add(after)
                left.append(after)
    assert {facts.state for facts in known} == set(GroupState)
    assert reported == {
        (state, event)
        for state in GroupState
        for event in GroupEvent
        if TASK_GROUP_MACHINE.outcome(state, event) is not IMPOSSIBLE
    }


def test_a_group_that_agrees_on_something_gets_no_other_task_in_line() -> None:
    for state in _IS_AGREEING:
        for event in (
            *(GroupEvent.LAGGING, GroupEvent.END_WANTED, GroupEvent.CHECKPOINT_WANTED),
            GroupEvent.FOUND_PAUSED,
        ):
            assert not isinstance(TASK_GROUP_MACHINE.outcome(state, event), Transition)


def test_groups_that_agree_or_publish_count_against_the_number_that_may_end() -> None:
    for state in GroupState:
        one = group({0: 5})
        one.state = state
        assert one.is_ending == (state in {*_IS_AGREEING, GroupState.PUBLISHING})
        assert one.is_publishing == (state in _HAS_END)
