"""Process runtime that all roles share: options, logging, signals and readiness.

Owns the life of a role's process from its arguments to its exit code, its inherited listening
sockets, and the progress lines that it reports to the launcher during its start. Also owns the
start log: release, machine, and the options that differ from their defaults, without secrets.
Does not own the components that run in the process; each role's module composes them.
`StartReporter` may be used from any thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import platform
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import penstock
from penstock.broker.file_limits import raise_descriptor_limit
from penstock.broker.http_server.guard import HttpGuard
from penstock.core.clock import Clock
from penstock.core.log_format import log_to_stream
from penstock.core.metrics import Sample
from penstock.core.read_guard import READ_GUARD
from penstock.core.threads import DEATHS, Death
from penstock.core.waits import DependencyWait
from penstock.indexing.secrets import MASK
from penstock.services.emitter.emitter import Emitter, ServiceEmitter
from penstock.services.emitter.events import AlertEvent, Severity
from penstock.services.emitter.service_emitter import service_emitter, stop_emitter
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.folder_permissions import make_deep_storage, private_data_folder
from penstock.services.host.private_files import read_guard
from penstock.services.host.process import READY_LINE, REASON_CHARACTERS_MAX, WAITING_MARK, listen
from penstock.services.host.restart_policy import RESTART_REQUESTED
from penstock.services.host.signals import STOP_SIGNALS, SignalPipe
from penstock.services.http_server import api_guard
from penstock.services.lifecycle import Lifecycle, LifecycleHandler, StartStage
from penstock.services.options.option_values import HostPort, masked
from penstock.services.options.table import PenstockOptions
from penstock.services.readiness import Check, Readiness, StartListener
from penstock.spark.connect.connect_address import SCHEME, ConnectAddress
from penstock.storage.deletion_hold import clear_expired

_SECRETS: Final = frozenset({"token", "emitter_auth"})


def start_line(version: str, python: str, processors: int, memory_bytes: int) -> str:
    """Return the line about release and machine."""
    memory = f"{memory_bytes / (1 << 30):.1f} GiB of memory" if memory_bytes else "memory unknown"
    return f"Penstock {version} on Python {python}, {processors} processors, {memory}"


def options_line(options: PenstockOptions) -> str:
    """Return the line with the options that differ from their defaults."""
    given = [
        f"{item.name.replace('_', '-')}={_shown(item.name, getattr(options, item.name))}"
        for item in fields(options)
        if getattr(options, item.name) != item.default
    ]
    return "options: " + (", ".join(sorted(given)) or "the defaults")


def _shown(name: str, value: object) -> str:
    if name in _SECRETS:
        return MASK
    if str(value).startswith(SCHEME):
        return ConnectAddress.parse(str(value)).masked(MASK)
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return masked(text, MASK)


logger = logging.getLogger(__name__)

# Roles that read or write the deep storage.
_OF_SEGMENTS: Final = frozenset({"overlord", "router", "worker"})


@dataclass(frozen=True, slots=True)
class RoleContext:
    """Context of a role.

    Attributes:
        name: The role.
        options: The options of this Penstock.
        clock: Time.
        listener: Its listening socket.
        start_listener: Receives the progress of the start.
        request_stop: Ends the process cleanly, with an exit code that requests a restart;
            thread-safe.
        emitter: Emitter that runs as long as the process.
        tcp_listener: The socket of NSQ's TCP protocol; the broker has one.
        samples: Metrics of events and of HTTP requests.
        is_launched: Whether a launcher started this process, and wrote the options for children.
        guard: Limits of the API's port.
    """

    name: str
    options: PenstockOptions
    clock: Clock
    listener: socket.socket
    start_listener: StartListener
    request_stop: Callable[[], None]
    emitter: Emitter
    tcp_listener: socket.socket | None = None
    samples: Callable[[], Iterable[Sample]] = tuple
    is_launched: bool = True
    guard: HttpGuard = field(default_factory=HttpGuard)

    def readiness(
        self,
        checks: Sequence[Check],
        waits: Callable[[], Sequence[DependencyWait]] = tuple,
    ) -> Readiness:
        """Return the readiness of this process, which reports to the launcher.

        Args:
            checks: Checks of its parts.
            waits: Returns the waits of its work.
        """
        return Readiness(self.name, checks, self.clock, self.start_listener, waits)

    @property
    def folder(self) -> DataFolder:
        """Return the data folder."""
        return DataFolder(self.options.data_dir)

    @property
    def instance(self) -> str:
        """Return its name among those of its role; several may share one data folder.

        A worker uses the id in its folder of tasks instead.
        """
        return str(self.address)

    @property
    def address(self) -> HostPort:
        """Return the address at which others reach this process."""
        host, port = self.listener.getsockname()[:2]
        if host in ("0.0.0.0", "::"):  # compared, not bound  # noqa: S104
            host = socket.gethostname()
        return HostPort(host, port)


@dataclass(frozen=True, slots=True)
class InheritedSocket:
    """A listening socket from the parent, by its descriptor; or an address to listen on."""

    descriptor: int | None
    address: HostPort
    option: str = "--http"

    def open(self) -> socket.socket:
        """Return the listening socket. Raises as `penstock.services.host.process.listen`."""
        if self.descriptor is None:
            return listen(self.address, self.option)
        listener = socket.socket(fileno=self.descriptor)
        # Child processes must not keep the port when this process ends.
        listener.set_inheritable(False)
        return listener


class StartReporter:
    """Reports the progress of this process's start to the launcher, one line each. Thread-safe.

    The mutex guards the descriptor, because several threads report readiness checks.

    Args:
        descriptor: The pipe to the launcher; None: there is no launcher.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._mutex = threading.Lock()
        self._last_reason = ""
        if descriptor is not None:
            os.set_inheritable(descriptor, False)  # noqa: FBT003

    def ready(self) -> None:
        """Report that this process is ready; later reports are ignored."""
        with self._mutex:
            if self._descriptor is None:
                return
            with contextlib.suppress(OSError):  # the launcher has ended
                os.write(self._descriptor, READY_LINE)
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def waiting(self, text: str) -> None:
        """Report why this process is not ready yet; the same text is reported once."""
        line = " ".join(text.split())[:REASON_CHARACTERS_MAX]
        with self._mutex:
            if self._descriptor is not None and line != self._last_reason:
                self._last_reason = line
                with contextlib.suppress(OSError):  # the launcher has ended
                    os.write(self._descriptor, WAITING_MARK + line.encode() + b"\n")


