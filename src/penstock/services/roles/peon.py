"""Process of a peon: one indexing task, a Spark client, a control API.

The worker starts it (`peon_start`) as a separate process, or as the fork server that creates such
processes with all imports done. A peon opens a Spark session and waits for one line on its standard
input, which names the task's folder; from then on its output is that task's log. If the folder is
given at its start, it skips both steps.

The process ends whether its worker or its input ends first: the kernel kills it with the worker,
and the end of its input asks its task to stop, and ends the process if the task does not.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.log_format import log_to_stream
from penstock.core.threads import DEATHS, OwnedThread, start_job
from penstock.indexing.actions import UpdateLocation
from penstock.indexing.batch.ports import BatchPorts
from penstock.indexing.batch.task_kinds import batch_kinds
from penstock.indexing.ports import TaskLocation
from penstock.indexing.task.task_state import TaskPorts
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
from penstock.services.api.process_clients import HttpActionClient
from penstock.services.emitter.emitter import ServiceEmitter
from penstock.services.emitter.factory import service_emitter, stop_emitter
from penstock.services.host.fork_server import serve
from penstock.services.host.permissions import use_umask
from penstock.services.host.process import (
    die_with_parent,
    end_on_thread_death,
    listen,
    name_process,
)
from penstock.services.host.signals import STOP_SIGNALS, SignalPipe
from penstock.services.http_client import JsonClient
from penstock.services.http_server import HttpServer, api_guard
from penstock.services.options import resolution
from penstock.services.options.table import Options
from penstock.services.options.values import HostPort
from penstock.services.roles.peon_events import PeonEvents, task_dimensions
from penstock.services.roles.process_metrics import process_metrics
from penstock.spark.batch.engine import SparkBatchEngine
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.connect.light_client import import_client
from penstock.spark.connect.session import SparkSessionOptions, SparkSessions
from penstock.spark.engine import SparkEngine
from penstock.spark.pipeline import ENGINE_CONF
from penstock.spark.tables import TableSource
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.storage.filesystem import OsFileSystem
from penstock.storage.metadata import MetadataStore

if TYPE_CHECKING:
    from penstock.core.waits import DependencyWait

PEON_NAME = "penstock-peon"
"""Name of a peon for `ps`."""

logger = logging.getLogger(__name__)

# Loaded by libraries during a task; `import_client` imports PySpark's client.
_IMPORTED_AT_FIRST_USE = ("encodings.idna", "numpy.ma", "uvicorn.lifespan.off")

_STDIN = 0
_LINE_BYTES_MAX = 65_536
# Time limit of a task after the end of its input; its worker is dead or about to kill it.
_ORPHAN_GRACE_S = 30.0


class PeonRole:
    """Resources of a task in this process: made once, before the task is known.

    Args:
        options: The options of the cluster.
        worker: Address of its worker.
        worker_name: The worker's name at the overlord.
        clock: Time.
        say: Notifies the worker of a change of the task.
    """

    def __init__(
        self,
        options: Options,
        worker: HostPort,
        worker_name: str,
        clock: Clock,
        say: Callable[[], None],
    ) -> None:
        self._options = options
        self._worker_name = worker_name
        self._worker = JsonClient(f"http://{worker}", token=options.token, timeout_s=10)
        self._clock = clock
        self._say = say
        self._lanes = ThreadLanes("peon")
        self._server: HttpServer | None = None
        self._ask_stop: Callable[[], None] = lambda: None
        self._emitter: ServiceEmitter | None = None
        self._events: PeonEvents | None = None
        # With the settings of all engines, because the task is not known while the process is
        # warmed.
        self._sessions = (
            SparkSessions(SparkSessionOptions(options.spark_connect, conf=ENGINE_CONF))
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
        kinds = TaskKinds(
            [
                streaming_kind(self._stream_ports),
                *batch_kinds(self._batch_ports),
                noop_kind(self._clock),
            ]
        )
        with SignalPipe(STOP_SIGNALS) as pipe:
            self._ask_stop = pipe.wake
            OwnedThread("worker watch", lambda: _watch_input(pipe.wake), may_return=True).start()
            stopping = _Stopping(pipe)
            try:
                peon = Peon(
                    folder,
                    OsFileSystem(),
                    self._clock,
                    kinds,
                    lambda spec, task: self._serve(spec, task, stopping),
                    self._located,
                )
                result = peon.run()
                self._say()
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
        routes = PeonRoutes(spec.id, task, self._ask_stop, control, context=spec.context).routes()
        guard = api_guard(self._options, self._clock)
        metrics = process_metrics(
            "peon", more=lambda: itertools.chain(emitter.samples(), guard.samples())
        )
        app = application(routes, token=self._options.token, metrics=metrics)
        self._server = HttpServer(app, listener, guard)
        self._server.start()
        return TaskLocation(listener.getsockname()[0], self._server.port)

    def _located(self, spec: TaskSpec, location: TaskLocation) -> None:
        # The worker reads it from the folder, but the overlord learns it sooner from this process.
        self._say()
        self._lanes.submit("location", lambda: self._announce(spec.id, location))

    def _announce(self, task_id: str, location: TaskLocation) -> None:
        try:
            self._actions(task_id).perform(UpdateLocation(location.host, location.port))
        except PenstockError as error:
            logger.info("the location was not reported to the overlord: %s", error)

    def _stream_ports(self, spec: StreamTaskSpec) -> TaskPorts:
        options = self._options
        if self._engine is None:
            raise InvalidRequest("the options of a peon must name a Spark server")
        broker = HttpBrokerPort(self._find_broker, options.token)
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
        if self._sessions is None:
            raise InvalidRequest("the options of a peon must name a Spark server")
        tables = self._tables() if spec.type == "query_controller" else None
        # Environment of the variables that specs name for secrets; no others are read.
        reads = SparkBatchOptions(environment=os.environ)
        self._batch_engine = SparkBatchEngine(self._sessions, reads, tables)
        return BatchPorts(
            engine=self._batch_engine,
            actions=self._actions(spec.id),
            store=DeepStore(options.deep_storage_address),
            clock=self._clock,
            new_token=lambda: uuid.uuid4().hex,
            waits_changed=self._waits_changed,
        )

    def _waits_changed(self, waits: tuple[DependencyWait, ...]) -> None:
        """Notify the worker of what the task waits for. A task never calls it concurrently.

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
        self._say()

    def _actions(self, task_id: str) -> HttpActionClient:
        token = self._options.token
        return HttpActionClient(task_id, self._find_overlord, token, self._worker_name)

    def _tables(self) -> TableSource:
        options = self._options
        self._metadata = MetadataStore.open(options.metadata_address, clock=self._clock)
        return VisibleFiles(self._metadata, options.deep_storage_address)

    def _find_broker(self) -> str:
        if self._options.broker_http is not None:
            return self._options.broker_http.url
        return str(self._worker.get("/druid-internal/v1/broker"))

    def _find_overlord(self) -> HostPort:
        # The worker reads the leases, so that this process needs no metadata store of its own.
        return HostPort.parse(str(self._worker.get("/druid-internal/v1/leader")))

    def close(self) -> None:
        """Close Spark and the port; an error of one part does not keep others open."""
        DEATHS.process_stops()
        with contextlib.ExitStack() as parts:  # The last one added is closed first.
            for one in (self._metadata, self._engine, self._batch_engine):
                if one is not None:
                    parts.callback(one.close)
            if self._emitter is not None:
                parts.callback(stop_emitter, self._emitter)
            parts.callback(self._lanes.close)
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


