"""A peon's process: one indexing task, a Spark client, a control API.

`python -m penstock.services.roles.peon FOLDER …`, started by the worker in a task's folder.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import uuid
from pathlib import Path

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.indexing.lanes import ThreadLanes
from penstock.indexing.ports import TaskLocation
from penstock.indexing.task import StreamingTask
from penstock.indexing.task.state import TaskPorts
from penstock.indexing.taskspec import StreamTaskSpec
from penstock.indexing.worker.peon import run_peon
from penstock.segments.deepstore import DeepStore
from penstock.services import config
from penstock.services.api.asgi import application
from penstock.services.api.brokerport import HttpBrokerPort
from penstock.services.api.clients import HttpActionClient
from penstock.services.api.peon import PeonRoutes
from penstock.services.config import Address, Options
from penstock.services.host.process import die_with_parent, listen
from penstock.services.host.signals import STOP_SIGNALS, SignalPipe
from penstock.services.host.up import LOG_FORMAT
from penstock.services.httpclient import JsonClient
from penstock.services.httpserver import HttpServer
from penstock.services.roles.processmetrics import process_metrics
from penstock.spark.connect.session import SparkSessionOptions, SparkSessions
from penstock.spark.engine import SparkEngine
from penstock.storage.filesystem import OsFileSystem

logger = logging.getLogger(__name__)


class _Peon:
    """What one task works with, made when its folder is locked."""

    def __init__(self, options: Options, worker: Address, clock: Clock, pipe: SignalPipe) -> None:
        self._options = options
        self._worker = JsonClient(f"http://{worker}", token=options.token, timeout_s=10)
        self._clock = clock
        self._pipe = pipe
        self._task_id = ""
        self._engine: SparkEngine | None = None
        self._server: HttpServer | None = None
        self._watcher: threading.Thread | None = None

    def make_ports(self, spec: StreamTaskSpec) -> TaskPorts:
        """Make what the task works with."""
        options = self._options
        if options.spark_connect is None:
            raise InvalidRequest("the options of a peon must name a Spark server")
        self._task_id = spec.id
        self._engine = SparkEngine(SparkSessions(SparkSessionOptions(options.spark_connect)))
        broker = HttpBrokerPort(options.broker_http.url, options.token)
        return TaskPorts(
            engine=self._engine,
            broker=broker,
            dead_letters=broker,
            actions=HttpActionClient(spec.id, self._find_overlord, options.token),
            deep_store=DeepStore(options.deep_storage_address),
            fs=OsFileSystem(),
            lanes=ThreadLanes("peon"),
            clock=self._clock,
            new_token=lambda: uuid.uuid4().hex,
        )

    def _find_overlord(self) -> Address:
        # The worker knows the leases; this process does without a metadata store of its own.
        return Address.parse(str(self._worker.get("/druid-internal/v1/leader")))

    def serve(self, task: StreamingTask) -> TaskLocation:
        """Start the control API, and have signals stop the task."""
        self._watcher = threading.Thread(target=self._stop_when_told, args=(task,), daemon=True)
        self._watcher.start()
        listener = listen(Address(self._options.http.host, 0), "--http")
        routes = PeonRoutes(self._task_id, task, self._pipe.wake).routes()
        metrics = process_metrics("peon")
        self._server = HttpServer(
            application(routes, token=self._options.token, metrics=metrics), listener
        )
        self._server.start()
        return TaskLocation(listener.getsockname()[0], self._server.port)

    def _stop_when_told(self, task: StreamingTask) -> None:
        self._pipe.wait()
        # Nothing happens when the task has ended by itself.
        task.stop()

    def close(self) -> None:
        """Let go of Spark, the port and the signals."""
        self._pipe.wake()
        if self._watcher is not None:
            self._watcher.join(5)
        if self._server is not None:
            self._server.stop()
        if self._engine is not None:
            self._engine.close()


def run(folder: Path, options: Options, worker: Address) -> int:
    """Run the task of a folder and return the exit code."""
    clock = SystemClock()
    with SignalPipe(STOP_SIGNALS) as pipe:
        peon = _Peon(options, worker, clock, pipe)
        try:
            result = run_peon(str(folder), OsFileSystem(), clock, peon.make_ports, peon.serve)
        except PenstockError:
            logger.exception("the task of %s cannot run", folder)
            return 1
        finally:
            peon.close()
    logger.info("the task ended: %s %s", result.state.value, result.error)
    return 0


def main(arguments: list[str]) -> int:
    """Read the arguments, run, and return the exit code."""
    parser = argparse.ArgumentParser(prog="penstock.services.roles.peon")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--options", type=Path, required=True)
    parser.add_argument("--worker", type=Address.parse, required=True)
    parser.add_argument("--parent", type=int, required=True)
    given = parser.parse_args(arguments)
    die_with_parent(given.parent)
    # Its output is the task's log.
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stdout)
    return run(given.folder, config.from_json(given.options.read_text()), given.worker)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
