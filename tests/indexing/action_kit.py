"""A handler of actions with tasks that a test names, and what such tests say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from penstock.core.intervals import Interval
from penstock.indexing.actions import PublishSegments, SegmentAllocate
from penstock.indexing.actions.segment_allocation import AllocatedSegment
from penstock.indexing.engine import RowCounts
from penstock.indexing.lockbox.lock_store import MetadataLockStore
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.overlord.action_handler import ActionHandler
from penstock.indexing.overlord.lock_requests import lock_task
from penstock.indexing.overlord.task_index import ActiveTask
from penstock.indexing.ports import TaskAction
from penstock.indexing.specs.batch.batch_task_specs import BatchTaskSpec, parse_batch_task
from penstock.indexing.task_spec import StreamTaskSpec, TaskSpec
from penstock.mailbox.lanes import Lanes, ThreadLanes
from penstock.segments.deep_storage import LOAD_SPEC_TYPE
from penstock.segments.layout import FILE_NAME, relative_folder
from penstock.segments.segment import Segment, SegmentId, ShardSpec
from penstock.storage.metadata import SegmentRow
from penstock.storage.metadata.rows.publish import PublishOutcome
from penstock.testing.clock import VirtualClock
from tests.harness.mailbox_kit import InlineLanes
from tests.harness.metadata_kit import MemoryMetadata
from tests.indexing.indexing_kit import RecordedNotices, make_task

Answer = TypeVar("Answer")
Task = TypeVar("Task", bound=TaskSpec)

DAY = Interval.parse("2024-01-01/2024-01-02")
NEXT_DAY = Interval.parse("2024-01-02/2024-01-03")
NOTHING = RowCounts(0, 0, 0, 0, 0)


class Desk:
    """A handler with tasks that a test names."""

    def __init__(self, folder: Path, lanes: ThreadLanes | None = None) -> None:
        self.clock = VirtualClock()
        self.metadata = MemoryMetadata(self.clock)
        given: Lanes = lanes or InlineLanes()
        self.lockboxes = Lockboxes(MetadataLockStore(self.metadata.locks), given, clock=self.clock)
        self.lockboxes.sync([])
        self.notices = RecordedNotices()
        self.tasks: dict[str, TaskSpec] = {}
        self.handler = ActionHandler(
            self.metadata, self.lockboxes, given, self, self.notices, self.clock
        )

    def active_task(self, task_id: str) -> TaskSpec | None:
        return self.tasks.get(task_id)

    def of_supervisor(self, supervisor_id: str) -> dict[str, ActiveTask]:
        return {
            i: ActiveTask(t, 0)
            for i, t in self.tasks.items()
            if getattr(t, "supervisor_id", "") == supervisor_id
        }

    def add(self, task: Task) -> Task:
        self.tasks[task.id] = task
        self.lockboxes.add(lock_task(task)).result()
        return task

    def end(self, task_id: str) -> None:
        self.lockboxes.remove(lock_task(self.tasks.pop(task_id))).result()

    def do(self, task_id: str, action: TaskAction[Answer]) -> Answer:
        return action.parse_result(self.handler.perform(task_id, action.to_json()))


def stream(
    name: str, start: int = 0, *, supervisor: str = "flights", **context: int
) -> StreamTaskSpec:
    return make_task(
        {0: start},
        id=name,
        base_sequence_name=f"base-{name}",
        supervisor_id=supervisor,
        context=context,
    )


def batch(
    name: str, *, priority: int = 50, datasource: str = "flights", **context: Any
) -> BatchTaskSpec:
    return parse_batch_task(
        {
            "type": "noop",
            "id": name,
            "dataSource": datasource,
            "context": {"priority": priority, **context},
        }
    )


def allocate(
    desk: Desk, name: str, *intervals: Interval, sequence: str | None = None
) -> tuple[AllocatedSegment, ...]:
    sequence = sequence or f"base-{name}_0"
    return desk.do(name, SegmentAllocate(sequence, tuple(intervals or (DAY,))))


def rows(places: Sequence[AllocatedSegment], datasource: str = "flights") -> tuple[SegmentRow, ...]:
    return tuple(
        Segment(
            datasource,
            p.interval,
            p.version,
            {"type": LOAD_SPEC_TYPE, "path": f"{relative_folder(segment, 'x')}/{FILE_NAME}"},
            ShardSpec(p.partition_number, p.core_partitions),
        ).to_row()
        for p in places
        for segment in [SegmentId(datasource, p.interval, p.version, p.partition_number)]
    )


def publish(
    desk: Desk,
    name: str,
    places: Sequence[AllocatedSegment],
    *,
    start: Mapping[int, int] | None = None,
    end: Mapping[int, int] | None = None,
    sequence: str | None = None,
    kind: Literal["insert", "append", "replace"] = "insert",
) -> PublishOutcome:
    sequence = sequence or f"base-{name}_0"
    segments = rows(places)
    return desk.do(name, PublishSegments(sequence, segments, start, end, NOTHING, kind=kind))
