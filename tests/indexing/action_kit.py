"""A handler of actions with tasks that a test names, and what such tests say."""

from __future__ import annotations

from indexing_kit import RecordedNotices, make_task
from mailbox_kit import InlineLanes
from metadata_kit import MemoryMetadata

from penstock.core.intervals import Interval
from penstock.indexing.actions import PublishSegments, SegmentAllocate
from penstock.indexing.engine import RowCounts
from penstock.indexing.lockbox.lock_store import MetadataLockStore
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.overlord.action_handler import ActionHandler
from penstock.indexing.overlord.lock_requests import lock_task
from penstock.indexing.overlord.task_index import ActiveTask
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.storage.metadata import SegmentRow, segment_id
from penstock.testing.clock import VirtualClock

DAY = Interval.parse("2024-01-01/2024-01-02")
NEXT_DAY = Interval.parse("2024-01-02/2024-01-03")
NOTHING = RowCounts(0, 0, 0, 0, 0)


class Desk:
    """A handler with tasks that a test names."""

    def __init__(self, folder, lanes=None) -> None:
        self.clock = VirtualClock()
        self.metadata = MemoryMetadata(self.clock)
        lanes = lanes or InlineLanes()
        self.lockboxes = Lockboxes(MetadataLockStore(self.metadata.locks), lanes, clock=self.clock)
        self.lockboxes.sync([])
        self.notices = RecordedNotices()
        self.tasks = {}
        self.handler = ActionHandler(
            self.metadata, self.lockboxes, lanes, self, self.notices, self.clock
        )

    def active_task(self, task_id):
        return self.tasks.get(task_id)

    def of_supervisor(self, supervisor_id):
        return {
            i: ActiveTask(t, 0)
            for i, t in self.tasks.items()
            if getattr(t, "supervisor_id", "") == supervisor_id
        }

    def add(self, task):
        self.tasks[task.id] = task
        self.lockboxes.add(lock_task(task)).result()
        return task

    def end(self, task_id):
        self.lockboxes.remove(lock_task(self.tasks.pop(task_id))).result()

    def do(self, task_id, action):
        return action.parse_result(self.handler.perform(task_id, action.to_json()))


def stream(name, start=0, *, supervisor="flights", **context):
    return make_task(
        {0: start},
        id=name,
        base_sequence_name=f"base-{name}",
        supervisor_id=supervisor,
        context=context,
    )


def batch(name, *, priority=50, datasource="flights", **context):
    return parse_batch_task(
        {
            "type": "noop",
            "id": name,
            "dataSource": datasource,
            "context": {"priority": priority, **context},
        }
    )


def allocate(desk, name, *intervals, sequence=None):
    sequence = sequence or f"base-{name}_0"
    return desk.do(name, SegmentAllocate(sequence, tuple(intervals or (DAY,))))


def rows(places, datasource="flights"):
    return tuple(
        SegmentRow(
            id=segment_id(datasource, p.interval, p.version, p.partition_number),
            datasource=datasource,
            interval=p.interval,
            version=p.version,
            partition_number=p.partition_number,
            core_partitions=p.core_partitions,
            payload={"loadSpec": {"type": "local", "path": f"/x/{p.version}/{p.partition_number}"}},
        )
        for p in places
    )


def publish(desk, name, places, *, start=None, end=None, sequence=None, kind="insert"):
    sequence = sequence or f"base-{name}_0"
    segments = rows(places)
    return desk.do(name, PublishSegments(sequence, segments, start, end, NOTHING, kind=kind))
