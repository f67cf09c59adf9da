"""`penstock up`: a whole Penstock on this host, until it is stopped.

Owns the order of the checks (data folder, lock, ports) before anything starts, and the messages to
the user. The command line owns exit codes.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import penstock
from penstock.core.clock import Clock
from penstock.core.errors import Conflict, NotFound
from penstock.core.log_format import LogFormatter
from penstock.services.host.data_folder import (
    DataFolder,
    DataFolderLock,
    about_process,
    broker_addresses,
)
from penstock.services.host.folder_permissions import make_deep_storage, private_data_folder
from penstock.services.host.host_plan import HostPlan
from penstock.services.host.launcher import Launcher
from penstock.services.host.process import listen_with_retries, retry_conflicts
from penstock.services.options.table import PenstockOptions, local_path
from penstock.storage.deletion_hold import clear_expired
from penstock.storage.disk import OsFileSystem

logger = logging.getLogger(__name__)

LOG_BYTES_MAX = 10 << 20
LOG_FILES_KEPT = 3

# Time limit for the end of a killed launcher's children.
AFTER_KILL_S = 3.0


def log_to_file(path: Path) -> None:
    """Send the log of this process to a file that is rotated by size."""
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=LOG_BYTES_MAX, backupCount=LOG_FILES_KEPT
    )
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def up(
    options: PenstockOptions,
    environment: Mapping[str, str],
    clock: Clock,
    print_line: Callable[[str], None],
) -> None:
    """Run Penstock until SIGTERM or SIGINT.

    Raises:
        InvalidRequest: The data folder is not Penstock's, of another format, or lacks its metadata;
            or the package for the URL of a store is not installed.
        Conflict: Another Penstock or a single role uses the folder, or a port is taken.
        Unavailable: The folder cannot be written, or a process does not start.
    """
    started_s = clock.monotonic_s()
    require_store_packages(options)
    folder = private_data_folder(options)
    if options.metadata_url is None:
        folder.require_metadata()
    lock = DataFolderLock(folder)
    lock.take()
    make_deep_storage(options)
    plan = HostPlan(options, folder, environment, clock)
    try:
        clear_expired(str(folder.path), clock)
        # The addresses still exist if the last launcher was killed.
        timeout_s = AFTER_KILL_S if folder.read_client_file() is not None else 0.0
        require_no_broker(folder, clock, timeout_s)
        log_to_file(folder.log / "launcher.log")
        plan.open(lambda address, option: listen_with_retries(address, option, clock, timeout_s))
        # Only now, because a refused start must not hide a server that runs.
        folder.remove_client_file()
        print_line(f"Penstock {penstock.__version__} is starting in {folder.path}")
        logger.info("%s", plan.queries.reason)
        if plan.queries.is_warning:
            print_line(plan.queries.reason)

        def on_ready() -> None:
            folder.write_client_file(client_file(plan.options, clock))
            took_s = clock.monotonic_s() - started_s
            print_line(f"ready after {took_s:.1f} s")
            print_line(f"  API     {plan.options.http.url}")
            print_line(f"  broker  {plan.options.broker_http_address.url}")
            print_line(f"  NSQ     {plan.options.broker_tcp_address}")
            print_line(f"  logs    {folder.log}")
            print_line("press Ctrl-C to stop")

        launcher = Launcher(plan.children(), folder.log, folder.run, clock, print_line, on_ready)
        try:
            launcher.run()
        finally:
            folder.remove_client_file(os.getpid())
        print_line("stopped")
    finally:
        plan.close()
        lock.release()


def require_store_packages(options: PenstockOptions) -> None:
    """Check that the packages for the deep storage and the log store are installed.

    Raises:
        InvalidRequest: One is not.
    """
    addresses = {
        "the deep storage": options.deep_storage_address,
        "the log store": options.task_logs_address,
    }
    for what, address in addresses.items():
        if local_path(address) is None:
            # Imported here, because stores in folders do not need fsspec.
            from penstock.segments.remote_files import require_file_system  # noqa: PLC0415

            require_file_system(what, address)


def require_no_broker(folder: DataFolder, clock: Clock, timeout_s: float) -> None:
    """Check that no `penstock server broker` has the topics of the data folder open.

    Args:
        folder: The data folder.
        clock: Measures the time limit.
        timeout_s: Time limit for the end of a broker whose launcher was killed.

    Raises:
        Conflict: One has; the message has its process id if it is known.
    """
    try:
        lock = partial(OsFileSystem().lock_folder, str(folder.topics))
        retry_conflicts(lock, clock, timeout_s).release()
    except NotFound:
        return
    except Conflict:
        pid = (folder.read_client_file() or {}).get("pid")
        process, stop = (f" (process {pid})", f" (kill {pid})") if pid else ("", "")
        raise Conflict(
            f"penstock server broker{process} runs in the data folder {folder.path}, and"
            f" penstock up starts a broker of its own: stop that process first{stop}, or"
            " name another folder with --data-dir"
        ) from None


def client_file(options: PenstockOptions, clock: Clock) -> dict[str, object]:
    """Return the content of `DIR/penstock.json` for clients; no secrets."""
    return {
        **about_process(clock),
        "http": options.http.url,
        **broker_addresses(options.broker_http_address, options.broker_tcp_address),
    }