def run_alone(
    name: str, options: PenstockOptions, clock: Clock, compose: Callable[[RoleContext], Lifecycle]
) -> int:
    """Run a role without a launcher; return its exit code. Raises as `run_role`."""
    log_to_stream()
    options = dataclasses.replace(options, data_dir=options.data_dir.absolute())
    folder = private_data_folder(options)
    if name != "broker" and options.metadata_url is None:
        folder.require_metadata()
    if name in _OF_SEGMENTS:
        make_deep_storage(options)
    clear_expired(str(folder.path), clock)
    addresses = {
        "router": (options.http, "--http"),
        "broker": (options.broker_http_address, "--broker-http"),
    }
    # Other roles are found by their leases and may use any port.
    address, option = addresses.get(name, (HostPort(options.http.host, 0), "--http"))
    listening = [InheritedSocket(None, address, option)]
    if name == "broker":
        listening.append(InheritedSocket(None, options.broker_tcp_address, "--broker-tcp"))
    return run_role(name, options, clock, listening, StartReporter(None), compose)


def run_role(
    name: str,
    options: PenstockOptions,
    clock: Clock,
    listening: Sequence[InheritedSocket],
    reporter: StartReporter,
    compose: Callable[[RoleContext], Lifecycle],
) -> int:
    """Run a role until SIGTERM or SIGINT, or until one of its parts ends it.

    Returns 0 after a signal. After `RoleContext.request_stop` it returns `RESTART_REQUESTED`, so
    that supervisors which restart only failed processes restart it, too.

    Args:
        name: The role.
        options: The options of this Penstock.
        clock: Time.
        listening: Its socket, and for the broker that of NSQ's TCP protocol.
        reporter: Reports the progress of the start to the launcher.
        compose: Builds the process.

    Raises:
        PenstockError: The process could not start.
    """
    # The parent may ignore the ends of its children; inherited, that would lose exit codes.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with SignalPipe(STOP_SIGNALS) as pipe, contextlib.ExitStack() as sockets:
        listener, *others = [sockets.enter_context(one.open()) for one in listening]
        raise_descriptor_limit()
        READ_GUARD.set(read_guard(options, os.environ))
        emitter = service_emitter(options, clock, name)
        guard = api_guard(options, clock)
        failed = threading.Event()

        def request_stop() -> None:
            failed.set()
            pipe.wake()

        context = RoleContext(
            *(name, options, clock, listener, reporter, request_stop, emitter),
            tcp_listener=others[0] if others else None,
            samples=lambda: itertools.chain(emitter.samples(), guard.samples()),
            is_launched=listening[0].descriptor is not None,
            guard=guard,
        )
        _log_start(options)
        lifecycle = compose(context)
        lifecycle.add_handler(
            LifecycleHandler("emitter", emitter.start, lambda: stop_emitter(emitter)),
            StartStage.INIT,
        )
        sockets.callback(DEATHS.listen(lambda death: _alert(death, emitter)))
        try:
            lifecycle.start()
        except BaseException:
            # Nothing is stopped: the process ends, and with it everything that started.
            logger.error("%s cannot start", name)  # the trace follows where it is caught  # noqa: TRY400
            raise
        names = [one.getsockname() for one in (listener, *others)]
        where = ", ".join(f"{one[0]}:{one[1]}" for one in names)
        logger.info("%s is running as process %d and listens on %s", name, os.getpid(), where)

        exit_code = 0

        def wait() -> None:
            nonlocal exit_code
            pipe.wait()
            # Read before the stop: a part that fails while the process stops does not change the
            # exit code.
            exit_code = RESTART_REQUESTED if failed.is_set() else 0
            DEATHS.process_stops()

        lifecycle.join(wait)
        how = " because a part of it failed" if exit_code else ""
        logger.info("%s stopped%s", name, how)
        sys.stdout.flush()
        return exit_code


def _alert(death: Death, emitter: ServiceEmitter) -> None:
    """Emit the death of a thread as an alert; send it at once if it ends the process."""
    is_end = DEATHS.ends_process(death)
    severity = Severity.SERVICE_FAILURE if is_end else Severity.COMPONENT_FAILURE
    error = death.error or RuntimeError(str(death))
    emitter.emit(AlertEvent.of_error(f"{death}; {death.then.value}", error, severity))
    if is_end:
        stop_emitter(emitter)


def _log_start(options: PenstockOptions) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    version, python = penstock.__version__, platform.python_version()
    logger.info("%s", start_line(version, python, os.cpu_count() or 0, memory))
    logger.info("%s", options_line(options))
