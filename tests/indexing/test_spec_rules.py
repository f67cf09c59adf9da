"""Retention rules and automatic compaction: what matches, and what is made of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.intervals import ETERNITY, Interval, parse_time
from penstock.indexing.specs import SpecError, parse_supervisor
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.indexing.specs.compaction import (
    parse_cluster_compaction,
    parse_compaction,
)
from penstock.indexing.specs.partitions import DynamicPartitions
from penstock.indexing.specs.retention_rules import action_for, parse_rules, rules_to_json
from penstock.indexing.specs.supervisor_spec import SupervisorSpec

NOW = "2013-06-15T12:00:00Z"


def used(rule: dict[str, Any], segment: str) -> bool | None:
    """Return whether the rule keeps or drops the segment; None if it is not about it."""
    found = action_for(Interval.parse(segment), parse_rules([rule]), parse_time(NOW))
    return None if found.rule is None else found.is_used


LOAD: dict[str, Any] = {"type": "loadByPeriod", "period": "P1M", "includeFuture": False}
DROP = {"type": "dropByPeriod", "period": "P1M", "includeFuture": False}
BEFORE = {"type": "dropBeforeByPeriod", "period": "P1M"}
FUTURE = {"includeFuture": True}
MAY = {"interval": "2013-05-01/2013-06-01"}


@pytest.mark.parametrize(
    ("rule", "segment", "kept"),
    [
        ({"type": "loadForever"}, "2001-01-01/P1D", True),
        ({"type": "dropForever"}, "2001-01-01/P1D", False),
        ({"type": "broadcastForever"}, "2001-01-01/P1D", True),
        ({"type": "loadByInterval", **MAY}, "2013-05-31/P2D", True),
        ({"type": "loadByInterval", **MAY}, "2013-06-01/P1D", None),
        ({"type": "dropByInterval", **MAY}, "2013-05-31/P2D", None),
        ({"type": "dropByInterval", **MAY}, "2013-05-31/P1D", False),
        (LOAD, "2013-05-15T12:00Z/PT1H", True),
        (LOAD, "2013-05-15T11:00Z/PT1H", None),
        (LOAD, "2013-05-15T11:00Z/PT2H", True),
        (LOAD, "2013-06-15/P1D", True),
        (LOAD, "2013-06-16/P1D", None),
        (LOAD | FUTURE, "2013-06-16/P1D", True),
        (LOAD | FUTURE, "2013-05-15T11:00Z/PT1H", None),
        (DROP, "2013-05-16/P1D", False),
        (DROP, "2013-05-15/P1D", None),
        (DROP, "2013-06-15/P1D", None),
        (DROP | FUTURE, "2013-06-15/P1D", False),
        (DROP | FUTURE, "2013-05-15/P1D", None),
        (BEFORE, "2013-05-15T11:00Z/PT1H", False),
        (BEFORE, "2013-05-15T11:00Z/PT2H", None),
        ({"type": "loadByPeriod", "period": "P9000Y"}, "0001-01-01/P1D", True),
    ],
)
def test_which_segments_a_rule_is_about(
    rule: dict[str, Any], segment: str, kept: bool | None
) -> None:
    assert used(rule, segment) is kept


def test_the_first_rule_that_matches_wins_and_without_one_segments_stay() -> None:
    rules = parse_rules([LOAD, {"type": "dropForever"}])
    old, new = Interval.parse("2012-01-01/P1D"), Interval.parse("2013-06-01/P1D")
    now = parse_time(NOW)
    assert action_for(new, rules, now).action == "load"
    assert action_for(old, rules, now).action == "drop"
    assert action_for(old, (), now).is_used
    assert action_for(old, (), now).rule is None


@given(st.sampled_from([LOAD, DROP, BEFORE]), st.integers(0, 10**14), st.integers(1, 10**12))
def test_rules_match_all_of_the_calendar(rule: dict[str, Any], start: int, length: int) -> None:
    start %= ETERNITY.end_ms - length
    for now in (ETERNITY.start_ms, 0, ETERNITY.end_ms):
        action_for(Interval(start, start + length), parse_rules([rule]), now)


def test_rules_survive_their_json() -> None:
    rules = parse_rules(json.dumps([LOAD, DROP, BEFORE, {"type": "loadByInterval", **MAY}]))
    assert parse_rules(rules_to_json(rules)) == rules


@pytest.mark.parametrize(
    ("rule", "place", "hint"),
    [
        ({"type": "loadByPeriot"}, "rules[0].type", 'did you mean "loadByPeriod"'),
        ({"type": "loadByPeriod"}, "rules[0].period", "is required"),
        ({"type": "loadByPeriod", "period": "1 month"}, "rules[0].period", "P1M"),
        (
            {"type": "loadForever", "tieredReplicants": {"hot": -1}},
            "rules[0].tieredReplicants.hot",
            "at least 0",
        ),
    ],
)
def test_mistakes_in_rules(rule: dict[str, Any], place: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_rules([rule])
    assert hint in {m.place: m.message for m in caught.value.mistakes}[place]


def test_a_compaction_makes_tasks() -> None:
    config = parse_compaction(
        {
            "dataSource": "d",
            "granularitySpec": {"segmentGranularity": "month"},
            "maxRowsPerSegment": 7,
            "taskContext": {"useConcurrentLocks": True},
        }
    )
    task = config.task(Interval.parse("2013-01-05/2013-01-06"))
    assert task.priority == 25
    assert task.settings.use_concurrent_locks
    assert isinstance(task.tuning_config.partitions, DynamicPartitions)
    assert task.tuning_config.partitions.rows_max == 7
    (wish,) = task.lock_intents()
    assert str(wish.interval) == "2013-01-01T00:00:00.000Z/2013-02-01T00:00:00.000Z"
    assert parse_batch_task(task.to_json()) == task
    assert parse_compaction(config.to_json()) == config


def test_slots_of_compaction() -> None:
    assert parse_cluster_compaction({}).slots(50) == 5
    assert parse_cluster_compaction({}).slots(2) == 1
    assert parse_cluster_compaction({"maxCompactionTaskSlots": 3}).slots(50) == 3
    assert parse_cluster_compaction({"compactionTaskSlotRatio": 0}).slots(50) == 0


def test_nothing_need_be_left_alone() -> None:
    config = parse_compaction({"dataSource": "d", "skipOffsetFromLatest": "PT0S"})
    assert parse_compaction(config.to_json()) == config
    with pytest.raises(SpecError, match=r"skipOffsetFromLatest: .* is not an ISO 8601 period"):
        parse_compaction({"dataSource": "d", "skipOffsetFromLatest": "0"})
    with pytest.raises(SpecError, match=r"period: .* is a period of length zero"):
        parse_rules([{"type": "dropByPeriod", "period": "PT0S"}])


def test_nobody_is_the_submitter_of_a_task_that_the_overlord_creates() -> None:
    given: dict[str, Any] = {"submitter": "user:alice", "priority": 3}
    config = parse_compaction({"dataSource": "clicks", "taskContext": given})
    assert config.task(Interval.parse("2013-01-01/P1D")).context == {"priority": 3}
    schema: dict[str, Any] = {
        "dataSource": "c",
        "timestampSpec": {"column": "t"},
        "dimensionsSpec": {},
    }
    spec: dict[str, Any] = {"dataSchema": schema, "ioConfig": {"topic": "clicks"}}
    supervisor = parse_supervisor({"type": "penstock", "spec": spec, "context": given})
    assert isinstance(supervisor, SupervisorSpec)
    assert supervisor.context == {"priority": 3}
