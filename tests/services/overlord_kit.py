"""An overlord with a worker and a topic behind its real API, on virtual time and an SQLite store.

Nothing is replaced but what lies outside: the broker's topics, and the processes of peons, which
begin and end when a test says so.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from penstock.core.access.access_control import AccessControl
from penstock.core.errors import NotFound, Unavailable
from penstock.core.metrics import MetricRegistry
from penstock.indexing.overlord import Overlord, OverlordOptions, OverlordPorts
from penstock.indexing.overlord.task_queue import TaskQueueOptions
from penstock.indexing.ports import (
    HistoryPlace,
    TaskLocation,
    TaskReport,
    TaskState,
    WorkerChanges,
    WorkerReport,
)
from penstock.indexing.read_plan import AvailableRange, SeenTopic
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_log import LogPart
from penstock.indexing.task_spec import TaskSpec
from penstock.indexing.worker import Worker, WorkerOptions
from penstock.indexing.worker.log_store import LogStore, TaskLogs
from penstock.indexing.worker.running_task import write_end
from penstock.indexing.worker.task_attempts import AttemptEnd
from penstock.mailbox import MailboxThread
from penstock.mailbox.lanes import ThreadLanes
from penstock.services.api.asgi import application
from penstock.services.api.indexer.overlord_routes import OverlordParts, overlord_routes
from penstock.services.api.indexer.request_parts import ACTION_BYTES_MAX
from penstock.services.api.native import NativeRoutes
from penstock.services.api.router import RouterParts, RouterRoutes
from penstock.services.api.sql import SqlPort, SqlRoutes
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.membership.membership import BrokerFinder
from penstock.services.options.option_values import HostPort
from penstock.services.readiness import ReadyState
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.storage.disk import OsFileSystem
from penstock.storage.uploads import UploadStore
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import with_token
from tests.harness.event_kit import KeptEvents
from tests.harness.metadata_kit import open_metadata
from tests.indexing.queue_kit import HeldPeon
from tests.kits.answers_kit import check_answer
from tests.services.places_kit import FixedPlaces

T = TypeVar("T")

REAL_LIMIT_S = 120.0


def noop(task_id: str, datasource: str = "d", **more: object) -> dict[str, object]:
    return {"type": "noop", "id": task_id, "dataSource": datasource, **more}


def supervisor_spec(name: str = "flights", **more: object) -> dict[str, object]:
    return {
        "type": "penstock",
        "spec": {
            "dataSchema": {
                "dataSource": name,
                "timestampSpec": {"column": "time", "format": "millis"},
                "dimensionsSpec": {"dimensions": ["carrier"]},
                "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
            },
            "ioConfig": {"topic": "flights", "useEarliestOffset": True, "startDelay": "PT1S"},
        },
        **more,
    }


class Topics:
    """The broker's topics, each with two stream partitions."""

    def __init__(self) -> None:
        self.ends: dict[str, dict[int, int]] = {"flights": {0: 7, 1: 5}}

    def available(
        self,
        topic: str,
        *,
        after: Mapping[int, int] | None = None,
        wait_ms: int = 0,
        topic_id: str = "",
    ) -> SeenTopic:
        del after, wait_ms, topic_id
        if topic not in self.ends:
            raise NotFound(f"topic {topic}: there is none")
        return SeenTopic(
            topic,
            {p: AvailableRange(f"{topic}/{p}", 0, end) for p, end in self.ends[topic].items()},
        )

    def append_time_ms(self, topic: str, partition: int, offset: int) -> int:
        del topic, partition
        return offset * 500

    def set_cursor(self, topic: str, name: str, offsets: Mapping[int, int]) -> None: ...
    def drop_cursor(self, topic: str, name: str, partitions: Sequence[int]) -> None: ...


class SilentPeons:
    """Peons that answer the supervisor with the reports that they are given, and else not."""

    def __init__(self, reports: Mapping[str, TaskReport]) -> None:
        self._reports = reports

    def within(self, answer_ms: int) -> SilentPeons:
        del answer_ms
        return self

    def report(self, task_id: str) -> TaskReport:
        if task_id in self._reports:
            return self._reports[task_id]
        raise Unavailable(f"the peon of {task_id} does not answer")

    def pause(self, task_id: str) -> NoReturn:
        raise Unavailable(f"the peon of {task_id} does not answer")

    resume = pause

    def set_end_offsets(self, task_id: str, end: Mapping[int, int], *, finish: bool) -> NoReturn:
        del end, finish
        self.pause(task_id)


