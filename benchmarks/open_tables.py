"""Datasources as Iceberg tables: freshness, cost of publishing, and tables with 1,000,000 segments.

    .venv/bin/python -m benchmarks.open_tables [freshness] [publishing] [scale]

Freshness: PyIceberg reads a stream of a real `penstock up` again and again, over plans of the
catalog. The age of the newest row is the time from just before its publish was sent to the end of
the read that has it.

Publishing: 20 publishes a second of one segment each, in turns without a catalog and with one in
another process, whose client loads the table and plans a read twice a second.

Scale: the catalog of a process of its own loads a table with 1,000,000 segments over HTTP. After
one segment more, the next version is awaited, which comes after a rest. The files of segments are
not read.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.rest import RestCatalog

from benchmarks.duties import BATCH, HOUR_MS, SEGMENTS, publish
from benchmarks.latency import Publisher, spec, wait_until_ready
from benchmarks.processes import peak_mib, running_s
from benchmarks.table import Row, against, print_rows
from penstock.broker.broker_client import BrokerClient
from penstock.core.access.access_control import AccessControl
from penstock.core.clock import SystemClock
from penstock.core.errors import Unavailable
from penstock.core.intervals import Interval
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment, SegmentId
from penstock.segments.shard_spec import ShardSpec
from penstock.services.api.asgi import application
from penstock.services.api.iceberg.catalog_commits import CatalogCommits
from penstock.services.api.iceberg.catalog_routes import CatalogRoutes
from penstock.services.api.iceberg.catalog_tables import CatalogTables
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.json_client import JsonClient
from penstock.services.options.option_values import HostPort
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.storage.metadata import MetadataStore, PublishRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from pyiceberg.table import Table

RATE_PER_S: Final = 1_000
STREAM_S: Final = 40.0
WARM_UP_S: Final = 10.0
FRESH_S: Final = 2.0
"""Aim for the age of the newest row."""

PUBLISHES: Final = 100
"""Publishes of a round."""
PUBLISHES_PER_S: Final = 20
ROUNDS: Final = 10
CLIENT_S: Final = 0.5
"""Time between two loads of the client."""
ROWS: Final = 1_000

LOADS: Final = 200
LOAD_MS: Final = 200.0
"""Aim for loading a table."""
MORE: Final = 2
"""Segments that are added to the many, one after the other."""
_COLUMNS: Final = (
    ("__time", "timestamp"),
    *((f"dimension{number}", "string") for number in range(6)),
    ("count", "bigint"),
)
_TABLE: Final = "iceberg/v1/namespaces/penstock/tables"


# -- freshness


def freshness() -> list[Row]:
    """Run Penstock, and read its stream with PyIceberg."""
    with tempfile.TemporaryDirectory(prefix="penstock-open-tables-") as name:
        folder = Path(name) / "data"
        command = [
            sys.executable, "-m", "penstock", "up", "--data-dir", str(folder),
            "--http", "127.0.0.1:0", "--broker-http", "127.0.0.1:0", "--broker-tcp", "127.0.0.1:0",
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {}
        )
        try:
            addresses = wait_until_ready(folder, process)
            ages, took = _ages(addresses["http"], addresses["broker_http"])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    found = []
    for percentile in (50, 95):
        age_s = float(np.percentile(ages, percentile))
        row = f"newest row that PyIceberg reads, {RATE_PER_S:,}/s, p{percentile}"
        found.append(against(row, age_s, "s", "aim", FRESH_S, "<= 1"))
    found.append(Row(".. one read, p50", float(np.percentile(took, 50)) * 1e3, "ms"))
    found.append(Row(".. reads", len(ages), "reads"))
    return found


def _ages(http: str, broker: str) -> tuple[Sequence[float], Sequence[float]]:
    """Return the age of the newest row of each read, and how long the read took."""
    name = "fresh"
    with httpx.Client(timeout=60) as api:
        BrokerClient(broker).create_topic(name, 2)
        api.post(f"{http}/druid/indexer/v1/supervisor", json=spec(name)).raise_for_status()
    publisher = Publisher(BrokerClient(broker), name, RATE_PER_S, STREAM_S + WARM_UP_S, [])
    thread = threading.Thread(target=publisher.run)
    thread.start()
    ages, took = [], []
    catalog = RestCatalog("penstock", uri=f"{http}/iceberg")
    begun = time.perf_counter()
    while thread.is_alive():
        asked = time.perf_counter()
        # A reader of the newest rows: those of the last half minute.
        since = np.datetime64(time.time_ns() // 1_000_000 - 30_000, "ms")
        newest = _newest(catalog, name, f"__time >= '{since}+00:00'")
        arrived = time.perf_counter()
        if newest is None:
            time.sleep(0.1)
        elif asked > begun + WARM_UP_S:
            ages.append(arrived - publisher.sent_at[newest])
            took.append(arrived - asked)
    thread.join()
    return ages, took


def _newest(catalog: RestCatalog, name: str, row_filter: str) -> int | None:
    """Return the highest number that all lower ones are read with; None: there is none."""
    if not catalog.table_exists(f"penstock.{name}"):
        return None
    table: Table = catalog.load_table(f"penstock.{name}")
    rows = table.scan(row_filter=row_filter, selected_fields=("seq",)).to_arrow()["seq"]
    numbers = np.sort(rows.to_numpy())
    # Two partitions may be read to different depths.
    gaps = np.flatnonzero(np.diff(numbers) != 1)
    if not len(numbers):
        return None
    return int(numbers[gaps[0]] if len(gaps) else numbers[-1])


# -- a catalog in a process of its own


def _no_overlord() -> JsonClient:
    raise Unavailable("nothing is appended here")


class Catalog:
    """Serves the catalog of a metadata store, as a picklable callable that reports its port."""

    def __init__(self, url: str, deep_storage: str) -> None:
        self._url = url
        self._deep_storage = deep_storage

    def __call__(self, report: Connection) -> None:
        """Serve until the process is ended; report the peak of the memory when asked."""
        clock = SystemClock()
        store = MetadataStore.open(self._url, clock=clock)
        source = VisibleFiles(store, self._deep_storage, clock)
        tables = CatalogTables(source, store, self._deep_storage, clock)
        tables.start()
        commits = CatalogCommits(tables, store, self._deep_storage, _no_overlord, clock)
        routes = CatalogRoutes(tables, commits).routes()
        access = AccessControl.open()
        server = HttpServer(
            application(routes, access=access), listen(HostPort("127.0.0.1", 0), "--http")
        )
        server.start()
        report.send(server.port)
        while report.recv():
            report.send(peak_mib())


@contextmanager
def _catalog(url: str, deep_storage: str) -> Iterator[tuple[str, int, Callable[[], float]]]:
    """Give the address of a process with a catalog, its id, and what returns its peak in MiB."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=Catalog(url, deep_storage), args=(there,), daemon=True)
    process.start()

    def peak() -> float:
        here.send("peak")
        found: float = here.recv()
        return found

    try:
        address = f"http://127.0.0.1:{here.recv()}"
        assert process.pid is not None
        yield address, process.pid, peak
    finally:
        process.terminate()
        process.join()


