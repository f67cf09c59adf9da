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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import penstock
from penstock.broker.file_limits import raise_descriptor_limit
from penstock.broker.http_server.guard import HttpGuard
from penstock.broker.security.tls import ServerTls
from penstock.core.access.access_control import AccessControl
from penstock.core.access.audit import AuditOptions
from penstock.core.clock import Clock, SystemClock
from penstock.core.log_format import log_to_stream
from penstock.core.metrics import MetricRegistry, Sample
from penstock.core.threads import DEATHS, Death
from penstock.core.waits import DependencyWait
from penstock.indexing.secrets import MASK, is_shown_reference
from penstock.services.emitter.emitter import Emitter, ServiceEmitter
from penstock.services.emitter.events import AlertEvent, Severity
from penstock.services.emitter.service_emitter import service_emitter, stop_emitter
from penstock.services.host.audit_files import AUDIT_FOLDER, AuditFiles, audit_into
from penstock.services.host.audit_publisher import AuditPublisher, BrokerAuditTopic
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.folder_permissions import make_deep_storage, private_data_folder
from penstock.services.host.process import (
    READY_LINE,
    REASON_CHARACTERS_MAX,
    WAITING_MARK,
    listen,
    reached_at,
)
from penstock.services.host.process_guards import guard_process
from penstock.services.host.restart_policy import RESTART_REQUESTED
from penstock.services.host.secret_variables import secret_variables
from penstock.services.host.signals import STOP_SIGNALS, SignalPipe
from penstock.services.host.tls_settings import require_protection, server_tls, use_trust
from penstock.services.http_server import api_guard
from penstock.services.lifecycle import Lifecycle, LifecycleHandler, StartStage
from penstock.services.options.option_values import HostPort, masked
from penstock.services.options.table import PenstockOptions
from penstock.services.readiness import Check, Readiness, StartListener
from penstock.spark.connect.connect_address import SCHEME, ConnectAddress
from penstock.storage.deletion_hold import clear_expired

_SECRETS: Final = frozenset(one.name for one in fields(PenstockOptions) if one.metadata["secret"])


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
    if is_shown_reference(value):
        return str(value)
    if name in _SECRETS:
        return MASK
    if str(value).startswith(SCHEME):
        return ConnectAddress.parse(str(value)).masked(MASK)
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return masked(text, MASK)


logger = logging.getLogger(__name__)

# Options of a role's ports, in the order of its sockets; other roles have `--http`.
_PORT_OPTIONS: Final = {"broker": ("--broker-http", "--broker-tcp")}
# Roles that read or write the deep storage.
_OF_SEGMENTS: Final = frozenset({"overlord", "router", "worker"})


