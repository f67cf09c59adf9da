"""`penstock up`: a whole Penstock on this host, until it is stopped.

Owns the order of the checks (data folder, lock, ports) before anything starts, and the messages to
the user. The command line owns exit codes.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import penstock
from penstock.broker.http_server.host_policy import EVERY_INTERFACE
from penstock.broker.security.tls import ServerTls
from penstock.core.access.access_folder import AccessFolder
from penstock.core.access.browser_logins import LINK_MS
from penstock.core.access.credentials import CredentialFile
from penstock.core.clock import Clock
from penstock.core.errors import Conflict, NotFound, PenstockError
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
from penstock.services.host.login_links import new_login_link
from penstock.services.host.process import listen_with_retries, retry_conflicts
from penstock.services.host.tls_settings import require_protection, server_tls, use_trust
from penstock.services.options.option_values import HostPort
from penstock.services.options.resolution import check_secrets
from penstock.services.options.table import PenstockOptions, local_path
from penstock.storage.deletion_hold import clear_expired
from penstock.storage.disk import OsFileSystem
from penstock.storage.secrets.secret_sources import Secrets

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
    *,
    shows_link: bool = False,
) -> None:
    """Run Penstock until SIGTERM or SIGINT.

    Args:
        options: The options.
        environment: Variables.
        clock: Time.
        print_line: Prints a line for the user.
        shows_link: Print a link with which a browser logs in, if a login is needed. Only on a
            terminal: an output that is kept would have a secret.

    Raises:
        InvalidRequest: The data folder is not Penstock's, of another format, or lacks its metadata;
            a file of access is not valid; or a secret that an option names does not exist; or the
            package for the URL of a store is not installed; or a port that other hosts reach lacks
            protection.
        Conflict: Another Penstock or a single role uses the folder, or a port is taken.
        Unavailable: The folder cannot be written, or a process does not start.
    """
    started_s = clock.monotonic_s()
    require_store_packages(options)
    folder = private_data_folder(options)
    check_secrets(options, Secrets(folder.secrets))
    if options.metadata_url is None:
        folder.require_metadata()
    prepare_access(options, clock)
    warnings = require_protection(
        options,
        [
            (options.http, "--http"),
            (options.broker_http_address, "--broker-http"),
            (options.broker_tcp_address, "--broker-tcp"),
            *([] if options.flight is None else [(options.flight, "--flight")]),
        ],
    )
    lock = DataFolderLock(folder)
    lock.take()
    make_deep_storage(options)
    # Before the processes start, so that not all of them have to wait for it.
    tls = server_tls(options, clock)
    use_trust(options)
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
        for warning in warnings:
            logger.warning("%s", warning)
            print_line(f"WARNING {warning}")
        logger.info("%s", plan.queries.reason)
        if plan.isolation is not None:
            logger.info("%s", plan.isolation.text)
        if plan.queries.is_warning:
            print_line(plan.queries.reason)

        def on_ready() -> None:
            folder.write_client_file(client_file(plan.options, clock))
            took_s = clock.monotonic_s() - started_s
            print_line(f"ready after {took_s:.1f} s")
            print_line(f"  console {plan.options.http.url}/")
            print_line(f"  API     {plan.options.http.url}{elsewhere(plan.options)}")
            print_line(f"  broker  {plan.options.broker_http_address.url}")
            print_line(f"  NSQ     {plan.options.broker_tcp_address}")
            if plan.options.flight is not None:
                print_line(f"  Flight  {flight_url(plan.options.flight, tls)}")
            print_line(f"  logs    {folder.log}")
            for line in login_lines(plan.options, clock, shows_link=shows_link):
                print_line(line)
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


def flight_url(address: HostPort, tls: ServerTls | None) -> str:
    """Return the URL with which drivers of Flight SQL connect.

    Args:
        address: Where the router listens.
        tls: TLS of this host; None: none.
    """
    is_secure = tls is not None and tls.options.certificate is not None
    return f"{'grpc+tls' if is_secure else 'grpc'}://{address}"


def login_lines(options: PenstockOptions, clock: Clock, *, shows_link: bool) -> Iterator[str]:
    """Return how a browser logs in; nothing if no login is needed."""
    if not shows_link:
        return
    try:
        link = new_login_link(options, options.http.url, clock)
    except PenstockError as error:  # narrow: Penstock runs, and this is a convenience
        logger.warning("there is no link for a browser: %s", error)
        yield "  login   penstock login --link"
        return
    if link is not None:
        yield f"  login   {link}  (one use, within {LINK_MS // 60_000} minutes)"


def elsewhere(options: PenstockOptions) -> str:
    """Return how other hosts reach the API, to add to its URL; empty if they do not."""
    if options.http.host not in EVERY_INTERFACE:
        return ""
    address = HostPort(socket.gethostname(), options.http.port)
    return f"; for other hosts {address.url}"


def prepare_access(options: PenstockOptions, clock: Clock) -> None:
    """Create the first secrets of access, and check its files.

    A process that is restarted does not refuse to start with an invalid file: see `access_folder`.

    Raises:
        InvalidRequest: A file is not valid.
        Unavailable: A file cannot be read or written.
    """
    access = AccessFolder(options.access_path)
    access.make_secrets(clock)
    access.read_rules()
    CredentialFile(access.credentials, clock).read()


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