# -- publishing


def publishing() -> list[Row]:
    """Publish in turns with a catalog in use and without."""
    with tempfile.TemporaryDirectory(prefix="penstock-open-tables-") as name:
        folder = Path(name)
        url, deep = f"sqlite:///{folder}/metadata.db", folder / "deep"
        with closing(MetadataStore.open(url, clock=SystemClock())) as store:
            deep_store = DeepStore(str(deep))
            deep_store.make_root()
            segments = _pushed(deep_store, folder, PUBLISHES * (2 * ROUNDS + 1))
            _publish_all(store, segments[:PUBLISHES])
            rest = [
                segments[at : at + PUBLISHES] for at in range(PUBLISHES, len(segments), PUBLISHES)
            ]
            with _catalog(url, str(deep)) as (address, _, _):
                alone_s, used_s, requests = [], [], 0
                for first, second in zip(rest[::2], rest[1::2], strict=True):
                    alone_s.append(_publish_all(store, first))
                    with _Client(address) as client:
                        used_s.append(_publish_all(store, second))
                    requests += client.requests
        data = sum(one.size for one in segments)
        copied = [path for path in (deep / "~iceberg").rglob("*") if path.is_file()]
        rows = sum(path.stat().st_size for path in copied if path.suffix == ".parquet")
        metadata = sum(path.stat().st_size for path in copied)
    ratios = [used / alone for used, alone in zip(used_s, alone_s, strict=True)]
    used_ms, alone_ms = (statistics.median(one) * 1e3 for one in (used_s, alone_s))
    return [
        Row(
            *("a publish, a catalog in use", used_ms, "ms", "without", alone_ms),
            ratio=statistics.median(ratios),
            aim="<= 1.05",
        ),
        Row(".. loads and plans of the client", requests, "requests"),
        Row("bytes of rows copied for Iceberg", rows, "bytes", "data", data, rows / data, "<= 0"),
        Row(".. metadata of all versions", metadata / 1024, "KiB"),
    ]


