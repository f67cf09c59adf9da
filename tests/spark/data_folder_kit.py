"""A data folder with published segments and announced files, as indexing leaves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from starlette.routing import BaseRoute

from penstock.core.intervals import Interval, parse_time
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment, SegmentId, ShardSpec
from penstock.services.api.router import TableRoutes
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.spark.topic.row_shape import TIME_TYPE
from penstock.storage.metadata import AnnouncedFile, MetadataStore, PublishRequest, TaskRow
from penstock.storage.sqlite_urls import sqlite_url
from penstock.testing.clock import VirtualClock

SPARK_TYPES = {
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.float32(): "float",
    pa.bool_(): "boolean",
    TIME_TYPE: "timestamp",
}
JANUARY = Interval.parse("2013-01-01/2013-02-01")
FEBRUARY = Interval.parse("2013-02-01/2013-03-01")


def table(times: Sequence[str], **columns: pa.Array) -> pa.Table:
    """Rows of these times, `__time` first."""
    micros = pa.array([parse_time(time) * 1000 for time in times], pa.int64())
    return pa.table({"__time": micros.cast(TIME_TYPE), **columns})


def columns_of(rows: pa.Table) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, SPARK_TYPES[field.type]) for field in rows.schema)


class DataFolder:
    """The metadata store and the deep storage of one Penstock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MetadataStore.open(sqlite_url(f"{folder}/metadata.db"), clock=VirtualClock())
        self.deep_storage = str(folder / "segments")
        self.source = VisibleFiles(self.store, self.deep_storage)
        self._number = 0

    def publish(
        self,
        datasource: str,
        rows: pa.Table,
        interval: Interval = JANUARY,
        *,
        version: str = "v1",
        number: int = 0,
    ) -> Segment:
        """Push and publish a segment."""
        name = SegmentId(datasource, interval, version, number)
        local = self._write(rows)
        deep_store = DeepStore(self.deep_storage)
        deep_store.make_root()
        pushed = deep_store.push(str(local), name, f"u{self._number}")
        segment = Segment(
            datasource=datasource,
            interval=interval,
            version=version,
            load_spec=pushed.load_spec,
            shard_spec=ShardSpec(number),
            size=pushed.size,
            total_rows=rows.num_rows,
            columns=columns_of(rows),
        )
        outcome = self.store.publish(PublishRequest("t", datasource, (segment.to_row(),)))
        assert outcome.ok, outcome.reason
        return segment

    def file(self, segment: Segment) -> Path:
        """Return where the file of a segment is."""
        return Path(DeepStore(self.deep_storage).location(segment.load_spec))

    def announce(self, datasource: str, rows: pa.Table, interval: Interval = JANUARY) -> Path:
        """Show rows that are not published, as a running task does."""
        return self.announce_together(datasource, [rows], interval)[0]

    def announce_together(
        self, datasource: str, parts: Sequence[pa.Table], interval: Interval = JANUARY
    ) -> list[Path]:
        """Show rows that become one segment."""
        paths = [self._write(rows) for rows in parts]
        task = f"task-{self._number}"
        self.store.tasks.insert_new([TaskRow(task, datasource, "index_penstock", "g", {})])
        files = []
        for path, rows in zip(paths, parts, strict=True):
            payload: Mapping[str, object] = {
                "columns": [list(pair) for pair in columns_of(rows)],
                "bytes": path.stat().st_size,
            }
            files.append(AnnouncedFile(str(path), interval, rows.num_rows, payload))
        assert self.store.announce(task, datasource, f"sequence-{self._number}", files)
        return paths

    def routes(self) -> list[BaseRoute]:
        """Return the router's routes of files."""
        return TableRoutes(self.source, self.store, DeepStore(self.deep_storage)).routes()

    def close(self) -> None:
        self.store.close()

    def _write(self, rows: pa.Table) -> Path:
        self._number += 1
        path = self.folder / f"local-{self._number}.parquet"
        pq.write_table(rows, path, store_schema=False)
        return path
