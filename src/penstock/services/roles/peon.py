"""Role of a peon: one indexing task, a Spark client, a control API.

Owns the resources of a task in this process, and the run of the task; `peon_start` starts the
process.

The process ends with its worker, because the kernel then kills it. If its input ends, the task is
requested to stop, and the process ends even if the task does not stop.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import logging
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.broker.security.tls import ServerTls
from penstock.core.bearer import Bearer
from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.threads import DEATHS, OwnedThread
from penstock.indexing.batch.batch_ports import BatchPorts
from penstock.indexing.batch.task_kinds import batch_kinds
from penstock.indexing.ports import TaskLocation
from penstock.indexing.specs.batch.spark_write import SparkWriteSpec
from penstock.indexing.specs.batch.sql_ingest import SqlIngestSpec
from penstock.indexing.task.streaming_state import TaskPorts
from penstock.indexing.task_spec import StreamTaskSpec, TaskSpec
from penstock.indexing.worker.builtin_kinds import StreamingPeonTask, noop_kind, streaming_kind
from penstock.indexing.worker.peon import Peon
from penstock.indexing.worker.peon_task import PeonTask, TaskKinds
from penstock.indexing.worker.task_attempts import WAITS
from penstock.mailbox.lanes import ThreadLanes
from penstock.segments.deep_storage import DeepStore
from penstock.services.api.asgi import application
from penstock.services.api.broker_port import HttpBrokerPort
from penstock.services.api.peon import PeonRoutes
from penstock.services.api.process_clients import HttpActionClient, WorkerLocator
from penstock.services.emitter.emitter import ServiceEmitter
from penstock.services.emitter.service_emitter import service_emitter, stop_emitter
from penstock.services.host.process import listen, reached_at
from penstock.services.host.signals import STOP_SIGNALS, SignalPipe
from penstock.services.host.tls_settings import server_tls
from penstock.services.http_server import HttpServer, api_guard
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.services.roles.peon_credentials import PeonCredentials, PeonToken
from penstock.services.roles.peon_events import PeonEvents, task_dimensions
from penstock.services.roles.process_metrics import process_metrics
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.light_client import import_client
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.pipeline import ENGINE_CONF
from penstock.spark.sink.checked_files import SparkFilesEngine
from penstock.spark.spark_engine import SparkEngine
from penstock.spark.tables import TableSource
from penstock.spark.tables.readable_tables import ReadableTables
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.storage.disk import OsFileSystem
from penstock.storage.metadata import MetadataStore
from penstock.storage.secrets.secret_sources import SECRETS
from penstock.storage.uploads import UPLOADS_FOLDER

if TYPE_CHECKING:
    from penstock.core.waits import DependencyWait

logger = logging.getLogger(__name__)

# Loaded by libraries during a task; `import_client` imports PySpark's client.
_IMPORTED_AT_FIRST_USE = ("encodings.idna", "numpy.ma", "uvicorn.lifespan.off")

_STDIN = 0
_LINE_BYTES_MAX = 65_536
# Time limit of a task after the end of its input; its worker is dead or about to kill it.
_ORPHAN_GRACE_S = 30.0


class PeonRole:
    """Resources of a task in this process: created once, before the task is known.

    Args:
        options: The options of the cluster.
        worker: Address of its worker.
        worker_name: The worker's name at the overlord.
        clock: Time.
        notify_worker: Notifies the worker of a change of the task.
    """

    def __init__(
        self,
        options: PenstockOptions,
        worker: HostPort,
        worker_name: str,
        clock: Clock,
        notify_worker: Callable[[], None],
    ) -> None:
        self._options = options
        self._worker_name = worker_name
        self._worker = worker
        self._token: Bearer = None
        self._credentials = PeonCredentials()
        self._locator = WorkerLocator(worker, options.broker_http)
        self._clock = clock
        self._notify_worker = notify_worker
        self._lanes = ThreadLanes("peon")
        self._server: HttpServer | None = None
        self._tls: ServerTls | None = None
        self._request_stop: Callable[[], None] = lambda: None
        self._emitter: ServiceEmitter | None = None
        self._events: PeonEvents | None = None
        # With the settings of all engines, because the task is not known while the process is
        # warmed.
        self._sessions = (
            SparkSessions(
                SparkSessionOptions(
                    options.spark_connect, conf=ENGINE_CONF, gets_environment_token=True
                )
            )
            if options.spark_connect
            else None
        )
        self._engine = SparkEngine(self._sessions) if self._sessions else None
        self._batch_engine: SparkBatchEngine | None = None
        self._metadata: MetadataStore | None = None
        self._folder: Path | None = None

    def warm(self) -> None:
        """Open the Spark session early, so that the task does not wait for it. Thread-safe."""
        if self._engine is not None:
            try:
                self._engine.connect()
            except PenstockError as error:
                logger.info("Spark does not answer yet, the task will connect: %s", error)

    def run(self, folder: str) -> int:
        """Run the task of a folder and return the exit code."""
        self._folder = Path(folder)
        self._credentials = PeonCredentials.read(self._folder)
        self._token = PeonToken(self._folder)
        self._locator = WorkerLocator(self._worker, self._options.broker_http, self._token)
        kinds = TaskKinds(
            [
                streaming_kind(self._stream_ports),
                *batch_kinds(self._batch_ports),
                noop_kind(self._clock),
            ]
        )
        with SignalPipe(STOP_SIGNALS) as pipe:
            self._request_stop = pipe.wake
            OwnedThread("worker watch", lambda: _watch_input(pipe.wake), may_return=True).start()
            stopping = _Stopping(pipe)
            try:
                peon = Peon(
                    folder,
                    OsFileSystem(),
                    self._clock,
                    kinds,
                    lambda spec, task: self._serve(spec, task, stopping),
                    # The worker reads it from the folder, and reports it to the overlord.
                    lambda _spec, _location: self._notify_worker(),
                )
                result = peon.run()
                self._notify_worker()
                if self._events is not None:
                    self._events.stop(result)
            except PenstockError:
                logger.exception("the task of %s cannot run", folder)
                return 1
            finally:
                stopping.close()
                self.close()
        logger.info("the task ended: %s %s", result.state.value, result.error)
        return 0

    def _serve(self, spec: TaskSpec, task: PeonTask, stopping: _Stopping) -> TaskLocation:
        """Start the control API; signals will stop the task."""
        stopping.begin(task)
        listener = listen(HostPort(self._options.http.host, 0), "--http")
        control = task.control if isinstance(task, StreamingPeonTask) else None
        emitter = service_emitter(self._options, self._clock, "peon", task_dimensions(spec))
        emitter.start()
        self._emitter = emitter
        counted = None if control is None else control.counts
        self._events = PeonEvents(task, emitter, self._clock, counted)
        self._events.start()
        routes = PeonRoutes(
            spec.id, task, self._request_stop, control, context=spec.context
        ).routes()
        guard = api_guard(self._options, self._clock)
        metrics = process_metrics(
            "peon", more=lambda: itertools.chain(emitter.samples(), guard.samples())
        )
        access = self._credentials.access_control(spec.id, self._clock)
        app = application(routes, access=access, metrics=metrics)
        self._tls = server_tls(self._options, self._clock, "peon")
        if self._tls is not None:
            self._tls.start()
        self._server = HttpServer(app, listener, guard, tls=self._tls)
        self._server.start()
        address = reached_at(listener)
        return TaskLocation(address.host, address.port)

    def _stream_ports(self, spec: StreamTaskSpec) -> TaskPorts:
        options = self._options
        if self._engine is None:
            raise InvalidRequest("the options of a peon must name a Spark server")
        broker = HttpBrokerPort(self._locator.broker_url, self._token)
        return TaskPorts(
            engine=self._engine,
            broker=broker,
            dead_letters=broker,
            actions=self._actions(spec.id),
            deep_store=DeepStore(options.deep_storage_address),
            fs=OsFileSystem(),
            lanes=self._lanes,
            clock=self._clock,
            new_token=lambda: uuid.uuid4().hex,
            waits_changed=self._waits_changed,
        )

    def _batch_ports(self, spec: TaskSpec) -> BatchPorts:
        options = self._options
        store = DeepStore(options.deep_storage_address)
        engine = SparkFilesEngine(store, self._clock) if isinstance(spec, SparkWriteSpec) else None
        return BatchPorts(
            engine=engine or self._spark_engine(spec),
            actions=self._actions(spec.id),
            store=store,
            clock=self._clock,
            new_token=lambda: uuid.uuid4().hex,
            waits_changed=self._waits_changed,
        )

    def _spark_engine(self, spec: TaskSpec) -> SparkBatchEngine:
        options = self._options
        if self._sessions is None:
            raise InvalidRequest("the options of a peon must name a Spark server")
        tables = self._tables(spec) if isinstance(spec, SqlIngestSpec) else None
        uploads = options.data_dir / UPLOADS_FOLDER
        reads = SparkBatchOptions(secrets=SECRETS.get(), uploads_folder=uploads)
        self._batch_engine = SparkBatchEngine(self._sessions, reads, tables)
        return self._batch_engine

    def _waits_changed(self, waits: tuple[DependencyWait, ...]) -> None:
        """Notify the worker of the reasons why the task waits. A task never calls it concurrently.

        If a report is lost, the report of the next attempt follows.
        """
        if self._folder is None:
            return
        content = json.dumps({"waits": [wait.to_json() for wait in waits]}).encode()
        fresh = self._folder / f"{WAITS}.new"
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            fresh.replace(self._folder / WAITS)
        except OSError as error:
            logger.info("the wait reasons of the task cannot be stored: %s", error)
            return
        self._notify_worker()

    def _actions(self, task_id: str) -> HttpActionClient:
        return HttpActionClient(task_id, self._locator, self._token, self._worker_name)

    def _tables(self, spec: SqlIngestSpec) -> TableSource:
        options = self._options
        self._metadata = MetadataStore.open(options.metadata_address, clock=self._clock)
        every = VisibleFiles(self._metadata, options.deep_storage_address)
        return every if spec.reads is None else ReadableTables(every, set(spec.reads).__contains__)

    def close(self) -> None:
        """Close Spark and the port; an error of one part does not keep others open."""
        DEATHS.process_stops()
        with contextlib.ExitStack() as parts:  # The part that was added last is closed first.
            for one in (self._metadata, self._engine, self._batch_engine):
                if one is not None:
                    parts.callback(one.close)
            if self._emitter is not None:
                parts.callback(stop_emitter, self._emitter)
            parts.callback(self._lanes.close)
            if self._tls is not None:
                parts.callback(self._tls.stop)
            if self._server is not None:
                parts.callback(self._server.stop)


class _Stopping:
    """Stops the task on a signal."""

    def __init__(self, pipe: SignalPipe) -> None:
        self._pipe = pipe
        self._thread: OwnedThread | None = None

    def begin(self, task: PeonTask) -> None:
        """Wait for the signal on a thread."""

        def wait() -> None:
            self._pipe.wait()
            # Nothing happens if the task has ended by itself.
            task.stop()

        self._thread = OwnedThread("stop", wait, may_return=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._pipe.wake()
        if self._thread is not None:
            self._thread.join(5)


def _watch_input(request_stop: Callable[[], None]) -> None:
    """Wait for the end of the input: the worker has died, or ends this process."""
    try:
        while os.read(_STDIN, _LINE_BYTES_MAX):
            pass
    except OSError:
        logger.info("the input cannot be read; signals and the worker's end are still noticed")
        return
    request_stop()
    threading.Event().wait(_ORPHAN_GRACE_S)
    logger.error("the task does not stop although its input has ended; the process ends")
    os._exit(2)


def import_ahead() -> None:
    """Import what tasks would import at their first use."""
    import_client()
    for name in _IMPORTED_AT_FIRST_USE:
        importlib.import_module(name)
