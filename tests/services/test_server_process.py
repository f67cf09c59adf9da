"""A server as a child process: its output, its readiness, and its restarts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Unavailable
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.server_process import ServerProcess

ADDRESSES = {"broker_http": "http://127.0.0.1:1", "broker_tcp": "127.0.0.1:1"}


class StandIn:
    """A server whose program is a shell script."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = DataFolder(folder)
        self.server = ServerProcess(self.data, SystemClock())
        self.proceed = folder / "proceed"
        self._program = folder / "python"
        monkeypatch.setattr(sys, "executable", str(self._program))

    def runs(self, script: str) -> None:
        self._program.write_text(f"#!/bin/sh\n{script}\n")
        self._program.chmod(0o755)

    def cannot_start(self) -> None:
        self._program.unlink()

    def kill(self) -> None:
        """Kill it as another process would, and wait until it has ended."""
        pid = self.server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    def lines_until(self, last: str, proceed_at: str = "") -> list[str]:
        """Return the lines that a wait reports until one is `last`, at which it is killed.

        At the line `proceed_at`, the file `proceed` is made.
        """
        told: list[str] = []

        def tell(line: str) -> None:
            told.append(line)
            if line == proceed_at:
                self.proceed.touch()
            if line == last:
                self.kill()

        with pytest.raises(Unavailable, match="penstock up ended"):
            self.server.wait_ready(tell, timeout_s=60)
        return told


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn(tmp_path, monkeypatch)
    yield made
    made.server.stop()


def test_a_restart_that_fails_is_tried_again(stand_in: StandIn) -> None:
    server = stand_in.server
    assert not server.keep_running()  # It was not started yet.
    stand_in.runs("exec sleep 60")
    server.start()
    stand_in.kill()
    stand_in.cannot_start()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            server.keep_running()
    stand_in.runs("exec sleep 60")
    assert server.keep_running()
    server.stop()
    assert not server.keep_running()


def test_each_line_is_reported_once_and_those_of_a_restart_are_new(stand_in: StandIn) -> None:
    waits = f"until [ -e '{stand_in.proceed}' ]; do sleep 0.02; done"
    stand_in.runs(f"seq 150; {waits}; seq 151 300; exec sleep 60")
    stand_in.server.start()
    told = stand_in.lines_until("300", proceed_at="150")
    assert told == [str(number) for number in range(1, 301)]
    assert stand_in.server.lines == [str(number) for number in range(101, 301)]
    stand_in.runs("echo again; exec sleep 60")
    assert stand_in.server.keep_running()
    assert stand_in.lines_until("again") == ["again"]


def test_addresses_of_a_killed_server_are_not_those_of_the_next(stand_in: StandIn) -> None:
    stand_in.data.write_client_file(ADDRESSES)  # It has no process id, as a server that ended.
    stand_in.runs("exit 1")
    stand_in.server.start()
    with pytest.raises(Unavailable, match="ended"):
        stand_in.server.wait_ready(timeout_s=60)


def test_addresses_of_a_killed_server_with_the_same_process_id_are_not_those_of_the_next(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerProcess, "pid", property(lambda _server: 7))
    stand_in.data.write_client_file({**ADDRESSES, "pid": 7, "started": "before"})
    stand_in.runs("exec sleep 60")
    stand_in.server.start()
    with pytest.raises(Unavailable, match="not ready"):
        stand_in.server.wait_ready(timeout_s=0.1)
    stand_in.data.write_client_file({**ADDRESSES, "pid": 7, "started": "now"})
    stand_in.server.wait_ready(timeout_s=60)
    assert stand_in.server.broker_tcp == ADDRESSES["broker_tcp"]


def test_bytes_that_are_not_utf_8_are_replaced(stand_in: StandIn) -> None:
    stand_in.runs("printf '\\377\\nlast\\n'; exec sleep 60")
    stand_in.server.start()
    assert stand_in.lines_until("last") == ["\ufffd", "last"]
