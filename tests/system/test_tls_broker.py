"""A broker that other hosts reach: refused without protection, then used by the command line."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock, pause
from penstock.core.errors import Unavailable
from penstock.core.tls_trust import role_in
from penstock.services.cli import exit_codes
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.tls_authority import TlsAuthority

pytestmark = pytest.mark.system

SECRET = "very-secret"
EVERYWHERE = ("--broker-http", "0.0.0.0:0", "--broker-tcp", "0.0.0.0:0")
WAIT_S = 120.0


def own_address() -> str:
    """An address of this machine that is not loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address besides loopback")
        host: str = probe.getsockname()[0]
        return host


class Commands:
    """Runs commands on a data folder, as a user does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token_file = folder.with_name("token")
        self.token_file.write_text(SECRET)
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")
        }

    def start(self, *words: str, **files: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "penstock.services.child_command", *words],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=files.get("stdout", subprocess.PIPE),
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str, text: str = "") -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "penstock", *words],
            env=self._environment,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
        return done.returncode, done.stdout + done.stderr

    @contextmanager
    def broker(self, *words: str) -> Iterator[tuple[int, int]]:
        """A running broker; its ports for HTTP and for NSQ's protocol."""
        data, clock = DataFolder(self.folder), SystemClock()
        with (self.folder.with_name("log")).open("w") as log:
            command = ("server", "broker", "--data-dir", str(self.folder), *words)
            process = self.start(*command, stdout=log.fileno())
            try:
                until_s = clock.monotonic_s() + WAIT_S
                while (found := data.read_client_file()) is None:
                    if process.poll() is not None or clock.monotonic_s() > until_s:
                        raise Unavailable(self.folder.with_name("log").read_text())
                    pause(clock, 0.05)
                http, tcp = (str(found[name]) for name in ("broker_http", "broker_tcp"))
                yield int(http.rpartition(":")[2]), int(tcp.rpartition(":")[2])
            finally:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=WAIT_S)


def test_a_broker_for_other_hosts(tmp_path: Path) -> None:
    host = own_address()
    commands = Commands(tmp_path / "data")
    data = ("--data-dir", str(commands.folder))
    token = ("--token-file", str(commands.token_file))

    for words, lack in (((), "--broker-http: "), (token, "penstock tls init")):
        code, text = commands.run("server", "broker", *data, *EVERYWHERE, *words)
        assert code == exit_codes.USAGE
        assert lack in text
        assert "--insecure" in text

    assert commands.run("tls", "init", *data, "--host", host)[0] == 0
    authority = TlsAuthority(commands.folder / "tls", SystemClock())
    ca = str(authority.certificate)
    with commands.broker(*EVERYWHERE, *token) as (http, _tcp):
        remote = (*token, "--tls-ca", ca, "--broker-url", f"https://{host}:{http}")
        assert commands.run("pub", "--topic", "t", *remote, "one")[0] == 0
        # On this host, as before: over loopback, without TLS.
        assert commands.run("pub", "--topic", "t", *data, *token, "two")[0] == 0
        code, text = commands.run("sub", "t", "--channel", "c", "--max", "2", *remote)
        assert (code, sorted(text.split()[:2])) == (0, ["one", "two"])
        # With the machine's authorities, which did not sign its certificate.
        elsewhere = ("--data-dir", str(tmp_path / "elsewhere"), *token)
        words = ("--broker-url", f"https://{host}:{http}", "three")
        code, text = commands.run("pub", "--topic", "t", *elsewhere, *words)
        assert (code, "did not sign" in text) == (exit_codes.NOT_REACHABLE, True), text

        def serial() -> object:
            context = ssl.create_default_context(cafile=ca)
            with (
                socket.create_connection((host, http), WAIT_S) as plain,
                context.wrap_socket(plain, server_hostname=host) as client,
            ):
                assert role_in(client) == "broker"
                return (client.getpeercert() or {})["serialNumber"]

        before = serial()
        assert commands.run("tls", "renew", *data)[0] == 0
        clock = SystemClock()
        until_s = clock.monotonic_s() + WAIT_S
        while serial() == before:
            assert clock.monotonic_s() < until_s
            pause(clock, 0.2)

    with commands.broker(*EVERYWHERE, "--insecure"):
        pass
    assert "--insecure: other hosts can reach --broker-http" in (tmp_path / "log").read_text()
