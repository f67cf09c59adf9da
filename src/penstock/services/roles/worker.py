"""Process of the worker: runs each indexing task in its own peon."""

from __future__ import annotations

import hashlib
import itertools
import logging
import uuid
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from penstock.core.durations import parse_duration
from penstock.core.errors import Dependency, InvalidRequest, Unavailable
from penstock.core.waits import DependencyWait, merged
from penstock.indexing.worker import Worker, WorkerOptions
from penstock.indexing.worker.log_store import LogStore, TaskLogs
from penstock.indexing.worker.task_folders import worker_identity
from penstock.mailbox import MailboxExecutor
from penstock.mailbox.lanes import ThreadLanes
from penstock.segments.deep_storage import DeepStore
from penstock.services.api.asgi import BODY_BYTES_MAX, application
from penstock.services.api.worker import WorkerRoutes
from penstock.services.http_server import HttpServer
from penstock.services.lifecycle import Lifecycle, LifecycleHandler, StartStage
from penstock.services.membership.membership import BrokerFinder, Membership
from penstock.services.options import resolution
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.services.readiness import Check
from penstock.services.roles.mailbox import role_mailbox
from penstock.services.roles.peon_credentials import credentials_of
from penstock.services.roles.peon_processes import PeonOptions, PeonProcesses
from penstock.services.roles.process_metrics import process_metrics
from penstock.services.roles.runtime import RoleContext
from penstock.spark.connect.spark_sessions import check_answers
from penstock.storage.disk import OsFileSystem
from penstock.storage.filesystem import FileSystem
from penstock.storage.metadata import MetadataStore

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 30.0
# Less than the launcher's limit for stopping a worker, which may stop during the wait.
_FORK_SERVER_WAIT_S = 10.0


class _Claim:
    """Locks the task folders, because two workers on one folder would start each other's tasks."""

    def __init__(self, folders: list[str], fs: FileSystem) -> None:
        self._folders = folders
        self._fs = fs
        self._locks = ExitStack()

    def take(self) -> None:
        """Lock the folders.

        Raises:
            Conflict: Another worker has locked a folder.
        """
        for folder in self._folders:
            self._fs.mkdir(folder)
            self._locks.callback(self._fs.lock_folder(folder).release)

    def release(self) -> None:
        """Unlock the folders."""
        self._locks.close()


def compose(context: RoleContext) -> Lifecycle:
    """Build the process.

    Raises:
        InvalidRequest: There is no Spark server, so all its tasks would fail.
    """
    options = context.options
    if options.spark_connect is None:
        raise InvalidRequest(
            "a worker on its own starts no Spark server, and without one each of its tasks fails:"
            " give --spark-connect sc://HOST:PORT, or start penstock up, which brings one"
        )
    store = MetadataStore.open(options.metadata_address, clock=context.clock)
    membership = Membership(options, store, context.clock)
    mailbox, mailbox_handler = role_mailbox(context)
    fs = OsFileSystem()
    folders = [str(one.absolute()) for one in options.task_folders] or [str(context.folder.tasks)]
    instance = worker_identity(folders[0], fs, lambda: f"worker-{uuid.uuid4().hex[:12]}")
    options_file, stored = _options_file(context, instance), context.stored_options or options
    claim = _Claim(folders, fs)
    lanes = ThreadLanes("worker")
    logs = TaskLogs(folders, fs, LogStore(options.task_logs_address), lanes)
    peons = PeonProcesses(
        *(options_file, (context.address, instance), context.folder.log / "spare.out"),
        *(
            mailbox.processor,
            context.clock,
            PeonOptions(
                spares=options.worker_spares,
                credentials=partial(credentials_of, context.access),
            ),
        ),
    )
    worker_options = _worker_options(options)
    surroundings = (folders, fs, peons, mailbox.processor, context.clock, lanes)
    worker = Worker(*surroundings, worker_options, logs)
    directory = membership.directory

    broker = BrokerFinder(options, directory)
    routes = WorkerRoutes(
        *(str(context.address), worker, logs, directory, broker), options.task_body_bytes
    ).routes()
    deep_store = DeepStore(options.deep_storage_address)
    readiness = context.readiness(
        [
            Check("read the metadata", Dependency.METADATA, store.leases.list),
            Check("find the overlord", Dependency.OVERLORD, lambda: directory.find("overlord")),
            Check("reach the deep storage", Dependency.STORAGE, deep_store.probe),
            Check("reach Spark", Dependency.SPARK, partial(check_answers, options.spark_connect)),
            Check("answer for tasks", Dependency.WORKER, worker.report),
        ],
        lambda: merged([membership.waits(), peons.waits.all(), _waits_of(worker)]),
    )
    server = HttpServer(
        application(
            routes,
            access=context.access,
            metrics=process_metrics(
                "worker",
                more=lambda: itertools.chain(context.samples(), readiness.samples()),
                faults={"discovery": membership.faults},
            ),
            ready=readiness.state,
            body_bytes_max=max(BODY_BYTES_MAX, options.task_body_bytes),
        ),
        context.listener,
        context.guard,
        tls=context.tls,
    )

    lifecycle = Lifecycle()
    lifecycle.add_handler(LifecycleHandler("task folders", claim.take, claim.release))
    if not context.is_launched:
        # After the lock, so that no other worker writes the same file.
        lifecycle.add_handler(
            LifecycleHandler("options of peons", lambda: _write_options(options_file, stored))
        )
    lifecycle.add_handler(LifecycleHandler("metadata", stop=store.close))
    lifecycle.add_handler(
        LifecycleHandler("task roots", lambda: _register(store, instance, folders, fs))
    )
    lifecycle.add_handler(LifecycleHandler("lanes", stop=lanes.close))
    lifecycle.add_handler(mailbox_handler)
    lifecycle.add_handler(LifecycleHandler("HTTP", server.start, server.stop), StartStage.SERVER)
    lifecycle.add_handler(_tasks(worker, peons, mailbox.executor), StartStage.SERVER)
    offered = _offered(context.address, worker_options)
    membership.add_to(lifecycle, "worker", instance, context.address, offered)
    context.publish_audit(lifecycle, broker.http)
    lifecycle.add_handler(
        LifecycleHandler("readiness", readiness.start, readiness.stop), StartStage.ANNOUNCEMENTS
    )
    return lifecycle


