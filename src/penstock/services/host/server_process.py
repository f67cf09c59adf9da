"""A Penstock server as a child process of a program: of the demo, of a benchmark, of a test.

Owns the process, its last lines of output and its addresses, which stay the same across restarts.

Invariant: the server ends with the process that started it, however that process ends.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from penstock.core.clock import Clock, pause
from penstock.core.errors import Unavailable
from penstock.core.threads import OwnedThread, start_job
from penstock.services.host.data_folder import DataFolder

READY_TIMEOUT_S: Final = 600.0
_STOP_TIMEOUT_S: Final = 60.0
_LINES_KEPT: Final = 200
_POLL_S: Final = 0.05
_READ_REST_S: Final = 2.0

CHILD_MODULE: Final = "penstock.services.child_command"
"""Module that runs the command. It imports the command line, which imports this module."""

# The last lines of output with their numbers.
_Output: TypeAlias = collections.deque[tuple[int, str]]


class ServerProcess:
    """A Penstock server in a child process.

    A thread reads the output of the current start, and appends each line with its number
    atomically.

    Args:
        folder: Its data folder.
        clock: Time.
        variables: Environment variables in addition to those of this process.
        command: Words of the command, such as `server broker`.
        environment: The environment to which `variables` are added; None: of this process.
    """

    def __init__(
        self,
        folder: DataFolder,
        clock: Clock,
        variables: Mapping[str, str] | None = None,
        *,
        command: Sequence[str] = ("up",),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        base = os.environ if environment is None else environment
        self._environment = {**base, **(variables or {})}
        self._command = command
        self._clock = clock
        self._is_wanted = False
        self._process: subprocess.Popen[str] | None = None
        self._stale_client_file: Mapping[str, object] | None = None
        self._reader: OwnedThread | None = None
        self._http = "127.0.0.1:0"
        self._broker_http = "127.0.0.1:0"
        self._broker_tcp = "127.0.0.1:0"
        self._output = _new_output()
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Return the process id of the server while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def http(self) -> str:
        """Return the URL of the API; a server with only a broker does not have one."""
        return f"http://{self._http}"

    @property
    def broker_http(self) -> str:
        """Return the URL of the broker."""
        return f"http://{self._broker_http}"

    @property
    def broker_tcp(self) -> str:
        """Return the address of the broker's NSQ protocol, as `HOST:PORT`."""
        return self._broker_tcp

    @property
    def lines(self) -> list[str]:
        """Return the last lines of its output since its last start."""
        return self.lines_after(0)

    @property
    def last_line(self) -> int:
        """Return the number of its last line of output since its last start, 0 without any."""
        return self._output[-1][0] if self._output else 0

    def lines_after(self, number: int) -> list[str]:
        """Return the last lines of its output with larger numbers, since its last start."""
        return [line for at, line in list(self._output) if at > number]

    def start(self) -> None:
        """Start it, without waiting. Its input is a pipe that closes when this process ends.

        Raises:
            OSError: The process cannot be started.
        """
        self._is_wanted = True
        # A killed server left it, perhaps one with the same process id. It is not deleted: if it
        # exists, `penstock up` waits for the ports of the killed server.
        self._stale_client_file = self._folder.read_client_file()
        output = self._output = _new_output()
        process = self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", CHILD_MODULE, *self._command),
                *("--data-dir", str(self._folder.path)),
                *("--http", self._http, "--broker-http", self._broker_http),
                *("--broker-tcp", self._broker_tcp),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=self._environment,
            # Ctrl-C must reach only the program, which then stops this process cleanly.
            start_new_session=True,
        )
        self.starts += 1
        try:
            self._reader = start_job("output of the server", lambda: _read(process, output))
        except BaseException:
            self.kill()
            raise

    def wait_ready(
        self,
        on_line: Callable[[str], None] = lambda _line: None,
        timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        """Wait until it is ready.

        Args:
            on_line: Called with each line of output meanwhile.
            timeout_s: Limit.

        Raises:
            Unavailable: It ended, or was not ready in time.
        """
        deadline_s = self._clock.monotonic_s() + timeout_s
        passed = 0
        while self._clock.monotonic_s() < deadline_s:
            for number, line in list(self._output):
                if number > passed:
                    passed = number
                    on_line(line)
            if (found := self._addresses()) is not None:
                self._http = str(found.get("http", self._http)).removeprefix("http://")
                self._broker_http = str(found["broker_http"]).removeprefix("http://")
                self._broker_tcp = str(found["broker_tcp"])
                return
            if self.pid is None:
                self._read_rest()
                raise Unavailable(f"{self._name} ended:\n" + "\n".join(self.lines))
            pause(self._clock, _POLL_S)
        raise Unavailable(
            f"{self._name} was not ready in {timeout_s:g} s:\n" + "\n".join(self.lines)
        )

    def keep_running(self) -> bool:
        """Restart it if it has ended, unless by `stop`; return whether it was restarted.

        Raises:
            OSError: The process cannot be started; the next call tries again.
        """
        if not self._is_wanted or self.pid is not None:
            return False
        self.kill()
        self.start()
        return True

    def stop(self) -> None:
        """Stop it cleanly; kill it if it does not end."""
        self._is_wanted = False
        if self._process is None:
            return
        self._process.terminate()
        # Otherwise a process that a test has suspended would not react.
        self._process.send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """Kill it, as `kill -9` does; no effect if it has ended. Its children end with it."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
        self._read_rest()

    @property
    def _name(self) -> str:
        return " ".join(("penstock", *self._command))

    def _read_rest(self) -> None:
        """Wait for the last lines of a process that has ended, unless a child holds its output."""
        if self._reader is not None:
            self._reader.join(_READ_REST_S)

    def _addresses(self) -> Mapping[str, object] | None:
        """Return the addresses that this process has published; None if it is not ready."""
        pid = self.pid
        found = self._folder.read_client_file()
        is_own = found is not None and pid is not None and found.get("pid") == pid
        return found if is_own and found != self._stale_client_file else None


def _new_output() -> _Output:
    return collections.deque(maxlen=_LINES_KEPT)


def _read(process: subprocess.Popen[str], output: _Output) -> None:
    if process.stdout is not None:
        with process.stdout:
            for number, line in enumerate(process.stdout, 1):
                output.append((number, line.rstrip()))
