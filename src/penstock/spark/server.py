"""The Spark Connect server: one JVM per host that all Penstock processes share.

Owns the command line, environment and files of that child process, and its life. It does not own
Spark sessions (`session`), nor the decision to start it again (the launcher's).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.core.clock import Clock


@dataclass(frozen=True, slots=True)
class SparkServerOptions:
    """How the server runs. All folders are made when absent.

    Attributes:
        run_folder: pid file and generated configuration.
        log_folder: `spark.log` (rotated by size) and `spark.out` (what the JVM prints).
        temp_folder: Spark's own temporary files; emptied at start and at stop.
        cache_folder: The class archive that shortens later starts; shared between data folders.
        host: Address to bind; loopback by default.
        port: Port to bind; 0 picks a free one.
        master: Spark master of the server.
        driver_memory: Heap of the JVM.
        token: Secret that clients must show; None: no check.
        conf: Further Spark settings; they win over the ones made here.
    """

    run_folder: Path
    log_folder: Path
    temp_folder: Path
    cache_folder: Path
    host: str = "127.0.0.1"
    port: int = 0
    master: str = "local[*]"
    driver_memory: str = "2g"
    token: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """What starts the server: for a launcher that owns its children itself."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    remote: str


def prepare(options: SparkServerOptions, environment: Mapping[str, str]) -> ServerCommand:
    """Write the server's configuration files, kill a leftover, and return the command.

    Raises:
        Unavailable: No Java, or a folder cannot be written.
    """
    raise NotImplementedError


class SparkServer:
    """The child process, for those who want it started and stopped for them."""

    def __init__(
        self, options: SparkServerOptions, clock: Clock, environment: Mapping[str, str]
    ) -> None:
        self._options = options
        self._clock = clock
        self._environment = environment

    def start(self) -> None:
        """Start the JVM; `wait_ready` waits for it.

        Raises:
            Unavailable: No Java, or the port is taken.
        """
        raise NotImplementedError

    def wait_ready(self, timeout_s: float = 60.0) -> str:
        """Wait until the port answers and return the `sc://` address.

        Raises:
            Unavailable: The JVM ended or was not ready in time; the message holds its last output.
        """
        raise NotImplementedError

    @property
    def remote(self) -> str:
        """The `sc://host:port/` address with the token."""
        raise NotImplementedError

    @property
    def pid(self) -> int | None:
        """Process id of the JVM while it runs."""
        raise NotImplementedError

    def poll(self) -> int | None:
        """Return the exit code when the JVM ended, else None."""
        raise NotImplementedError

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the JVM, killing it when it takes longer, and empty its temporary folder."""
        raise NotImplementedError