class WorkerBeside:
    """A worker of the same process, as the overlord's directory gives it."""

    def __init__(self, worker: Worker, logs: TaskLogs) -> None:
        self._worker = worker
        self._logs = logs
        self.name = "w"
        self.host = "worker:8091"

    def report(self) -> WorkerReport:
        return self._worker.report()

    def changes(self, after: HistoryPlace, wait_ms: int) -> WorkerChanges:
        del after, wait_ms
        return WorkerChanges(HistoryPlace(), report=self._worker.report())

    def assign(self, task: TaskSpec) -> None:
        self._worker.assign(task)

    def shutdown(self, task_id: str) -> None:
        self._worker.shutdown(task_id)

    def set_enabled(self, enabled: bool) -> None:
        self._worker.set_enabled(enabled)

    def read_log(self, task_id: str, offset: int = 0, bytes_max: int = 1 << 20) -> LogPart:
        return self._logs.read_log(task_id, offset, bytes_max)

    def read_report(self, task_id: str) -> bytes:
        return self._logs.read_report(task_id)


class Api:
    """A blocking client of an application in this process."""

    def __init__(self, app: Starlette) -> None:
        self.app = app
        self._portal_context = start_blocking_portal()
        self._portal: BlockingPortal = self._portal_context.__enter__()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://penstock")

    def __call__(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request; the answer has to be as the OpenAPI document describes it."""
        answer = self._portal.call(partial(self._client.request, method, path, **more))
        kind = answer.headers.get("content-type", "")
        check_answer(method, path, answer.status_code, kind, answer.content)
        return answer

    def get(self, path: str, **more: object) -> httpx.Response:
        return self("GET", path, **more)

    def post(self, path: str, **more: object) -> httpx.Response:
        return self("POST", path, **more)

    def delete(self, path: str, **more: object) -> httpx.Response:
        return self("DELETE", path, **more)

    def close(self) -> None:
        self._portal.call(self._client.aclose)
        self._portal_context.__exit__(None, None, None)


class AwaitedLanes(ThreadLanes):
    """Lanes whose calls can be waited for, so that virtual time does not pass a slow disk by."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._under_way: set[Future[object]] = set()

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        future = super().submit(lane, work)
        self._under_way.add(future)  # type: ignore[arg-type]  # Future is invariant
        future.add_done_callback(self._under_way.discard)
        return future

    def settle(self) -> None:
        """Return when what is under way now has ended; what follows from it may not have begun."""
        wait(self._under_way.copy(), REAL_LIMIT_S)


def ready() -> ReadyState:
    return ReadyState("router")


class OverlordWorld:
    """All of it; close it at the end."""

    def __init__(self, folder: Path, *, slots: int = 2, max_tasks: int = 20_000) -> None:
        self.clock = VirtualClock()
        self.metadata = open_metadata(folder, self.clock)
        self.topics = Topics()
        self.uploads = UploadStore(folder / "uploads", self.clock)
        self.folder = folder
        self.peons: dict[str, HeldPeon] = {}
        self.live: dict[str, object] = {}
        self.reports: dict[str, TaskReport] = {}
        self._numbers = itertools.count()
        self._lanes = [AwaitedLanes(name) for name in ("overlord", "locks", "worker")]
        self._mailboxes = [
            MailboxThread(n, clock=self.clock, daemon=True) for n in ("overlord", "worker")
        ]
        self.overlord = self._make_overlord(TaskQueueOptions(max_tasks=max_tasks))
        self.worker = self._make_worker(slots)
        for mailbox in self._mailboxes:
            mailbox.start()
        self.worker.start().result(REAL_LIMIT_S)
        self.app = self.make_app()
        self.api = Api(self.app)

    def _make_overlord(self, queue: TaskQueueOptions) -> Overlord:
        ports = OverlordPorts(
            metadata=self.metadata,
            broker=self.topics,
            peons=SilentPeons(self.reports),
            workers=self,
            lanes=self._lanes[0],
            lock_lanes=self._lanes[1],
            clock=self.clock,
            new_token=lambda: f"t{next(self._numbers)}",
        )
        return Overlord(self._mailboxes[0].processor, ports, OverlordOptions(queue=queue))

    def _make_worker(self, slots: int) -> Worker:
        fs = OsFileSystem()
        folders = [str(self.folder / "tasks")]
        self.log_store = LogStore(str(self.folder / "kept"))
        logs = TaskLogs(folders, fs, self.log_store, self._lanes[2])
        processor = self._mailboxes[1].processor
        worker = Worker(
            *(folders, fs, self, processor, self.clock, self._lanes[2]),
            WorkerOptions(slots),
            logs,
        )
        self._beside = WorkerBeside(worker, logs)
        return worker

    def _live_report(self, task_id: str, _location: TaskLocation) -> object:
        if task_id not in self.live:
            raise Unavailable(f"the peon of {task_id} does not answer")
        return self.live[task_id]

    def make_app(
        self,
        token: str | None = None,
        access: AccessControl | None = None,
        more: Sequence[BaseRoute] = (),
    ) -> Starlette:
        parts = OverlordParts(
            overlord=self.overlord,
            workers=self,
            address="http://overlord:8090",
            clock=self.clock,
            live_report=self._live_report,
            logs=self.log_store,
            uploads=self.uploads,
        )
        return application(
            [*overlord_routes(parts), *more],
            access=access or with_token(token),
            body_bytes_max=ACTION_BYTES_MAX,
        )

    def start(self) -> OverlordWorld:
        """Lead."""
        self.overlord.start().result(REAL_LIMIT_S)
        return self

    def close(self) -> None:
        self.api.close()
        self.overlord.stop().result(REAL_LIMIT_S)
        self.worker.stop().result(REAL_LIMIT_S)
        for mailbox in self._mailboxes:
            mailbox.stop()
            mailbox.join(REAL_LIMIT_S)
        for lanes in self._lanes:
            lanes.close()
        self.metadata.close()

    # What others ask of it

    def workers(self) -> Sequence[WorkerBeside]:
        return [self._beside]

    def launch(self, task_id: str, folder: str) -> HeldPeon:
        (Path(folder) / "log").write_text(f"the log of {task_id}\n")
        TaskFolder(folder, OsFileSystem()).write_json("location.json", {"host": "h", "port": 9})
        self.peons[task_id] = HeldPeon(task_id, folder)
        return self.peons[task_id]

    # What tests do

    def until(self, condition: Callable[[], bool]) -> None:
        """Let virtual time pass until something is so."""
        end_s = time.monotonic() + REAL_LIMIT_S
        while not condition():
            assert time.monotonic() < end_s, "it did not come to that"
            for lanes in self._lanes:
                lanes.settle()
            self.clock.advance(0.25)
            # What the mailboxes were given before is done when they answer.
            self.overlord.task_service.workers().result(REAL_LIMIT_S)
            self.worker.report()

    def state(self, task_id: str) -> str:
        active = self.overlord.task_service.index.get(task_id)
        return "NONE" if active is None else active.state.value

    def runs(self, task_id: str) -> None:
        """Wait until a task runs and its place is known."""
        self.until(lambda: self.overlord.task_service.location(task_id) is not None)

    def end(self, task_id: str, error: str = "") -> None:
        """Have a running task end."""
        peon = self.peons[task_id]
        folder = TaskFolder(peon.folder, OsFileSystem())
        state = TaskState.FAILED if error else TaskState.SUCCESS
        write_end(folder, task_id, AttemptEnd(state, error, 1_000))
        peon.code = 0
        self.until(lambda: self.state(task_id) == "NONE")


@contextmanager
def served(world: OverlordWorld, app: ASGIApp | None = None) -> Iterator[HostPort]:
    """The overlord of a world on a port; gives its address."""
    listener = listen(HostPort("127.0.0.1", 0), "--http")
    server = HttpServer(app or world.app, listener)
    server.start()
    try:
        yield HostPort("127.0.0.1", server.port)
    finally:
        server.stop()


@contextmanager
def routed(world: OverlordWorld, service: SqlPort) -> Iterator[Api]:
    """A router before a world whose overlord listens on a port; queries go to the service."""
    with served(world) as address:
        leases = world.metadata.leases
        leases.renew("overlord", "o", host=address.host, port=address.port, ttl_ms=10**9)
        directory = LeaseDirectory(leases)
        broker = cast("BrokerFinder", FixedPlaces(address))
        parts = RouterParts(world.metadata, directory, address, broker, ready, world.clock)
        sql = SqlRoutes(service, MetricRegistry(), KeptEvents(), world.clock)
        native = NativeRoutes(sql, VisibleFiles(world.metadata, "/no/segments"), world.clock)
        routes = [*sql.routes(), *native.routes(), *RouterRoutes(parts).routes()]
        api = Api(application(routes, access=with_token(None)))
        try:
            yield api
        finally:
            api.close()
