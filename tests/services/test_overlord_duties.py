"""Which duties an overlord has, by the options of its process."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from penstock.core.intervals import Interval
from penstock.indexing.lockbox.lock_store import MetadataLockStore
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.overlord.duties import DutyTools
from penstock.indexing.overlord.task_index import TaskIndex
from penstock.mailbox.lanes import ThreadLanes
from penstock.segments.deep_storage import DeepStore
from penstock.services.options.table import PenstockOptions
from penstock.services.roles.overlord import duties_of
from penstock.storage.metadata import MetadataStore, PublishRequest, SegmentRow, segment_id
from penstock.testing.clock import VirtualClock

DAY = Interval(0, 86_400_000)


@pytest.mark.parametrize(("after", "left"), [(None, 1), ("P30D", 1), ("P1D", 0)])
def test_unused_segments_are_deleted_only_if_it_is_asked_for(tmp_path, after, left):
    clock = VirtualClock()
    metadata = MetadataStore.open(f"sqlite:///{tmp_path}/m.db", clock=clock)
    lanes = ThreadLanes("locks")
    lockboxes = Lockboxes(MetadataLockStore(metadata.locks), lanes, clock=clock)
    lockboxes.sync([])
    name = segment_id("flights", DAY, "v", 0)
    row = SegmentRow(name, "flights", DAY, "v", 0, 0, {"loadSpec": {"type": "tombstone"}})
    metadata.publish(PublishRequest("t", "flights", (row,)))
    metadata.segments.mark_unused([name])
    clock.advance(10 * 86_400)
    tools = DutyTools(
        metadata, lockboxes, TaskIndex(), lambda _task: Future(), Future, clock, lambda: "x"
    )
    options = PenstockOptions(kill_unused_after=after)
    for duty in duties_of(options, DeepStore(str(tmp_path / "deep")), tools):
        duty.run()
    assert len(metadata.segments.every()) == left
    lockboxes.close()
    lanes.close()
    metadata.close()
