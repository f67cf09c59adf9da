"""The worker's process: runs each indexing task in a peon of its own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

from penstock.indexing.worker import Worker, WorkerOptions
from penstock.indexing.worker.tasklogs import TaskLogs
from penstock.services import config
from penstock.services.api.asgi import application
from penstock.services.api.worker import WorkerRoutes
from penstock.services.config import Address
from penstock.services.host.plan import child_environment
from penstock.services.host.process import ChildCommand, spawn
from penstock.services.httpserver import HttpServer
from penstock.services.leases import Announcement, Announcer, Directory
from penstock.services.lifecycle import Handler, Lifecycle, Stage
from penstock.services.roles.mailbox import role_mailbox
from penstock.services.roles.processmetrics import process_metrics
from penstock.services.roles.runtime import RoleContext
from penstock.storage.filesystem import OsFileSystem
from penstock.storage.metadata import MetadataStore

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 30.0
_PEON_STOP_TIMEOUT_S = 8.0


class Peon:
    """`PeonProcess`: a peon as a child process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def exit_code(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self.process.poll()

    def terminate(self) -> None:
        """Ask it to stop at the next good moment."""
        self.process.terminate()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()


class Peons:
    """`PeonLauncher`: starts peons that end when the calling thread, the worker's mailbox, ends."""

    def __init__(self, options_file: Path, worker: Address) -> None:
        self._options_file = options_file
        self._worker = worker
        self._started: list[Peon] = []

    def launch(self, task_id: str, folder: str) -> Peon:
        """Start a peon in a task's folder."""
        argv = (
            *(sys.executable, "-m", "penstock.services.roles.peon", folder),
            *("--options", str(self._options_file), "--worker", str(self._worker)),
            *("--parent", str(os.getpid())),
        )
        command = ChildCommand(argv, child_environment(os.environ))
        peon = Peon(spawn(command, Path(folder) / "log"))
        logger.info("peon of task %s started as process %d", task_id, peon.process.pid)
        self._started = [one for one in self._started if one.exit_code() is None]
        self._started.append(peon)
        return peon

    def wait_all(self) -> None:
        """Wait until all have ended, a bounded time, and kill those that have not."""
        for peon in self._started:
            try:
                peon.process.wait(_PEON_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                logger.warning("peon %d did not stop in time and is killed", peon.process.pid)
                peon.kill()
                peon.process.wait()


def compose(context: RoleContext) -> Lifecycle:
    """Put the process together."""
    options = context.options
    store = MetadataStore.open(options.metadata_address, clock=context.clock)
    mailbox, mailbox_handler = role_mailbox(context)
    options_file = context.folder.children_options
    if not options_file.exists():  # a worker without a launcher
        options_file.touch(0o600)
        options_file.write_text(config.to_json(options))
    fs, tasks = OsFileSystem(), str(context.folder.tasks)
    logs = TaskLogs(tasks, str(context.folder.task_logs), fs)
    peons = Peons(options_file, context.address)
    worker = Worker(
        tasks,
        fs,
        peons,
        mailbox.processor,
        context.clock,
        WorkerOptions(capacity=options.worker_capacity),
        logs,
    )
    directory = Directory(store.leases)

    routes = WorkerRoutes(worker, logs.path, lambda: directory.find("overlord")).routes()
    server = HttpServer(
        application(routes, token=options.token, metrics=process_metrics("worker")),
        context.listener,
    )
    announcement = Announcement("worker", context.instance, context.address)
    announcer = Announcer(store.leases, announcement, context.clock)

    def stop() -> None:
        try:
            worker.stop().result(_START_TIMEOUT_S)
        except FutureTimeoutError:
            logger.warning("the worker is busy; its peons end with it")
        peons.wait_all()

    lifecycle = Lifecycle()
    lifecycle.add_handler(Handler("metadata", stop=store.close))
    lifecycle.add_handler(mailbox_handler)
    lifecycle.add_handler(Handler("HTTP", server.start, server.stop), Stage.SERVER)
    lifecycle.add_handler(
        Handler("tasks", lambda: worker.start().result(_START_TIMEOUT_S), stop), Stage.SERVER
    )
    lifecycle.add_handler(Handler("lease", announcer.start, announcer.stop), Stage.ANNOUNCEMENTS)
    lifecycle.add_handler(Handler("readiness", context.say_ready), Stage.ANNOUNCEMENTS)
    return lifecycle
