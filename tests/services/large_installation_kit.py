"""A large installation of the console, for its tests and its benchmark, in the test's process.

Thousands of topics, processors, waiting tasks and segments. The broker has a process of its own;
the APIs of the router, the overlord and the flow run in this one, without Spark.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from starlette.routing import BaseRoute

from penstock.core.access.access_control import AccessControl
from penstock.core.clock import Clock, SystemClock
from penstock.core.intervals import Interval
from penstock.flow.controller.controller import FlowController
from penstock.flow.graph.yaml_reader import read_flow
from penstock.indexing.overlord import Overlord, OverlordPorts
from penstock.mailbox import MailboxThread
from penstock.mailbox.lanes import ThreadLanes
from penstock.segments.segment import Segment
from penstock.segments.shard_spec import ShardSpec
from penstock.services.api.asgi import application
from penstock.services.api.flow import FlowRoutes
from penstock.services.api.indexer.overlord_routes import OverlordParts, overlord_routes
from penstock.services.api.live_answers import LiveAnswers
from penstock.services.api.login import LoginRoutes
from penstock.services.api.router import RouterParts, RouterRoutes
from penstock.services.api.static_pages import ConsoleRoutes
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.membership.membership import BrokerFinder
from penstock.services.options.option_values import HostPort
from penstock.services.readiness import ReadyState
from penstock.storage.metadata import MetadataStore, PublishRequest, TaskRow, schema
from penstock.testing.server import LocalBroker
from tests.services.large_flow_kit import large_flow, opened
from tests.services.places_kit import FixedPlaces

TOPICS = 1_000
PROCESSORS = 10_000
TASKS = 10_000
HOUR_MS = 3_600_000
_BATCH = 5_000
_CREATING = 16


class NoWorkers:
    """Nothing runs: all active tasks are pending."""

    def workers(self) -> tuple[()]:
        """Return none."""
        return ()


@contextmanager
def leading(store: MetadataStore, clock: Clock) -> Iterator[list[BaseRoute]]:
    """The routes of an overlord that leads, whose tasks all wait because there are no workers."""
    mailbox = MailboxThread("overlord", clock=clock, daemon=True)
    lanes, lock_lanes = ThreadLanes("overlord"), ThreadLanes("locks")
    overlord = Overlord(
        mailbox.processor,
        OverlordPorts(
            metadata=store,
            broker=None,  # type: ignore[arg-type]  # no supervisor asks for it
            peons=None,  # type: ignore[arg-type]  # as above
            workers=NoWorkers(),
            lanes=lanes,
            lock_lanes=lock_lanes,
            clock=clock,
            new_token=str,
        ),
    )
    mailbox.start()
    overlord.start().result(120)
    yield overlord_routes(OverlordParts(overlord, NoWorkers(), "http://o", clock, lambda *_: None))
    overlord.stop().result(60)
    mailbox.stop()
    mailbox.join(120)
    lanes.close()
    lock_lanes.close()


def keep_tasks(store: MetadataStore, tasks: int, state: str) -> None:
    """Keep tasks of a state."""
    for begin in range(0, tasks, _BATCH):
        store.tasks.insert_new(
            [task(number, state) for number in range(begin, min(begin + _BATCH, tasks))]
        )


def task(number: int, state: str) -> TaskRow:
    task_id = f"{state.lower()}_{number:06}"
    payload = {"type": "noop", "id": task_id, "dataSource": f"d{number % 50}"}
    return TaskRow(task_id, f"d{number % 50}", "noop", task_id, payload, state=state)


def publish_hours(store: MetadataStore, datasource: str, hours: int) -> int:
    """Publish a segment an hour, every tenth of which hides an older one; return their number."""
    count = 0
    for version, step in (("v2", 1), ("v1", 10)):
        for begin in range(0, hours, _BATCH):
            some = range(begin, min(begin + _BATCH, hours), step)
            rows = [_segment(datasource, hour, version).to_row() for hour in some]
            store.publish(PublishRequest(f"{version}-{begin}", datasource, tuple(rows)))
            count += len(rows)
    return count


def repeat_hours(path: Path, period: int, hours: int) -> None:
    """Repeat the segments of the first hours of a database until `hours` have some.

    One statement of SQLite copies the rows that publishes have written, a hundred times as fast as
    publishes. Nothing has the database open.

    Args:
        path: File of the database.
        period: Number of the hours from the epoch on whose segments are repeated.
        hours: A multiple of `period`.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA journal_mode=OFF")
        connection.execute("PRAGMA temp_store=MEMORY")
        indexes = connection.execute(_INDEXES).fetchall()
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}")
        connection.execute(_REPEATED)
        first_ms, last_ms = period * HOUR_MS, (hours - 1) * HOUR_MS
        if first_ms <= last_ms:
            connection.execute(_HOURS, {"first": first_ms, "last": last_ms})
            connection.execute(_REPEAT, {"length": first_ms})
        for _, statement in indexes:
            connection.execute(statement)
        connection.execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()


