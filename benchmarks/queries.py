"""Dashboards' queries over HTTP: the fast engine, Spark, plain Spark, and DuckDB by itself.

Three million rows of five columns are published as segments, one for each day. Each statement is
answered in turns by Penstock with `context.engine` `fast` and `spark`, by the same Spark over the
same files without Penstock, and by DuckDB over the same files in this process. The medians of the
rounds count, and the first answer of the fast engine, which may take twice its median. The limit of
the fast engine is 1.5 times DuckDB plus 5 ms. Then 50 clients send one of the statements each at
once. ``--rows N`` sets the number of rows.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.ingest import served_spark
from benchmarks.table import Row, print_rows
from penstock.broker.http_server.guard import HttpGuard
from penstock.core.access.access_control import AccessControl
from penstock.core.clock import SystemClock, pause
from penstock.core.intervals import Interval
from penstock.core.metrics import MetricRegistry
from penstock.fastpath.compiler import compile_query
from penstock.fastpath.engine_pool import EnginePool, pool_options
from penstock.fastpath.sql_service import FastSqlService
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment, SegmentId, ShardSpec
from penstock.services.api.asgi import application
from penstock.services.api.sql import PATH, SqlRoutes
from penstock.services.api.sql_answer import ENGINE_HEADER
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer, api_error
from penstock.services.options.option_values import HostPort
from penstock.services.roles.router import sql_parts
from penstock.spark.chunk_files import FileForm, write_table
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.storage.metadata import MetadataStore, PublishRequest

if TYPE_CHECKING:
    from penstock.services.emitter.events import Event

ROWS: Final = 3_000_000
DAYS: Final = 3
ROUNDS: Final = int(os.environ.get("PENSTOCK_BENCH_ROUNDS", "15"))
WARM_UP_ROUNDS: Final = 3
AT_ONCE: Final = 50
FORM: Final = FileForm(3, ("__time",), ("visitor",))
DAY_US: Final = 86_400_000_000
START_US: Final = 1_356_998_400_000_000
NAME: Final = "clicks"
COLUMNS: Final = (
    ("__time", "timestamp"),
    ("country", "string"),
    ("page", "string"),
    ("visitor", "string"),
    ("amount", "double"),
)
DAY: Final = (
    "__time >= TIMESTAMP '2013-01-02 00:00:00' AND __time < TIMESTAMP '2013-01-03 00:00:00'"
)
DAY_OF_DUCKDB: Final = (
    "__time >= make_timestamptz(1357084800000000) AND __time < make_timestamptz(1357171200000000)"
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of the benchmark, and the same for DuckDB."""

    name: str
    sql: str
    of_duckdb: str = ""

    @property
    def duckdb_sql(self) -> str:
        """Return DuckDB's statement."""
        return self.of_duckdb or self.sql


STATEMENTS: Final = (
    Statement("count", f"SELECT count(*) AS n FROM {NAME}"),
    Statement(
        "count of one day",
        f"SELECT count(*) AS n FROM {NAME} WHERE {DAY}",
        f"SELECT count(*) AS n FROM {NAME} WHERE {DAY_OF_DUCKDB}",
    ),
    Statement(
        "count and average by one of 5",
        f"SELECT country, count(*) AS n, avg(amount) AS mean FROM {NAME} GROUP BY country",
    ),
    Statement(
        "top ten sums by one of 400",
        f"SELECT page, sum(amount) AS total FROM {NAME} GROUP BY page ORDER BY total DESC LIMIT 10",
    ),
    Statement(
        "by hour and country",
        f"SELECT date_trunc('HOUR', __time) AS hour, country, count(*) AS n FROM {NAME}"
        " GROUP BY date_trunc('HOUR', __time), country",
        f"SELECT date_trunc('hour', make_timestamp(epoch_us(__time))) AS h, country, count(*) AS n"
        f" FROM {NAME} GROUP BY 1, 2",
    ),
    Statement(
        "approximate distinct of 50,000",
        f"SELECT approx_count_distinct(visitor) AS n FROM {NAME}",
    ),
    Statement(
        "one visitor's last 50 rows",
        f"SELECT * FROM {NAME} WHERE visitor = 'visitor 4711' ORDER BY __time DESC LIMIT 50",
    ),
)


