"""Cost of access control for a query over HTTP, as its client sees it.

Three servers answer the same query in turns, over one Spark: one lets everyone in without a check
of credentials, one knows its own user from the kernel, and one has 10,000 tokens, of which the
client sends one. The first is what the others are compared with. The datasource is small, so that
the figure is the largest share that access can have of a query. The median is of the ratios of the
rounds, because the speed of the machine changes.
"""

from __future__ import annotations

import http.client
import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.access_publishing import AIM, KINDS, add_credentials
from benchmarks.ingest import served_spark
from benchmarks.projections import publish
from benchmarks.table import Row, print_rows
from penstock.broker.http_server.guard import HttpGuard
from penstock.core.access.access_control import AccessControl
from penstock.core.clock import SystemClock
from penstock.core.metrics import MetricRegistry
from penstock.services.api.asgi import application
from penstock.services.api.sql import PATH, SqlRoutes
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer, api_error
from penstock.services.options.option_values import HostPort
from penstock.services.roles.router import sql_parts
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.storage.metadata import MetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.services.emitter.events import Event
    from penstock.spark.sql.service import SqlService

ROUNDS: Final = int(os.environ.get("PENSTOCK_BENCH_ROUNDS", "25"))
WARM_UP_ROUNDS: Final = 6
QUERIES: Final = 6
ROWS: Final = 2_000
SQL: Final = (
    "SELECT channel, COUNT(*) AS edits FROM edits GROUP BY channel ORDER BY 2 DESC LIMIT 10"
)


class _NoEmitter:
    def emit(self, event: Event) -> None:
        """Drop the event."""


def _serve(sql: SqlService, access: AccessControl, stack: ExitStack) -> int:
    """Serve the API of SQL with a kind of access control; return the port."""
    clock = SystemClock()
    routes = SqlRoutes(sql, MetricRegistry(), _NoEmitter(), clock).routes()
    listener = listen(HostPort("127.0.0.1", 0), "--http")
    server = HttpServer(
        application(routes, access=access), listener, HttpGuard(error_body=api_error)
    )
    server.start()
    stack.callback(server.stop)
    port: int = listener.getsockname()[1]
    return port


def _asking(port: int, token: str) -> Callable[[], None]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    body = json.dumps({"query": SQL}).encode()

    def ask() -> None:
        connection.request("POST", PATH, body, headers)
        answer = connection.getresponse()
        rows = answer.read()
        assert len(json.loads(rows)) == 10, rows

    return ask


def run() -> list[Row]:
    """Measure in a temporary folder, which is removed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        served, clock = stack.enter_context(served_spark()), SystemClock()
        store = stack.enter_context(
            MetadataStore.open(f"sqlite:///{folder}/metadata.db", clock=clock)
        )
        publish(store, folder, ROWS)
        tables = VisibleFiles(store, str(folder / "segments"), clock)
        sessions = SparkSessions(SparkSessionOptions(served[2]))
        parts = sql_parts(sessions, tables, str(folder / "segments"), clock)
        for close in (parts.maker.close, parts.projections.close, parts.sql.close):
            stack.callback(close)
        asks = {}
        for kind in KINDS:
            own = folder / kind
            own.mkdir()
            token = add_credentials(own) if kind == "token" else ""
            is_open = kind == "open"
            access = AccessControl.open() if is_open else AccessControl(own / "access", clock)
            asks[kind] = _asking(_serve(parts.sql, access, stack), token)
        return _measured(asks)


def _measured(asks: dict[str, Callable[[], None]]) -> list[Row]:
    rounds: list[dict[str, float]] = []
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        took = {}
        # Each kind is first, second and last equally often.
        turn = number % len(KINDS)
        for kind in (*KINDS[turn:], *KINDS[:turn]):
            began_s = time.perf_counter()
            for _ in range(QUERIES):
                asks[kind]()
            took[kind] = (time.perf_counter() - began_s) / QUERIES * 1000
        rounds.append(took)
    counted = rounds[WARM_UP_ROUNDS:]
    without = median(one["open"] for one in counted)
    return [
        Row(
            f"a query over HTTP: {kind}",
            median(one[kind] for one in counted),
            "ms",
            "no check",
            without,
            median(one[kind] / one["open"] for one in counted),
            AIM,
        )
        for kind in KINDS[1:]
    ]


if __name__ == "__main__":
    print_rows(run())
