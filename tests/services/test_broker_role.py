"""`penstock server broker`: a broker of its own process, which clients of its folder find."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.broker.broker_client import BrokerClient
from penstock.core.clock import SystemClock
from penstock.core.errors import Unavailable
from penstock.services.cli.entry import run
from penstock.services.host.data_folder import DataFolder
from penstock.services.roles.broker import client_file


@contextmanager
def broker(folder: Path) -> Iterator[dict[str, str]]:
    """Run one on ports of its own; gives what `penstock.json` says."""
    command = [sys.executable, "-m", "penstock", "server", "broker", "--data-dir", str(folder)]
    process = subprocess.Popen(
        [*command, "--broker-http", "127.0.0.1:0", "--broker-tcp", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            if "broker is running" in line:
                break
        yield json.loads((folder / "penstock.json").read_text())
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    assert process.returncode == 0


def test_clients_of_the_folder_find_a_broker_on_any_port(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    with broker(folder) as found:
        assert found["broker_tcp"].startswith("127.0.0.1:")
        assert "http" not in found
        with BrokerClient(found["broker_http"]) as client:
            client.create_topic("here")
        assert run(["topic", "list", "--data-dir", str(folder)]) == 0
        assert "here" in capfd.readouterr().out
    assert not (folder / "penstock.json").exists()


def test_a_full_disk_hides_a_broker_from_its_folder_and_does_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Consumers must be able to make room."""

    def full(_folder: DataFolder, _content: object) -> None:
        raise Unavailable("penstock.json.tmp: cannot create: no space left", dependency="disk")

    monkeypatch.setattr(DataFolder, "write_client_file", full)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        context = SimpleNamespace(
            listener=listener,
            tcp_listener=listener,
            folder=DataFolder(tmp_path),
            clock=SystemClock(),
        )
        client_file(context).start()
    (text,) = caplog.messages
    assert "no space left" in text
    assert address in text
