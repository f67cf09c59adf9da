"""Records survive the way into their table and back."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, insert, select

from penstock.core.intervals import Interval
from penstock.storage.metadata import row_mapper, schema
from penstock.storage.metadata.rows.cluster import AuditRow, LeaseRow, RuleRow, SupervisorRow
from penstock.storage.metadata.rows.pending_segments import PendingRow
from penstock.storage.metadata.rows.publish import CommittedRow, CountsRow
from penstock.storage.metadata.rows.segments import SegmentRow
from penstock.storage.metadata.rows.tasks import LockRow, TaskRow, TaskSummary

DAY = Interval(0, 86_400_000)
LOCK = ("t", "d", "timeChunk", "EXCLUSIVE", "g", DAY, "v", 50)
TASK = ("t", "d", "noop", "g")
# Mapper, record, and the values that its writer adds.
CASES = [
    (row_mapper.TASKS, TaskRow(*TASK, {"a": 1}, status={"b": 2}, created_ms=3, updated_ms=4), {}),
    (row_mapper.LOCKS, LockRow(*LOCK, revoked=True, created_ms=7), {}),
    (row_mapper.LOCKS, LockRow(*LOCK, partition_number=3), {}),
    (
        row_mapper.SUPERVISORS,
        SupervisorRow("s", {"a": [1]}, 2, tombstone=True),
        {"released": False},
    ),
    (
        row_mapper.SEGMENTS,
        SegmentRow("i", "d", DAY, "v", 1, 2, {"a": None}, used=False, upgraded_from="x"),
        {"changed_revision": 9, "bytes": 8, "row_count": 7, "publish_id": 6},
    ),
    (row_mapper.PENDING, PendingRow("d", DAY, "v", 1, 2, "s", 3, "p", "a", "u"), {}),
    (
        row_mapper.COMMITTED,
        CommittedRow("id", {2: 5, 11: 7}),
        {"supervisor_id": "s", "updated_ms": 1},
    ),
    (row_mapper.COUNTS, CountsRow(1, 2, 3, 4, 5, 6), {"supervisor_id": "s"}),
    (row_mapper.LEASES, LeaseRow("s", "i", "h", 80, 1, {"a": 1}, 2), {}),
    (row_mapper.RULES, RuleRow("d", ({"type": "loadForever"},), 3), {}),
    (row_mapper.AUDIT, AuditRow("k", "t", "me", "why", {"a": 1}, 3), {"serial": 1}),
]


@pytest.mark.parametrize(
    ("mapper", "record", "added"), CASES, ids=[type(case[1]).__name__ for case in CASES]
)
def test_a_record_survives_its_table(mapper, record, added) -> None:
    engine = create_engine("sqlite://")
    schema.tables.create_all(engine)
    table = mapper.columns[0].table
    with engine.begin() as connection:
        connection.execute(insert(table), [mapper.values(record) | added])
        (found,) = connection.execute(select(table))
    assert mapper.record(found) == record
    engine.dispose()


def test_a_summary_is_a_task_without_its_payload() -> None:
    engine = create_engine("sqlite://")
    schema.tables.create_all(engine)
    task = TaskRow(*TASK, {"a": 1}, created_ms=3, updated_ms=4)
    with engine.begin() as connection:
        connection.execute(insert(schema.tasks), [row_mapper.TASKS.values(task)])
        (found,) = connection.execute(select(*row_mapper.SUMMARIES.columns))
    summary = TaskSummary(*TASK, "RUNNING", {}, active=True, created_ms=3, updated_ms=4)
    assert row_mapper.SUMMARIES.record(found) == summary
    engine.dispose()
