"""Which processes one host runs, and how each is started: what `penstock up` launches.

Owns the list, the sockets that the children inherit, and the file of options they read. It starts
nothing (`launcher` does).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.services import config
from penstock.services.config import Address, Options
from penstock.services.host.datafolder import DataFolder
from penstock.services.host.http2 import greet
from penstock.services.host.launcher import ChildPlan
from penstock.services.host.process import ChildCommand, free_port, listen
from penstock.services.host.pulse import Pulse

# Each Python child would otherwise keep an arena per thread and a BLAS thread per core.
_LEAN = {"MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

_STOP_TIMEOUTS_S = {
    "router": 6.0,
    "worker": 15.0,
    "flow": 15.0,
    "overlord": 8.0,
    "spark": 30.0,
    "broker": 8.0,
}

# `penstock.indexing.spec` has it too, but costs memory that the launcher does without.
_SECRETS_OF_SPECS = f"{config.VARIABLE_PREFIX}INPUT_"


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Python children: options reach them by file alone.

    Secrets that specs name are no options: tasks and supervisors look them up.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(config.VARIABLE_PREFIX) or name.startswith(_SECRETS_OF_SPECS)
    }
    return {**kept, **_LEAN, "PYTHONUNBUFFERED": "1"}


class HostPlan:
    """The children of one host and the sockets they listen on.

    Args:
        options: As the user gave them.
        folder: The data folder, prepared and locked.
        environment: Variables of this process.
    """

    def __init__(
        self, options: Options, folder: DataFolder, environment: Mapping[str, str]
    ) -> None:
        self._given = options
        self._folder = folder
        self._environment = environment
        self._sockets: dict[str, list[socket.socket]] = {}
        self._spark_port = 0
        self._spark_token = secrets.token_urlsafe(24)
        self.options = options

    def open(self, listen_on: Callable[[Address, str], socket.socket] = listen) -> None:
        """Open the sockets and write the options for the children.

        Args:
            listen_on: Opens a listening socket at an address; the text names the address's option.

        Raises:
            Conflict: A port is taken.
            Unavailable: An address cannot be listened on.
        """
        try:
            http = self._listen(listen_on, "router", self._given.http, "--http")
            broker = self._listen(listen_on, "broker", self._given.broker_http, "--broker-http")
            tcp = self._listen(listen_on, "broker", self._given.broker_tcp, "--broker-tcp")
            internal = Address(self._given.http.host, 0)
            self._listen(listen_on, "overlord", internal, "--http")
            self._listen(listen_on, "flow", internal, "--http")
            self._listen(listen_on, "worker", internal, "--http")
        except BaseException:
            self.close()
            raise
        connect = self._given.spark_connect
        if connect is None:
            self._spark_port = free_port()
            # Here and below, because a host that uses a Spark elsewhere has no need of it.
            from penstock.spark.connect.server import remote_address  # noqa: PLC0415

            connect = remote_address(self._spark_port, self._spark_token)
        self.options = dataclasses.replace(
            self._given,
            data_dir=self._folder.path.absolute(),
            http=http,
            broker_http=broker,
            broker_tcp=tcp,
            spark_connect=connect,
        )
        path = self._folder.children_options
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(config.to_json(self.options))

    def close(self) -> None:
        """Close the sockets."""
        for listener in itertools.chain.from_iterable(self._sockets.values()):
            with contextlib.suppress(OSError):
                listener.close()

    def children(self) -> list[ChildPlan]:
        """Return the children: in starting order, stopped in reverse."""
        names = ["broker", "overlord", "flow", "worker", "router"]
        plans = [self._python(name) for name in names]
        if self._given.spark_connect is None:
            # The JVM takes longest to start and is stopped after those that use it.
            plans.insert(0, self._spark())
        return plans

    def _listen(
        self,
        listen_on: Callable[[Address, str], socket.socket],
        name: str,
        address: Address,
        option: str,
    ) -> Address:
        listener = listen_on(address, option)
        self._sockets.setdefault(name, []).append(listener)
        return Address(address.host, listener.getsockname()[1])

    def _python(self, name: str) -> ChildPlan:
        def command(ready_fd: int) -> ChildCommand:
            inherited = tuple(listener.fileno() for listener in self._sockets[name])
            argv = (
                *(sys.executable, "-m", "penstock.services.roles", name),
                *("--options", str(self._folder.children_options)),
                *("--parent", str(os.getpid()), "--ready-fd", str(ready_fd)),
                *(part for number in inherited for part in ("--listen-fd", str(number))),
            )
            return ChildCommand(argv, child_environment(self._environment), inherited=inherited)

        return ChildPlan(name, command, stop_timeout_s=_STOP_TIMEOUTS_S[name])

    def _spark(self) -> ChildPlan:
        from penstock.spark.connect.server import SparkServerOptions, prepare  # noqa: PLC0415

        options = SparkServerOptions(
            run_folder=self._folder.run,
            log_folder=self._folder.log,
            temp_folder=self._folder.tmp / "spark",
            cache_folder=spark_cache_folder(self._environment),
            port=self._spark_port,
            master=self._given.spark_master,
            driver_memory=self._given.spark_memory,
            token=self._spark_token,
        )

        def command(_ready_fd: int) -> ChildCommand:
            prepared = prepare(options, self._environment)
            return ChildCommand(prepared.argv, prepared.environment, prepared.folder)

        return ChildPlan(
            "spark",
            command,
            ready_port=self._spark_port,
            stop_timeout_s=_STOP_TIMEOUTS_S["spark"],
            pulse=Pulse(lambda: greet(self._spark_port)),
        )


def spark_cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder that data folders share for what shortens Spark's start."""
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "penstock"
