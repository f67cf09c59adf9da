"""A private ZooKeeper for the tests: Debian's jars, a temporary folder, a free port."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kits.ports_kit import kept_port

JARS = Path("/usr/share/java")
# What Debian's packages libzookeeper-java and its dependencies put there.
NEEDED = ("zookeeper.jar", "zookeeper-jute.jar", "slf4j-api.jar", "netty-handler.jar")
PATTERNS = (
    *("zookeeper.jar", "zookeeper-jute.jar", "slf4j-api.jar", "slf4j-nop.jar"),
    *("netty-*.jar", "commons-*.jar", "metrics-core*.jar", "snappy*.jar", "audience*.jar"),
)


def why_not() -> str:
    """Say why no server can be started here; empty if one can."""
    if shutil.which("java") is None:
        return "no java in the PATH"
    missing = [name for name in NEEDED if not (JARS / name).exists()]
    if missing:
        return f"no {', '.join(missing)} in {JARS}; on Debian: apt-get install zookeeper"
    return ""


class ZooKeeperServer:
    """A server's process; it may be stopped and started again on the same data."""

    def __init__(
        self, folder: Path, port: int, secure_port: int, certificate: Path | None = None
    ) -> None:
        self.port = port
        self.hosts = f"127.0.0.1:{self.port}"
        self.secure_port = secure_port
        self._tls = ""
        if certificate is not None:  # a certificate and its key, PEM
            self._tls = (
                f"secureClientPort={self.secure_port}\nsecureClientPortAddress=127.0.0.1\n"
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
                f"ssl.keyStore.location={certificate}\nssl.keyStore.type=PEM\n"
                f"ssl.trustStore.location={certificate}\nssl.trustStore.type=PEM\n"
                "ssl.clientAuth=none\n"
            )
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it serves."""
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        configuration = self._folder / "zoo.cfg"
        configuration.write_text(
            f"tickTime=200\ndataDir={data}\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nminSessionTimeout=400\nmaxSessionTimeout=60000\n"
            "admin.enableServer=false\n4lw.commands.whitelist=srvr\n" + self._tls
        )
        jars = [str(jar) for pattern in PATTERNS for jar in sorted(JARS.glob(pattern))]
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        with (self._folder / "out").open("ab") as output:
            self._process = subprocess.Popen(
                ["java", "-Xmx64m", "-cp", ":".join(jars), main, str(configuration)],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        until_s = time.monotonic() + 60
        while not self._serves():
            words = (self._folder / "out").read_text()[-2_000:]
            assert self._process.poll() is None, words
            assert time.monotonic() < until_s, words
            time.sleep(0.05)  # a foreign process tells nobody that it is ready

    def _serves(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as client:
                client.sendall(b"srvr")
                return b"Mode: standalone" in client.recv(4_096)
        except OSError:
            return False

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def running_server(folder: Path, certificate: Path | None = None) -> Iterator[ZooKeeperServer]:
    """Run a server; skip the test if none can be started here."""
    if reason := why_not():
        pytest.skip(reason)
    with kept_port() as port, kept_port() as secure_port:
        server = ZooKeeperServer(folder, port, secure_port, certificate)
        server.start()
        try:
            yield server
        finally:
            server.stop()
