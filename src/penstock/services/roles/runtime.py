"""What every role's process does besides its work: options, log, signals, readiness.

Owns the life of such a process from its arguments to its exit code. What runs in it is composed by
the role's own module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import platform
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import penstock
from penstock.core.clock import Clock
from penstock.core.metrics import Sample
from penstock.services.config import Address, Options
from penstock.services.emitting.emitter import Emitter
from penstock.services.emitting.making import service_emitter, stop_emitter
from penstock.services.host.datafolder import DataFolder
from penstock.services.host.process import listen
from penstock.services.host.signals import STOP_SIGNALS, SignalPipe
from penstock.services.lifecycle import Handler, Lifecycle, Stage
from penstock.services.roles.startlog import options_line, start_line

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoleContext:
    """What a role is given.

    Attributes:
        name: The role.
        options: The options of this Penstock.
        clock: Time.
        listener: Its listening socket.
        say_ready: To be called when it does its work.
        ask_stop: Ends the process in order; from any thread.
        emitter: Takes events; it runs as long as the process.
        tcp_listener: The socket of NSQ's TCP protocol; the broker has one.
        samples: Metrics of what becomes of events.
        is_launched: Whether a launcher started this process, and wrote the options for children.
    """

    name: str
    options: Options
    clock: Clock
    listener: socket.socket
    say_ready: Callable[[], None]
    ask_stop: Callable[[], None]
    emitter: Emitter
    tcp_listener: socket.socket | None = None
    samples: Callable[[], Iterable[Sample]] = tuple
    is_launched: bool = True

    @property
    def folder(self) -> DataFolder:
        """The data folder."""
        return DataFolder(self.options.data_dir)

    @property
    def instance(self) -> str:
        """Its name among those of its role: the same after a restart, where it matters.

        A worker is known by what it keeps on disk, which no two workers share. Of the other roles
        several may use one data folder, and they are known by their address.
        """
        if self.name != "worker":
            return str(self.address)
        folders = self.options.task_folders
        place = folders[0].absolute() if folders else self.options.data_dir
        return f"{socket.gethostname()}:{place}"

    @property
    def address(self) -> Address:
        """Where others reach this process."""
        host, port = self.listener.getsockname()[:2]
        if host in ("0.0.0.0", "::"):  # compared, not bound  # noqa: S104
            host = socket.gethostname()
        return Address(host, port)


@dataclass(frozen=True, slots=True)
class InheritedSocket:
    """A listening socket from the parent, by its descriptor; or an address to listen on."""

    descriptor: int | None
    address: Address
    option: str = "--http"

    def open(self) -> socket.socket:
        """Return the listening socket. Raises as `penstock.services.host.process.listen`."""
        if self.descriptor is None:
            return listen(self.address, self.option)
        listener = socket.socket(fileno=self.descriptor)
        # Children of this process must not keep the port when it ends.
        listener.set_inheritable(False)
        return listener


def ready_reporter(descriptor: int | None) -> Callable[[], None]:
    """Return a call that tells the launcher that this process is ready; the second does nothing."""
    left = [] if descriptor is None else [descriptor]
    if descriptor is not None:
        os.set_inheritable(descriptor, False)  # noqa: FBT003

    def report() -> None:
        if left:
            number = left.pop()
            os.write(number, b"ready\n")
            os.close(number)

    return report


def run_alone(
    name: str, options: Options, clock: Clock, compose: Callable[[RoleContext], Lifecycle]
) -> None:
    """Run a role without a launcher. Raises as `run_role`."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    options = dataclasses.replace(options, data_dir=options.data_dir.absolute())
    DataFolder(options.data_dir).prepare()
    addresses = {
        "router": (options.http, "--http"),
        "broker": (options.broker_http, "--broker-http"),
    }
    # The others are found by their leases and take any port.
    address, option = addresses.get(name, (Address(options.http.host, 0), "--http"))
    listening = [InheritedSocket(None, address, option)]
    if name == "broker":
        listening.append(InheritedSocket(None, options.broker_tcp, "--broker-tcp"))
    run_role(name, options, clock, listening, _nothing, compose)


def _nothing() -> None:
    """Tell nobody: there is no launcher."""


def run_role(
    name: str,
    options: Options,
    clock: Clock,
    listening: Sequence[InheritedSocket],
    say_ready: Callable[[], None],
    compose: Callable[[RoleContext], Lifecycle],
) -> None:
    """Run a role until SIGTERM or SIGINT.

    Args:
        name: The role.
        options: The options of this Penstock.
        clock: Time.
        listening: Its socket, and for the broker that of NSQ's TCP protocol.
        say_ready: Tells the launcher.
        compose: Puts the process together.

    Raises:
        PenstockError: It could not start.
    """
    with SignalPipe(STOP_SIGNALS) as pipe, contextlib.ExitStack() as sockets:
        listener, *others = [sockets.enter_context(one.open()) for one in listening]
        emitter = service_emitter(options, clock, name)
        context = RoleContext(
            *(name, options, clock, listener, say_ready, pipe.wake, emitter),
            tcp_listener=others[0] if others else None,
            samples=emitter.samples,
            is_launched=listening[0].descriptor is not None,
        )
        _say_what_starts(options)
        lifecycle = compose(context)
        lifecycle.add_handler(
            Handler("emitter", emitter.start, lambda: stop_emitter(emitter)), Stage.INIT
        )
        try:
            lifecycle.start()
        except BaseException:
            # Nothing is stopped: the process ends, and with it whatever had started.
            logger.error("%s cannot start", name)  # the trace follows where it is caught  # noqa: TRY400
            raise
        names = [one.getsockname() for one in (listener, *others)]
        where = ", ".join(f"{one[0]}:{one[1]}" for one in names)
        logger.info("%s is running as process %d and listens on %s", name, os.getpid(), where)
        lifecycle.join(pipe.wait)
        logger.info("%s stopped", name)
        sys.stdout.flush()


def _say_what_starts(options: Options) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    version, python = penstock.__version__, platform.python_version()
    logger.info("%s", start_line(version, python, os.cpu_count() or 0, memory))
    logger.info("%s", options_line(options))