_INDEXES: Final = (
    "SELECT name, sql FROM sqlite_master"
    " WHERE type = 'index' AND tbl_name = 'penstock_segments' AND sql IS NOT NULL"
)


def _time(ms: str) -> str:
    return f"strftime('%Y-%m-%dT%H:%M:%S.000Z', ({ms}) / 1000, 'unixepoch')"


def _path(ms: str) -> str:
    return f"printf('/%07d/', ({ms}) / {HOUR_MS})"


# Texts of times are made once for each hour.
_REPEATED: Final = f"""
CREATE TEMP TABLE repeated AS
SELECT *, {_time("start_ms")} AS start, {_time("end_ms")} AS end, {_path("start_ms")} AS path
FROM penstock_segments
"""
_HOURS: Final = f"""
CREATE TEMP TABLE hours AS
WITH RECURSIVE hours(ms) AS
  (SELECT :first UNION ALL SELECT ms + {HOUR_MS} FROM hours WHERE ms < :last)
SELECT ms, {_time("ms")} AS start, {_time(f"ms + {HOUR_MS}")} AS end, {_path("ms")} AS path
FROM hours
"""


def _shifted(text: str) -> str:
    """SQL of a text of a segment with the times and the number of its hour replaced."""
    for part in ("end", "start", "path"):
        text = f"replace({text}, s.{part}, h.{part})"
    return text


_SHIFTED: Final = {
    "id": _shifted("s.id"),
    "start_ms": "h.ms",
    "end_ms": f"h.ms + {HOUR_MS}",
    "payload": _shifted("s.payload"),
}
_COLUMNS: Final = [column.name for column in schema.segments.columns]
# In the order of time, so that a row follows the last one in the table's own indexes, too.
_REPEAT: Final = f"""
INSERT INTO penstock_segments ({", ".join(_COLUMNS)})
SELECT {", ".join(_SHIFTED.get(name, f"s.{name}") for name in _COLUMNS)}
FROM hours AS h CROSS JOIN repeated AS s ON s.start_ms = h.ms % :length
"""


def _segment(datasource: str, hour: int, version: str) -> Segment:
    return Segment(
        datasource,
        Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS),
        version,
        {"type": "local", "path": f"/deep/{datasource}/{hour:07}/{version}/0.parquet"},
        ShardSpec(0, 1),
        size=500_000_000,
        total_rows=5_000_000,
    )


@contextmanager
def served(routes: list[BaseRoute]) -> Iterator[HostPort]:
    """Serve routes to everyone on this host."""
    app = application(routes, access=AccessControl.open())
    server = HttpServer(app, listen(HostPort("127.0.0.1", 0), "--http"))
    server.start()
    try:
        yield HostPort("127.0.0.1", server.port)
    finally:
        server.stop()


@dataclass(frozen=True)
class LargeInstallation:
    """Addresses and parts of an installation.

    Attributes:
        url: Address of the console.
        broker: The broker.
    """

    url: str
    broker: LocalBroker


@contextmanager
def large_installation(
    folder: Path,
    store: MetadataStore,
    topics: int = TOPICS,
    processors: int = PROCESSORS,
    tasks: int = TASKS,
) -> Iterator[LargeInstallation]:
    """An installation with the segments that a store has."""
    clock = SystemClock()
    with ExitStack() as stack:
        keep_tasks(store, tasks, "RUNNING")
        broker = stack.enter_context(LocalBroker())
        broker_http = HostPort.parse(broker.http_url.removeprefix("http://"))
        names = [f"topic{number:04}" for number in range(topics)]
        # Each waits for the disk, so several are created at once, beside the flow.
        creating = stack.enter_context(ThreadPoolExecutor(_CREATING))
        created = [creating.submit(broker.create_topic, name) for name in names]
        flow: FlowController = opened(folder / "flow")
        stack.callback(flow.close)
        flow.apply(read_flow(large_flow(processors).encode()).flow)
        for one in created:
            one.result()
        overlord = stack.enter_context(served(stack.enter_context(leading(store, clock))))
        places = FixedPlaces(overlord, broker_http)
        live = LiveAnswers()
        parts = RouterParts(
            store,
            cast("LeaseDirectory", _Directory(places)),
            HostPort("127.0.0.1", 1),
            cast("BrokerFinder", places),
            lambda: ReadyState("router"),
            clock,
            folder=folder,
        )
        router = RouterRoutes(parts)
        router.timelines.refresh()  # as `TimelineRefresher` does in the service
        routes = [
            *ConsoleRoutes().routes(),
            *LoginRoutes().routes(),
            *live.routes(),
            *FlowRoutes(lambda: flow, clock).routes(),
            *router.routes(),
        ]
        address = stack.enter_context(served(routes))
        stack.callback(live.close)
        yield LargeInstallation(address.url, broker)


class _Directory:
    """A directory that announces no process, and finds the overlord."""

    def __init__(self, places: FixedPlaces) -> None:
        self._places = places

    def find(self, service: str) -> HostPort:
        return self._places.find(service)

    def all(self, service: str) -> Sequence[object]:
        del service
        return []
