"""A metadata store and a deep storage with segments and announced files, for table formats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.intervals import Interval
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment, SegmentId, ShardSpec
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.storage.metadata import AnnouncedFile, MetadataStore, PublishRequest, TaskRow
from penstock.testing.clock import VirtualClock

COLUMNS = (("__time", "timestamp"), ("n", "bigint"))
ROWS = 24


class PublishedWorld:
    """The rows of some days: one row each hour, numbered from a start."""

    def __init__(self, folder: Path, store: MetadataStore, clock: VirtualClock) -> None:
        self.folder, self.store, self.clock = folder, store, clock
        self.deep_storage = str(folder / "deep")
        self.deep_store = DeepStore(self.deep_storage)
        self.deep_store.make_root()
        self.source = VisibleFiles(store, self.deep_storage, clock)
        self.rows_published = 0

    def write(self, interval: Interval, first: int) -> Path:
        path = self.folder / f"{first}.parquet"
        step = (interval.end_ms - interval.start_ms) // ROWS
        times = [(interval.start_ms + at * step) * 1000 for at in range(ROWS)]
        columns = {
            "__time": pa.array(times, pa.timestamp("us", tz="UTC")),
            "n": pa.array(range(first, first + ROWS), pa.int64()),
        }
        pq.write_table(pa.table(columns), path)
        return path

    def publish(
        self,
        text: str,
        first: int,
        version: str = "v1",
        name: str = "clicks",
        rows: int = ROWS,
        columns: Sequence[str] = ("n",),
    ) -> None:
        """Publish a segment."""
        interval = Interval.parse(text)
        local = self.write(interval, first)
        id_ = SegmentId(name, interval, version)
        pushed = self.deep_store.push(str(local), id_, f"u{first}")
        segment = Segment(
            datasource=name,
            interval=interval,
            version=version,
            load_spec=pushed.load_spec,
            shard_spec=ShardSpec(0, 1),
            size=pushed.size,
            total_rows=rows,
            columns=(COLUMNS[0], *((name, "bigint") for name in columns)),
        )
        assert self.store.publish(PublishRequest(f"t{first}", name, (segment.to_row(),))).ok
        self.rows_published += ROWS

    def announce(self, text: str, first: int, type_: str = "bigint") -> None:
        """Announce rows of a running task."""
        interval = Interval.parse(text)
        self.store.tasks.insert_new([TaskRow("t", "clicks", "index_penstock", "g", {})])
        payload = {"columns": [["__time", "timestamp"], ["n", type_]], "bytes": 500}
        file = AnnouncedFile(str(self.write(interval, first)), interval, ROWS, payload)
        assert self.store.announce("t", "clicks", "s", [file])