class _NoEmitter:
    def emit(self, event: Event) -> None:
        """Drop the event."""


def rows_of(day: int, rows: int) -> pa.Table:
    """Return a day's clicks, in the order of their times."""
    rng = np.random.default_rng(day)
    time_us = START_US + day * DAY_US + np.sort(rng.integers(0, DAY_US, rows))

    def one_of(word: str, count: int) -> pa.Array:
        names = pa.array([f"{word} {number}" for number in range(count)])
        return names.take(pa.array(rng.integers(0, count, rows)))

    return pa.table(
        {
            "__time": pa.array(time_us).cast(pa.timestamp("us", "UTC")),
            "country": one_of("country", 5),
            "page": one_of("page", 400),
            "visitor": one_of("visitor", 50_000),
            "amount": pa.array(np.round(rng.exponential(20, rows), 2)),
        }
    )


def publish(store: MetadataStore, folder: Path, rows: int) -> list[str]:
    """Publish a segment of each day; return the files."""
    deep, local, paths = DeepStore(str(folder / "segments")), folder / "rows.parquet", []
    deep.make_root()
    for day in range(DAYS):
        write_table(rows_of(day, rows // DAYS), local, FORM)
        interval = Interval(
            (START_US + day * DAY_US) // 1_000, (START_US + (day + 1) * DAY_US) // 1_000
        )
        pushed = deep.push(str(local), SegmentId(NAME, interval, "v1"), "u")
        segment = Segment(
            datasource=NAME,
            interval=interval,
            version="v1",
            load_spec=pushed.load_spec,
            shard_spec=ShardSpec(0, 1),
            size=pushed.size,
            total_rows=rows // DAYS,
            columns=COLUMNS,
        )
        outcome = store.publish(PublishRequest("bench", NAME, (segment.to_row(),)))
        assert outcome.ok, outcome.reason
        paths.append(deep.location(pushed.load_spec))
    return paths


class _Client:
    """A client of Penstock with a connection of its own."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(self, sql: str, engine: str) -> list[object]:
        """Return the rows of an answer, which the engine must have given."""
        context = {"engine": engine, "noProjections": True, "useResultLevelCache": False}
        body = json.dumps({"query": sql, "context": context}).encode()
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", PATH, body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.getheader(ENGINE_HEADER) == engine, content[:400]
        rows: list[object] = json.loads(content)
        return rows

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def run(rows: int = ROWS) -> list[Row]:
    """Measure in a temporary folder, which is removed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        remote, clock = stack.enter_context(served_spark())[2], SystemClock()
        store = stack.enter_context(
            MetadataStore.open(f"sqlite:///{folder}/metadata.db", clock=clock)
        )
        files = publish(store, folder, rows)
        tables = VisibleFiles(store, str(folder / "segments"), clock)
        sessions = SparkSessions(SparkSessionOptions(remote))
        parts = sql_parts(sessions, tables, str(folder / "segments"), clock)
        for close in (parts.maker.close, parts.projections.close, parts.sql.close):
            stack.callback(close)
        pool = EnginePool(pool_options([str(folder)], os.environ), clock)
        both = FastSqlService(parts.sql, tables, pool, compile_query, clock)
        pool.start(both.first_requests)
        stack.callback(pool.stop)
        while not pool.process_ids():
            pause(clock, 0.05)
        port = _serve(both, stack)
        client = _Client(port)
        stack.callback(client.close)
        session = stack.enter_context(sessions.use())
        session.read.parquet(*files).createOrReplaceTempView("plain")
        alone = duckdb.connect(":memory:")
        stack.callback(alone.close)
        alone.execute("SET TimeZone = 'UTC'")
        alone.execute("SET parquet_metadata_cache = true")
        alone.execute(f"CREATE VIEW {NAME} AS SELECT * FROM read_parquet({files})")

        def by_spark(one: Statement) -> object:
            return session.sql(one.sql.replace(f"FROM {NAME}", "FROM plain")).toArrow()

        ways: dict[str, Callable[[Statement], object]] = {
            "fast": lambda one: client.ask(one.sql, "fast"),
            "spark": lambda one: client.ask(one.sql, "spark"),
            "plain": by_spark,
            "duckdb": lambda one: alone.sql(one.duckdb_sql).to_arrow_table(),
        }
        found = [row for one in STATEMENTS for row in _rows(one, ways)]
        return [*found, *_at_once(port, alone)]


def _serve(sql: FastSqlService, stack: ExitStack) -> int:
    routes = SqlRoutes(sql, MetricRegistry(), _NoEmitter(), SystemClock()).routes()
    listener = listen(HostPort("127.0.0.1", 0), "--http")
    server = HttpServer(
        application(routes, access=AccessControl.open()),
        listener,
        HttpGuard(error_body=api_error),
    )
    server.start()
    stack.callback(server.stop)
    port: int = listener.getsockname()[1]
    return port


def _rows(one: Statement, ways: dict[str, Callable[[Statement], object]]) -> list[Row]:
    taken: dict[str, list[float]] = {way: [] for way in ways}
    first_ms: dict[str, float] = {}
    names = list(ways)
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        turn = number % len(names)
        for way in (*names[turn:], *names[:turn]):
            began_s = time.perf_counter()
            ways[way](one)
            took_ms = (time.perf_counter() - began_s) * 1_000
            first_ms.setdefault(way, took_ms)
            if number >= WARM_UP_ROUNDS:
                taken[way].append(took_ms)
    ms = {way: median(times) for way, times in taken.items()}
    limit_ms = 1.5 * ms["duckdb"] + 5
    return [
        Row(
            f"{one.name}: fast",
            *(ms["fast"], "ms", "1.5 x DuckDB + 5 ms", limit_ms, ms["fast"] / limit_ms, "<= 1"),
        ),
        Row(
            f"{one.name}: fast, the first time",
            *(first_ms["fast"], "ms", "2 x p50", 2 * ms["fast"], first_ms["fast"] / ms["fast"] / 2),
            "<= 1",
        ),
        Row(
            f"{one.name}: spark",
            *(ms["spark"], "ms", "plain Spark", ms["plain"], ms["spark"] / ms["plain"]),
        ),
        Row(f"{one.name}: DuckDB", ms["duckdb"], "ms"),
    ]


def _at_once(port: int, alone: duckdb.DuckDBPyConnection) -> Sequence[Row]:
    asked = [STATEMENTS[number % len(STATEMENTS)] for number in range(AT_ONCE)]
    clients = [_Client(port) for _ in asked]
    totals = []
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for _ in range(3):
            began_s = time.perf_counter()
            sent = [
                threads.submit(client.ask, one.sql, "fast")
                for client, one in zip(clients, asked, strict=True)
            ]
            for answer in sent:
                answer.result()
            totals.append(time.perf_counter() - began_s)
    for client in clients:
        client.close()
    began_s = time.perf_counter()
    for one in asked:
        alone.sql(one.duckdb_sql).to_arrow_table()
    of_duckdb_s = time.perf_counter() - began_s
    total_s = min(totals)
    return [
        Row(
            f"{AT_ONCE} queries at once: fast",
            *(total_s, "s", "DuckDB, one by one", of_duckdb_s, total_s / of_duckdb_s, "<= 1.5"),
        )
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    print_rows(run(parser.parse_args().rows))