@dataclass(frozen=True, slots=True)
class RoleContext:
    """Context of a role.

    Attributes:
        name: The role.
        options: The options of this Penstock, with the values of secrets.
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
        tls: TLS of its ports; None: it has no certificate.
        stored_options: The options with references instead of secrets, which may be written to
            disk; None: as `options`.
        access: Access control of the process; by default, only this user on this host has access.
        audit_files: Records of the audit for their topic; None: no topic is configured.
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
    tls: ServerTls | None = None
    stored_options: PenstockOptions | None = None
    access: AccessControl = field(default_factory=lambda: AccessControl(None, SystemClock()))
    audit_files: AuditFiles | None = None

    def publish_audit(self, lifecycle: Lifecycle, broker: Callable[[], HostPort]) -> None:
        """Let a process publish its records of the audit, if a topic is configured.

        Args:
            lifecycle: The lifecycle of the process.
            broker: Returns the address of the broker's HTTP API.
        """
        if self.audit_files is None or self.options.audit_topic is None:
            return
        topic = BrokerAuditTopic(
            *(self.options.audit_topic, lambda: broker().url, self.access.key.process_bearer)
        )
        publisher = AuditPublisher(self.audit_files, topic, self.clock)
        lifecycle.add_handler(
            LifecycleHandler("audit", publisher.start, publisher.stop), StartStage.ANNOUNCEMENTS
        )

    @property
    def bearer(self) -> Callable[[], str]:
        """Return the function that returns the bearer token for a request to another process.

        Raises:
            Unavailable: This process has no key for such tokens.
        """
        self.access.key.process_bearer()
        return self.access.key.process_bearer

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
        return reached_at(self.listener)


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


def access_control_of(
    options: PenstockOptions, clock: Clock, process: str, registry: MetricRegistry | None = None
) -> AccessControl:
    """Return the access control of a process; the caller starts and closes it.

    Args:
        options: The options of this Penstock.
        clock: Time.
        process: Name of the process, such as `router`.
        registry: Metrics of the process.

    Raises:
        Unavailable: The secrets of the installation cannot be created.
    """
    token = (options.token or "").encode()
    return AccessControl(
        *(options.access_path, clock),
        shared_token=token,
        process=process,
        registry=registry,
        audit=AuditOptions(options.audit_topic or "", options.audit == "everything"),
    )


def own_address(name: str, options: PenstockOptions, *, is_port_given: bool) -> HostPort:
    """Return where the API of a role listens that runs without a launcher.

    The broker has an option of its own. In a file or the environment, the port of `--http` is that
    of the router, because all roles of a host share them; the other roles may use any port, as
    their leases announce it.

    Args:
        name: The role.
        options: The options.
        is_port_given: Whether `--http` is on the command line of this role.
    """
    if name == "broker":
        return options.broker_http_address
    if name == "router" or is_port_given:
        return options.http
    return HostPort(options.http.host, 0)


def run_alone(
    name: str,
    options: PenstockOptions,
    clock: Clock,
    compose: Callable[[RoleContext], Lifecycle],
    *,
    is_port_given: bool,
) -> int:
    """Run a role without a launcher; return its exit code. Raises as `run_role`.

    Args:
        name: The role.
        options: The options.
        clock: Time.
        compose: Builds the process.
        is_port_given: As in `own_address`.
    """
    log_to_stream()
    options = dataclasses.replace(options, data_dir=options.data_dir.absolute())
    folder = private_data_folder(options)
    if name != "broker" and options.metadata_url is None:
        folder.require_metadata()
    if name in _OF_SEGMENTS:
        make_deep_storage(options)
    clear_expired(str(folder.path), clock)
    address = own_address(name, options, is_port_given=is_port_given)
    option = "--broker-http" if name == "broker" else "--http"
    listening = [InheritedSocket(None, address, option)]
    if name == "broker":
        listening.append(InheritedSocket(None, options.broker_tcp_address, "--broker-tcp"))
    variables = secret_variables(os.environ, folder.secrets)
    return run_role(name, options, clock, listening, StartReporter(None), compose, variables)


def run_role(
    name: str,
    options: PenstockOptions,
    clock: Clock,
    listening: Sequence[InheritedSocket],
    reporter: StartReporter,
    compose: Callable[[RoleContext], Lifecycle],
    variables: Mapping[str, str],
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
        variables: Environment variables with secrets.

    Raises:
        PenstockError: The process could not start.
    """
    # The parent may ignore the ends of its children; inherited, that would lose exit codes.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with SignalPipe(STOP_SIGNALS) as pipe, contextlib.ExitStack() as sockets:
        listener, *others = [sockets.enter_context(one.open()) for one in listening]
        raise_descriptor_limit()
        names = _PORT_OPTIONS.get(name, ("--http",))
        bound = [HostPort(*one.getsockname()[:2]) for one in (listener, *others)]
        warnings = require_protection(options, list(zip(bound, names, strict=False)))
        stored_options = options
        options = guard_process(options, variables, clock, name, [one.port for one in bound])
        tls = server_tls(options, clock, name)
        if tls is not None:
            use_trust(options, name)  # the certificate may be new
        emitter = service_emitter(options, clock, name)
        guard = api_guard(options, clock)
        registry = MetricRegistry()
        access = access_control_of(options, clock, name, registry)
        audit_files = None
        if options.audit_topic is not None:
            audit_files = AuditFiles(
                *(DataFolder(options.data_dir).log / AUDIT_FOLDER, name, clock, registry)
            )
            sockets.callback(audit_files.close)
            audit_files.start()
            sockets.enter_context(audit_into(audit_files))
        failed = threading.Event()

        def request_stop() -> None:
            failed.set()
            pipe.wake()

        context = RoleContext(
            *(name, options, clock, listener, reporter, request_stop, emitter),
            tcp_listener=others[0] if others else None,
            samples=lambda: itertools.chain(
                emitter.samples(), guard.samples(), registry.snapshot()
            ),
            is_launched=listening[0].descriptor is not None,
            guard=guard,
            tls=tls,
            stored_options=stored_options,
            access=access,
            audit_files=audit_files,
        )
        _log_start(stored_options)
        for warning in warnings:
            logger.warning("%s", warning)
        lifecycle = compose(context)
        parts = [LifecycleHandler("emitter", emitter.start, lambda: stop_emitter(emitter))]
        if tls is not None:
            parts.append(LifecycleHandler("certificates", tls.start, tls.stop))
        parts.append(LifecycleHandler("access", access.start, access.close))
        for part in parts:
            lifecycle.add_handler(part, StartStage.INIT)
        sockets.callback(DEATHS.listen(lambda death: _alert(death, emitter)))
        try:
            lifecycle.start()
        except BaseException:
            # Nothing is stopped: the process ends, and with it everything that started.
            logger.error("%s cannot start", name)  # the trace follows where it is caught  # noqa: TRY400
            raise
        where = ", ".join(map(str, bound))
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