def _waits_of(worker: Worker) -> list[DependencyWait]:
    """Return the waits of a worker and its tasks; if it is busy, its check reports that."""
    try:
        return worker.waits()
    except Unavailable:
        return []


def _tasks(worker: Worker, peons: PeonProcesses, mailbox: MailboxExecutor) -> LifecycleHandler:
    """Return the handler that begins and ends the work on tasks."""

    def start() -> None:
        # On the mailbox thread: the kernel ends children with the thread that started them.
        mailbox.submit_change(lambda: peons.start(worker.check), "start").result(_START_TIMEOUT_S)
        peons.wait_for_server(_FORK_SERVER_WAIT_S)
        worker.start().result(_START_TIMEOUT_S)

    def stop() -> None:
        try:
            worker.stop().result(_START_TIMEOUT_S)
            mailbox.submit_change(peons.end_spares, "end the spares").result(_START_TIMEOUT_S)
        except FutureTimeoutError:
            logger.warning("the worker is busy; its peons end with it")
        finally:
            peons.stop()

    return LifecycleHandler("tasks", start, stop)


def _register(store: MetadataStore, instance: str, folders: list[str], fs: FileSystem) -> None:
    """Store the current locations of the task folders, which may have been moved.

    Raises:
        Unavailable: The metadata store does not answer.
    """
    for number, folder in enumerate(folders):
        root = instance if number == 0 else f"{instance}/{number}"
        store.roots.register(root, folder, fs.listdir(folder))


def _worker_options(options: PenstockOptions) -> WorkerOptions:
    return WorkerOptions(
        capacity=options.worker_slots,
        category=options.worker_category,
        version=options.worker_version,
        shutdown_grace_ms=parse_duration(options.task_shutdown_timeout),
        task_bytes_max=options.task_bytes,
    )


def _offered(address: HostPort, options: WorkerOptions) -> dict[str, dict[str, object]]:
    """Return the worker's announcement, in Druid's form."""
    return {
        "workerNodeService": {
            "ip": address.host,
            "capacity": options.capacity,
            "version": options.version,
            "category": options.category,
        }
    }


def _options_file(context: RoleContext, instance: str) -> Path:
    """Return the file with the options for peons; each worker of a data folder has its own."""
    if context.is_launched:
        return context.folder.children_options
    name = hashlib.sha256(instance.encode()).hexdigest()[:12]
    return context.folder.run / f"worker-{name}.json"


def _write_options(path: Path, options: PenstockOptions) -> None:
    path.unlink(missing_ok=True)
    path.touch(0o600)  # it contains secrets that are written as text
    path.write_text(resolution.to_json(options))
