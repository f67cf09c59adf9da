"""A pool of the embedded engine, and files for it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.clock import SystemClock, pause
from penstock.core.intervals import Interval
from penstock.fastpath.compiled_query import CompiledQuery, FastValue
from penstock.fastpath.engine_pool import EnginePool, EngineRequest, PoolOptions
from penstock.fastpath.engine_protocol import Relation
from penstock.fastpath.snapshot_relations import SnapshotRelations, answer_schema
from penstock.services.host.system_call_filter import engine_call_filter
from penstock.spark.tables.table_files import Columns, TableFile

DAY_MS = 86_400_000
CLOCK = SystemClock()
COLUMNS: Columns = (("__time", "timestamp"), ("city", "string"), ("amount", "bigint"))
ENDLESS = "SELECT count(*) AS n FROM range(1000000000000) t(x) WHERE x % 7 = 3"
RELATIONS = SnapshotRelations()
N: Columns = (("n", "bigint"),)


def times(*of_ms: int) -> pa.Array:
    return pa.array([ms * 1_000 for ms in of_ms]).cast(pa.timestamp("us", "UTC"))


def written(
    path: Path,
    rows: pa.Table,
    columns: Columns = COLUMNS,
    clip: Interval | None = None,
    day: int = 0,
) -> TableFile:
    """Write rows of a day as a file of a datasource."""
    pq.write_table(rows, path, store_schema=False)
    interval = Interval(day * DAY_MS, (day + 1) * DAY_MS)
    return TableFile(str(path), columns, interval, clip, size_bytes=path.stat().st_size)


def day_of_rows(folder: Path, day: int, clip: Interval | None = None) -> TableFile:
    """Three rows of a day."""
    start = day * DAY_MS
    rows = pa.table(
        {
            "__time": times(start, start + 1_000, start + DAY_MS - 1),
            "city": ["Oslo", None, "Rome"],
            "amount": pa.array([day, 10, None], pa.int64()),
        }
    )
    return written(folder / f"{day}.parquet", rows, clip=clip, day=day)


def compiled(
    sql: str,
    columns: Columns,
    read: Columns = COLUMNS,
    parameters: Sequence[FastValue] = (),
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> CompiledQuery:
    return CompiledQuery("clicks", sql, tuple(parameters), read, columns, start_ms, end_ms)


@contextmanager
def running_pool(
    folder: Path,
    processes: int = 1,
    first: Callable[[], Iterable[EngineRequest]] = tuple,
    **more: object,
) -> Iterator[EnginePool]:
    calls = engine_call_filter(platform.machine())
    options = PoolOptions(
        [str(folder)],
        processes,
        environment=dict(os.environ),
        calls=calls,
        **more,  # type: ignore[arg-type]
    )
    pool = EnginePool(options, CLOCK)
    pool.start(first)
    try:
        yield pool
    finally:
        pool.stop()


def wait_ready(pool: EnginePool, processes: int = 1, not_ids: Sequence[int] = ()) -> list[int]:
    until_s = CLOCK.monotonic_s() + 120
    while CLOCK.monotonic_s() < until_s:
        ids = pool.process_ids()
        if len(ids) == processes and not set(ids) & set(not_ids):
            return ids
        pause(CLOCK, 0.02)
    raise AssertionError("no process became ready")


def wait_busy(process_id: int) -> None:
    """Wait until a process computes."""
    started, until_s = _cpu_ticks(process_id), CLOCK.monotonic_s() + 120
    while _cpu_ticks(process_id) < started + 10:
        assert CLOCK.monotonic_s() < until_s
        pause(CLOCK, 0.02)


def _cpu_ticks(process_id: int) -> int:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def ask(
    pool: EnginePool,
    query: CompiledQuery,
    files: Sequence[TableFile] = (),
    timeout_s: float = 60.0,
    rows_max: int = 100,
) -> list[dict[str, object]]:
    token, relation = RELATIONS.of(query, files)
    request = request_of(query, token, relation, rows_max)
    found = pool.run(request, CLOCK.monotonic_s() + timeout_s, pool.new_call())
    rows: list[dict[str, object]] = found.to_pylist()
    return rows


def request_of(
    query: CompiledQuery, token: str, relation: Relation, rows_max: int = 100
) -> EngineRequest:
    schema = answer_schema(query.columns)
    return EngineRequest(token, relation, query.sql, query.parameters, schema, rows_max)
