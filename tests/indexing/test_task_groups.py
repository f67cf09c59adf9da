"""Which offsets nobody reads, and where tasks begin: the choices of a supervisor."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from indexing_kit import make_task

from penstock.indexing.batches import Available
from penstock.indexing.supervisor.groups import (
    GroupPhase,
    StartPlan,
    TaskGroup,
    find_gaps,
    first_offsets,
    plan_starts,
)


def group(start, end=None, *, number=0):
    name = f"{start}-{end}"
    phase = GroupPhase.READING if end is None else GroupPhase.PENDING
    task = make_task(start, id=name, base_sequence_name=name, group_id=number)
    made = TaskGroup(task, phase, 0, end=end)
    made.add(task, 0.0, 0)
    return made


def gaps(committed, *groups):
    return [(gap.plan.start, gap.plan.end) for gap in find_gaps(committed, groups)]


def test_a_chain_without_holes_has_no_gap():
    assert gaps({0: 5}, group({0: 5}, {0: 9}), group({0: 9})) == []
    assert gaps({0: 7}, group({0: 5}, {0: 9}), group({0: 9})) == []
    assert gaps({}, group({0: 5})) == []


def test_what_a_lost_task_left_is_a_gap():
    assert gaps({0: 5}, group({0: 9})) == [({0: 5}, {0: 9})]
    chain = (group({0: 5}, {0: 9}), group({0: 12}, {0: 20}), group({0: 20}))
    assert gaps({0: 5}, *chain) == [({0: 9}, {0: 12})]


def test_only_the_stream_partitions_that_are_missing_are_read_again():
    assert gaps({0: 5, 1: 9}, group({0: 9, 1: 9})) == [({0: 5}, {0: 9})]


def test_nothing_behind_a_task_whose_end_is_not_known_is_a_gap():
    assert gaps({0: 5}, group({0: 5}), group({0: 9})) == []


def test_tasks_of_other_groups_may_come_before():
    """Two groups become one: the reader of both begins behind each."""
    before = (group({0: 0}, {0: 9}), group({1: 0}, {1: 4}, number=1))
    assert gaps({0: 0, 1: 0}, *before, group({0: 9, 1: 4})) == []


@given(
    cuts=st.lists(st.integers(0, 30), min_size=2, max_size=6, unique=True).map(sorted),
    lost=st.sets(st.integers(0, 5)),
    committed=st.integers(0, 30),
)
def test_every_offset_is_committed_or_read_or_in_a_gap_once(cuts, lost, committed):
    committed = min(committed, cuts[-1])
    chain = [group({0: a}, {0: b}) for a, b in itertools.pairwise(cuts)]
    alive = [g for n, g in enumerate(chain) if n not in lost and g.end[0] > committed]
    last = group({0: cuts[-1]})
    found = find_gaps({0: committed}, [*reversed(alive), last])
    spans = [(g.task.start_offsets[0], g.end[0]) for g in alive]
    spans += [(gap.plan.start[0], gap.plan.end[0]) for gap in found]
    for offset in range(committed, cuts[-1]):
        assert sum(begin <= offset < end for begin, end in spans) == 1, (offset, spans)


def test_groups_begin_behind_what_publishes_or_at_what_is_committed():
    committed = {0: 5, 1: 6, 2: 7}
    plans = plan_starts(range(3), committed, [group({0: 5, 2: 7}, {0: 9, 2: 8})], 2)
    assert plans == [StartPlan(0, {0: 9, 2: 8}), StartPlan(1, {1: 6})]
    assert plan_starts(range(3), committed, [group({0: 5, 2: 7}), group({1: 6})], 2) == []
    assert plan_starts(range(4), {0: 5}, [], 1) == [StartPlan(0, {0: 5})]


def test_messages_that_are_gone_are_named():
    there = {0: Available("f", 2, 8)}
    assert StartPlan(0, {0: 2}).gone(there) == {}
    assert StartPlan(0, {0: 8}).gone(there) == {}
    assert StartPlan(0, {0: 2}, {0: 8}).gone(there) == {}
    assert StartPlan(0, {0: 1}).gone(there).keys() == {0}
    assert StartPlan(0, {0: 9}).gone(there).keys() == {0}
    assert StartPlan(0, {0: 2}, {0: 9}).gone(there).keys() == {0}


def test_the_first_look_decides_and_later_ones_begin_at_the_earliest():
    there = {0: Available("f", 2, 8), 1: Available("f", 3, 9)}
    assert first_offsets(there, None, earliest=False) == {0: 8, 1: 9}
    assert first_offsets(there, None, earliest=True) == {0: 2, 1: 3}
    assert first_offsets(there, {0: 4}, earliest=False) == {1: 3}
