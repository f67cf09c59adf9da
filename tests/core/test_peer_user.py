"""Which user owns the client's end of a connection: with real sockets, and answers that lie."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access.peer_user import own_user_id, peer_user_id, unix_peer_user_id

OTHER_USER = 54321
# The kernel gives a socket the user of its thread, so root can make one of another user.
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

HOSTS = {
    "IPv4": (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
    "IPv4, another loopback address": (socket.AF_INET, "127.8.0.9", "127.8.0.9"),
    "IPv6": (socket.AF_INET6, "::1", "::1"),
    "IPv4 client of an IPv6 server": (socket.AF_INET6, "::", "127.0.0.1"),
    "mapped client of an IPv6 server": (socket.AF_INET6, "::", "::ffff:127.0.0.1"),
    "mapped client of an IPv4 server": (socket.AF_INET, "127.0.0.1", "::ffff:127.0.0.1"),
}


@contextlib.contextmanager
def listening(family: int = socket.AF_INET, host: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.socket(family, socket.SOCK_STREAM) as server:
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((host, 0))
        server.listen(256)
        server.settimeout(120)
        yield server


def client_of(server: socket.socket, host: str = "127.0.0.1") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    client = socket.socket(family, socket.SOCK_STREAM)
    client.settimeout(120)
    client.connect((host, server.getsockname()[1]))
    return client


@contextlib.contextmanager
def as_user(user_id: int) -> Iterator[None]:
    before = os.geteuid()
    os.seteuid(user_id)
    try:
        yield
    finally:
        os.seteuid(before)


def owner_of(accepted: socket.socket) -> int | None:
    return peer_user_id(accepted.getpeername()[:2], accepted.getsockname()[:2])


@pytest.fixture
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with listening() as server, client_of(server) as client:
        accepted, _ = server.accept()
        with accepted:
            yield client, accepted


@pytest.mark.parametrize("case", HOSTS)
def test_the_user_of_a_client_is_the_one_of_its_process(case: str) -> None:
    family, address, host = HOSTS[case]
    try:
        with listening(family, address) as server, client_of(server, host):
            accepted, _ = server.accept()
            with accepted:
                assert owner_of(accepted) == os.geteuid()
    except OSError as error:
        pytest.skip(f"this host has no IPv6: {error}")


@needs_root
@pytest.mark.parametrize("case", HOSTS)
def test_a_client_of_another_user_is_not_taken_for_the_server_s_user(case: str) -> None:
    family, address, host = HOSTS[case]
    try:
        with listening(family, address) as server:
            with as_user(OTHER_USER):
                client = client_of(server, host)
            accepted, _ = server.accept()
            with client, accepted:
                assert owner_of(accepted) == OTHER_USER
                assert os.geteuid() == own_user_id() == 0
    except OSError as error:
        pytest.skip(f"this host has no IPv6: {error}")


CHILD = f"""
import os, socket, sys
os.setgroups([]); os.setgid({OTHER_USER}); os.setuid({OTHER_USER})
one = socket.socket(int(sys.argv[1]))
one.connect(sys.argv[3] if sys.argv[2] == "unix" else ("127.0.0.1", int(sys.argv[3])))
sys.stdin.read()
"""


@contextlib.contextmanager
def other_process(family: int, kind: str, place: str) -> Iterator[None]:
    command = [sys.executable, "-I", "-S", "-c", CHILD, str(int(family)), kind, place]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd="/") as process:
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
    assert process.returncode == 0


@needs_root
def test_a_process_of_another_user_is_known_as_that_user() -> None:
    with (
        listening() as server,
        other_process(socket.AF_INET, "tcp", str(server.getsockname()[1])),
    ):
        accepted, _ = server.accept()
        with accepted:
            assert owner_of(accepted) == OTHER_USER


@pytest.fixture
def unix_server() -> Iterator[socket.socket]:
    # The path of a Unix socket has at most 107 bytes, and other users must reach it.
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX) as server,
    ):
        Path(folder).chmod(0o755)
        place = f"{folder}/socket"
        server.bind(place)
        Path(place).chmod(0o777)
        server.listen()
        server.settimeout(120)
        yield server


def test_the_user_of_a_client_of_a_unix_socket_is_known(unix_server: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(unix_server.getsockname())
        accepted, _ = unix_server.accept()
        with accepted:
            assert unix_peer_user_id(accepted) == os.geteuid()
            client.close()
            assert unix_peer_user_id(accepted) == os.geteuid()


@needs_root
def test_a_process_of_another_user_is_known_at_a_unix_socket(unix_server: socket.socket) -> None:
    with other_process(socket.AF_UNIX, "unix", unix_server.getsockname()):
        accepted, _ = unix_server.accept()
        with accepted:
            assert unix_peer_user_id(accepted) == OTHER_USER


def test_a_tcp_socket_has_no_user_as_a_unix_socket(
    connected: tuple[socket.socket, socket.socket],
) -> None:
    assert unix_peer_user_id(connected[1]) is None


# A closed client is reported with user 0, so a server of root would take everyone for itself.
def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def close_with_data(client: socket.socket) -> None:
    client.sendall(b"PUB t\n")
    client.close()


def shut_down(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_RDWR)
    client.close()


CLOSINGS: dict[str, Callable[[socket.socket], None]] = {
    "closed": socket.socket.close,
    "reset": reset,
    "closed with data on the way": close_with_data,
    "shut down and closed": shut_down,
}


@pytest.mark.parametrize("case", CLOSINGS)
def test_a_client_that_has_closed_is_nobody(
    case: str, connected: tuple[socket.socket, socket.socket]
) -> None:
    client, accepted = connected
    peer, own = accepted.getpeername(), accepted.getsockname()
    CLOSINGS[case](client)
    assert peer_user_id(peer, own) is None


def test_a_client_that_has_closed_is_nobody_after_the_server_has_closed_as_well(
    connected: tuple[socket.socket, socket.socket],
) -> None:
    client, accepted = connected
    peer, own = accepted.getpeername(), accepted.getsockname()
    client.close()
    accepted.close()
    assert peer_user_id(peer, own) is None  # its socket waits for late packets


def test_a_client_that_only_writes_no_longer_keeps_its_user(
    connected: tuple[socket.socket, socket.socket],
) -> None:
    client, accepted = connected
    client.shutdown(socket.SHUT_WR)
    assert owner_of(accepted) == os.geteuid()


def test_a_listener_at_the_port_of_a_closed_client_is_not_taken_for_it() -> None:
    with listening() as server:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.bind(("127.0.0.1", 0))
        client.connect(server.getsockname())
        accepted, peer = server.accept()
        with accepted, socket.socket() as listener:
            own = accepted.getsockname()
            client.close()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(peer)
            listener.listen()
            assert peer_user_id(peer, own) is None


def test_a_socket_that_still_connects_is_not_taken_for_a_client() -> None:
    with socket.socket() as full, socket.socket() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with contextlib.ExitStack() as stack:
            stack.enter_context(socket.create_connection(full.getsockname(), 60))
            assert select.select([full], [], [], 60)[0], "it waits to be accepted"
            one = stack.enter_context(socket.socket())
            one.settimeout(0)
            one.connect_ex(full.getsockname())
            waiting.settimeout(0)
            waiting.connect_ex(full.getsockname())
            assert peer_user_id(waiting.getsockname(), full.getsockname()) is None


def test_the_server_s_own_end_is_not_asked_for(
    connected: tuple[socket.socket, socket.socket],
) -> None:
    client, accepted = connected
    own_port, port = accepted.getsockname()[1], client.getsockname()[1]
    assert peer_user_id(("127.0.0.1", port), ("127.0.0.1", own_port)) is not None
    assert peer_user_id(("127.0.0.2", port), ("127.0.0.1", own_port)) is None
    assert peer_user_id(("127.0.0.1", port), ("127.0.0.2", own_port)) is None
    assert peer_user_id(("127.0.0.1", port), ("127.0.0.1", port)) is None
    assert peer_user_id(("127.0.0.1", own_port), ("127.0.0.1", own_port)) is None


@needs_root
def test_each_of_many_clients_keeps_its_own_user() -> None:
    with listening() as server, contextlib.ExitStack() as stack:
        expected = {}
        for at in range(200):
            user = OTHER_USER + at % 3
            with as_user(user):
                client = stack.enter_context(client_of(server))
            expected[client.getsockname()] = user
        accepted = [stack.enter_context(server.accept()[0]) for _ in expected]
        assert {one.getpeername(): owner_of(one) for one in accepted} == expected


ADDRESSES = st.tuples(
    st.one_of(
        st.text(max_size=20),
        st.ip_addresses().map(str),
        st.sampled_from(["127.0.0.1", "::1", "::ffff:127.0.0.1", "::1%lo", "localhost", ""]),
    ),
    st.integers(-10, 70_000),
)


@given(ADDRESSES, ADDRESSES)
def test_no_address_raises_or_has_a_user_without_a_socket(
    client: tuple[str, int], server: tuple[str, int]
) -> None:
    assert peer_user_id(client, server) is None


class Kernel:
    """A netlink socket that answers as the test says."""

    def __init__(self, answer: Callable[[bytes], bytes], sender: int = 0) -> None:
        self._answer, self._sender = answer, sender
        self._question = b""

    def __call__(self, family: int, kind: int, protocol: int) -> Kernel:
        self._real = REAL(family, kind, protocol)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._real.close()

    def sendto(self, data: bytes, address: tuple[int, int]) -> None:
        self._real.sendto(data, address)

    def recvfrom(self, size: int) -> tuple[bytes, tuple[int, int]]:
        answer, _ = self._real.recvfrom(size)
        return self._answer(answer), (self._sender, 0)


REAL = socket.socket
# Offsets of the answer's fields, from the structures of linux/inet_diag.h.
KIND, SEQUENCE, FAMILY, STATE, PORT, SERVER, USER, INODE = 4, 8, 16, 17, 20, 40, 80, 84


def changed(at: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda answer: answer[:at] + value + answer[at + len(value) :]


LIES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "cut off": lambda answer: answer[:87],
    "longer than it is": changed(0, struct.pack("=I", 4000)),
    "an error": changed(KIND, struct.pack("=H", 2)),
    "to another question": changed(SEQUENCE, struct.pack("=I", 9)),
    "of another family": changed(FAMILY, bytes([1])),
    "of a socket that listens": changed(STATE, bytes([10])),
    "of a socket that still connects": changed(STATE, bytes([2])),
    "of a socket that waits for late packets": changed(STATE, bytes([6])),
    "of another port": changed(PORT, struct.pack("!H", 1)),
    "of another server": changed(SERVER, socket.inet_aton("127.0.0.9")),
    "without an inode": changed(INODE, bytes(4)),
    "without an inode, of root": changed(USER, bytes(8)),
    "of a user of another namespace": changed(
        USER, struct.pack("=I", int(Path("/proc/sys/kernel/overflowuid").read_text()))
    ),
    "of no user": changed(USER, b"\xff" * 4),
}


@pytest.mark.parametrize("case", LIES)
def test_an_answer_that_does_not_fit_the_question_has_no_user(
    case: str, connected: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", Kernel(LIES[case]))
    assert owner_of(connected[1]) is None


def test_an_answer_that_is_not_the_kernel_s_has_no_user(
    connected: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", Kernel(lambda answer: answer))
    assert owner_of(connected[1]) == os.geteuid()
    monkeypatch.setattr(socket, "socket", Kernel(lambda answer: answer, sender=77))
    assert owner_of(connected[1]) is None


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError, BlockingIOError, OSError])
def test_a_kernel_that_does_not_answer_grants_nothing(
    error: type[OSError],
    connected: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> socket.socket:
        raise error("not supported here")

    monkeypatch.setattr(socket, "socket", refuse)
    assert owner_of(connected[1]) is None