class _Client:
    """Loads the table and plans a read of its newest rows, again and again while it is entered."""

    def __init__(self, address: str) -> None:
        self._api = httpx.Client(base_url=address, timeout=60)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.requests = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._api.close()

    def _run(self) -> None:
        newest = {"filter": {"type": "gt-eq", "term": "__time", "value": "1970-01-10T00:00:00Z"}}
        while not self._ended.wait(CLIENT_S):
            self._api.get(f"/{_TABLE}/d").raise_for_status()
            self._api.post(f"/{_TABLE}/d/plan", json=newest).raise_for_status()
            self.requests += 2


def _pushed(deep_store: DeepStore, folder: Path, count: int) -> list[Segment]:
    path = folder / "rows.parquet"
    found = []
    for hour in range(count):
        interval = Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS)
        if not hour:
            times = pa.array([interval.start_ms * 1000] * ROWS, pa.timestamp("us", tz="UTC"))
            numbers = pa.array(np.arange(ROWS))
            pq.write_table(pa.table({"__time": times, "n": numbers}), path)
        pushed = deep_store.push(str(path), SegmentId("d", interval, "v1"), "u")
        columns = (("__time", "timestamp"), ("n", "bigint"))
        found.append(
            Segment(
                *("d", interval, "v1", pushed.load_spec, ShardSpec(0, 1)),
                size=pushed.size,
                total_rows=ROWS,
                columns=columns,
            )
        )
    return found


def _publish_all(store: MetadataStore, segments: Sequence[Segment]) -> float:
    """Publish segments one by one at a steady rate; return the mean time of one, in seconds."""
    begun, took_s = time.perf_counter(), 0.0
    for number, one in enumerate(segments):
        time.sleep(max(0.0, begun + number / PUBLISHES_PER_S - time.perf_counter()))
        asked = time.perf_counter()
        _publish(store, one)
        took_s += time.perf_counter() - asked
    return took_s / len(segments)


def _publish(store: MetadataStore, one: Segment) -> None:
    assert store.publish(PublishRequest(f"task {one.id}", "d", (one.to_row(),))).ok


# -- many segments


