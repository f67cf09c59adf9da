"""`penstock server broker`: a broker of its own process, which clients of its folder find."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.broker.http_client import BrokerClient
from penstock.services.cli.entry import run


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
