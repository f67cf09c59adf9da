"""Penstock of the demo: `penstock up` in a folder of its own, restarted after a kill.

Owns the process and its addresses, which stay the same across restarts.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.threads import start_job
from penstock.services.host.data_folder import FORMAT_FILE, DataFolder, DataFolderLock

READY_TIMEOUT_S = 600.0
_LINES_KEPT = 200


def fresh_folder(path: Path) -> DataFolder:
    """Delete an earlier demo's folder and return a new one.

    Raises:
        InvalidRequest: The folder contains something else.
        Conflict: Another demo runs in the folder.
    """
    folder = DataFolder(path.absolute())
    if folder.path.exists():
        if any(folder.path.iterdir()) and not (folder.path / FORMAT_FILE).exists():
            raise InvalidRequest(
                f"{folder.path} contains files that are not the demo's; use another: --folder"
            )
        lock = DataFolderLock(folder)
        lock.take()
        try:
            shutil.rmtree(folder.path)
        finally:
            lock.release()
    return folder


class DemoServer:
    """`penstock up` as a child process.

    A thread reads its output, and adds each line in one step.

    Args:
        folder: Its data folder.
        clock: Time.
        variables: Further environment variables.
    """

    def __init__(
        self, folder: DataFolder, clock: Clock, variables: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._environment = {**os.environ, **(variables or {})}
        self._clock = clock
        self._process: subprocess.Popen[str] | None = None
        self._pause = threading.Condition()
        self._http = "127.0.0.1:0"
        self._broker_http = "127.0.0.1:0"
        self.lines: collections.deque[str] = collections.deque(maxlen=_LINES_KEPT)
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Return the process id of the launcher while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process else None

    @property
    def http(self) -> str:
        """Return the URL of the API."""
        return f"http://{self._http}"

    @property
    def broker_http(self) -> str:
        """Return the URL of the broker."""
        return f"http://{self._broker_http}"

    def start(self) -> None:
        """Start it, without waiting."""
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "penstock", "up"),
                *("--data-dir", str(self._folder.path)),
                *("--http", self._http, "--broker-http", self._broker_http),
                *("--broker-tcp", "127.0.0.1:0"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            # Ctrl-C must reach only the demo, which stops this process in order.
            start_new_session=True,
        )
        self.starts += 1
        process = self._process
        start_job("output of penstock up", lambda: self._read(process))

    def wait_ready(self, told: Callable[[str], None] = lambda _line: None) -> None:
        """Wait until it is ready.

        Args:
            told: Called with each line of output meanwhile.

        Raises:
            Unavailable: It ended, or was not ready in time.
        """
        deadline_s = self._clock.monotonic_s() + READY_TIMEOUT_S
        count = 0
        while self._clock.monotonic_s() < deadline_s:
            for line in list(self.lines)[count:]:
                count += 1
                told(line)
            found = self._folder.read_client_file()
            if found is not None and found.get("pid") == self.pid:
                self._http = str(found["http"]).removeprefix("http://")
                self._broker_http = str(found["broker_http"]).removeprefix("http://")
                return
            if self.pid is None:
                raise Unavailable("penstock up ended:\n" + "\n".join(self.lines))
            with self._pause:
                self._clock.wait(self._pause, 0.1)
        raise Unavailable(f"penstock up was not ready in {READY_TIMEOUT_S:.0f} s")

    def keep_running(self) -> bool:
        """Restart it if it was killed; return whether it was."""
        if self.pid is not None or self._process is None:
            return False
        self._process.wait()
        self.start()
        return True

    def stop(self) -> None:
        """Stop it in order."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _read(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            with process.stdout:
                for line in process.stdout:
                    self.lines.append(line.rstrip())