def scale(count: int = SEGMENTS) -> list[Row]:
    """Load a table with many segments."""
    with tempfile.TemporaryDirectory(prefix="penstock-open-tables-") as name:
        url, deep = f"sqlite:///{name}/metadata.db", f"{name}/deep"
        Path(deep).mkdir()
        clock = SystemClock()
        hours = _fill(url, deep, count)
        with (
            closing(MetadataStore.open(url, clock=clock)) as store,
            _catalog(url, deep) as (address, pid, peak),
            httpx.Client(base_url=address, timeout=600) as api,
        ):
            begun = time.perf_counter()
            snapshot = _snapshot(api)
            first_s = time.perf_counter() - begun
            loads_ms = [_load_ms(api) for _ in range(LOADS)]
            written = _written(deep)
            rebuilt_s, during_ms = [], []
            for number in range(MORE):
                begun = running_s(pid)
                _publish(store, _segment(deep, hours + number, "v2"))
                while (found := _snapshot(api)) == snapshot:
                    during_ms.append(_load_ms(api))
                    time.sleep(0.2)
                rebuilt_s.append(running_s(pid) - begun)
                snapshot = found
            more = (_written(deep) - written) / MORE
            memory = peak()
            day_ms = _plan_ms(api, hours)
    text = f"{count:,} segments"
    p95 = float(np.percentile(loads_ms, 95))
    return [
        against(f"{text}: load the table, p95", p95, "ms", "aim", LOAD_MS, "<= 1"),
        Row(".. while versions are built, p95", float(np.percentile(during_ms, 95)), "ms"),
        Row(".. the first version", first_s, "s"),
        Row(".. processor time of the next version", min(rebuilt_s), "s"),
        against(".. metadata written for it", more / 1024, "KiB", "the first", written / 1024),
        Row(".. plan of a day", day_ms, "ms"),
        Row(".. memory", memory, "MiB"),
    ]


def _segment(deep: str, hour: int, version: str) -> Segment:
    """Return the segment of an hour, whose file is in this deep storage."""
    return Segment(
        "d",
        Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS),
        version,
        {"type": "local", "path": f"{deep}/d/{hour:07}/{version}/0/part.parquet"},
        ShardSpec(0, 1),
        size=500_000_000,
        total_rows=5_000_000,
        columns=_COLUMNS,
    )


def _fill(url: str, deep: str, count: int) -> int:
    """Publish a segment an hour, every tenth of which hides an older one; return the hours."""
    hours = count * 10 // 11
    with closing(MetadataStore.open(url, clock=SystemClock())) as store:
        for begin in range(0, hours, BATCH):
            some = range(begin, min(begin + BATCH, hours))
            publish(store, f"new{begin}", (_segment(deep, hour, "v2") for hour in some))
            old = (_segment(deep, hour, "v1") for hour in some if hour % 10 == 0)
            publish(store, f"old{begin}", old)
    return hours


def _snapshot(api: httpx.Client) -> object:
    answer = api.get(f"/{_TABLE}/d").raise_for_status().json()
    return answer["metadata"].get("current-snapshot-id")


def _load_ms(api: httpx.Client) -> float:
    begun = time.perf_counter()
    api.get(f"/{_TABLE}/d").raise_for_status()
    return (time.perf_counter() - begun) * 1e3


def _plan_ms(api: httpx.Client, hours: int) -> float:
    """Return how long the plan of a day takes, the third time."""
    start, end = ((hours // 2 + more) * HOUR_MS * 1000 for more in (0, 24))
    sides = [
        {"type": kind, "term": "__time", "value": value}
        for kind, value in (("gt-eq", start), ("lt", end))
    ]
    asked = {"filter": {"type": "and", "left": sides[0], "right": sides[1]}}
    took = []
    for _ in range(3):
        begun = time.perf_counter()
        answer = api.post(f"/{_TABLE}/d/plan", json=asked).raise_for_status()
        took.append((time.perf_counter() - begun) * 1e3)
        assert len(answer.json()["file-scan-tasks"]) == 24
    return min(took)


def _written(deep: str) -> float:
    return sum(path.stat().st_size for path in Path(deep).rglob("*") if path.is_file())


PARTS: Final = {"freshness": freshness, "publishing": publishing, "scale": scale}


def run(*names: str) -> list[Row]:
    """Measure the named parts, or all."""
    return [row for name in names or PARTS for row in PARTS[name]()]


if __name__ == "__main__":
    print_rows(run(*sys.argv[1:]))