def _watch_input(ask_stop: Callable[[], None]) -> None:
    """Wait for the end of the input: the worker has died, or wants this process to end."""
    try:
        while os.read(_STDIN, _LINE_BYTES_MAX):
            pass
    except OSError:
        logger.info("the input cannot be read; the worker's signals and death are still noticed")
        return
    ask_stop()
    threading.Event().wait(_ORPHAN_GRACE_S)
    logger.error("the task does not stop although its input has ended; the process ends")
    os._exit(2)


def _wait_for_folder() -> str | None:
    """Wait for the line that names the folder of a task; None: the input has ended."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            part = os.read(_STDIN, _LINE_BYTES_MAX)
        except OSError:
            return None
        if not part or len(line) > _LINE_BYTES_MAX:
            return None
        line += part
    return str(json.loads(line)["folder"])


def _log_into(folder: str) -> None:
    """From now on, send this process's output to the log of the task in a folder."""
    sys.stdout.flush()
    descriptor = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _sayer(descriptor: int | None) -> Callable[[], None]:
    """Return a function that notifies the worker of changes of this task."""
    if descriptor is None:
        return lambda: None
    os.set_inheritable(descriptor, False)  # noqa: FBT003

    def say() -> None:
        with contextlib.suppress(OSError):  # the worker has died
            os.write(descriptor, b".")

    return say


def _import_ahead() -> None:
    """Import what tasks would import at their first use."""
    import_client()
    for name in _IMPORTED_AT_FIRST_USE:
        importlib.import_module(name)


def main(arguments: list[str]) -> int:
    """Read the arguments, run, and return the exit code; `peon_start` calls it."""
    parser = argparse.ArgumentParser(prog="penstock.services.roles.peon_start")
    parser.add_argument("--folder")
    parser.add_argument("--options", type=Path, required=True)
    parser.add_argument("--worker", type=HostPort.parse, required=True)
    parser.add_argument("--worker-name", required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--words-fd", type=int)
    parser.add_argument("--forks-fd", type=int)
    given = parser.parse_args(arguments)
    words: int | None = given.words_fd
    if given.forks_fd is not None and words is not None:
        _import_ahead()
        words = serve(given.forks_fd, words)
        # The process that requested the fork is its parent, too; the kernel forgets `peon_start`'s
        # call.
        die_with_parent(given.parent)
    end_on_thread_death()
    name_process(PEON_NAME)
    # Its output is the task's log.
    log_to_stream(sys.stdout)
    options = resolution.from_json(given.options.read_text())
    use_umask(options)
    say = _sayer(words)
    process = PeonRole(options, given.worker, given.worker_name, SystemClock(), say)
    folder: str | None = given.folder
    if folder is None:
        # In parallel: a task that needs no Spark does not wait for it.
        start_job("warm", process.warm)
        folder = _wait_for_folder()
        if folder is None:
            process.close()
            return 0
        _log_into(folder)
    return process.run(folder)
