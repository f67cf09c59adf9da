"""The user of this host who owns the other end of a local connection, as the kernel reports it.

Owns the question to Linux' socket diagnostics (``sock_diag(7)``) for TCP over loopback, and
``SO_PEERCRED`` (``unix(7)``) for Unix sockets. Does not own what that user may do.

Invariants: only the client's own socket counts, of exactly this pair of addresses, in this network
namespace, and only while a process holds it open. Everything else is None: an unknown user.
Functions raise no exception for addresses or for answers of the kernel.
"""

from __future__ import annotations

import os
import socket
import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

# Structures and numbers of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h. Addresses and
# ports are in network order, everything else in the host's.
_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
_REQUEST: Final = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_PORTS: Final = struct.Struct("!HH16s16s")  # source port and address first, then the destination's
_SOCKET: Final = struct.Struct("=I8s")  # interface, cookie
_STATE: Final = struct.Struct("=BB2x")  # family, state; then _PORTS and _SOCKET
_OWNER: Final = struct.Struct("=12xII")  # user id, inode; behind _SOCKET
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_NO_COOKIE: Final = b"\xff" * 8
_SEQUENCE: Final = 1
_ANSWER_BYTES: Final = 4096
_PORTS_AT: Final = _HEADER.size + _STATE.size
_OWNER_AT: Final = _PORTS_AT + _PORTS.size + _SOCKET.size

# States of linux/tcp_states.h in which a process can still hold the client's end of a connection
# that was accepted: established; closed for writing alone (1st and 2nd step); closed by the server.
# A socket without a process is reported in these states, too, but without an inode.
_ESTABLISHED, _FIN_WAIT_1, _FIN_WAIT_2, _CLOSE_WAIT = 1, 4, 5, 8
_HELD: Final = frozenset({_ESTABLISHED, _FIN_WAIT_1, _FIN_WAIT_2, _CLOSE_WAIT})
_HELD_MASK: Final = sum(1 << state for state in _HELD)

_CREDENTIALS: Final = struct.Struct("=iII")  # struct ucred: process, user, group
_NO_USER: Final = 0xFFFF_FFFF

_Address = tuple[IPv4Address | IPv6Address, int]


def _overflow_user_id() -> int:
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 65534  # the kernel's default


# The kernel reports this one for each user that has no id in the user namespace of this process, so
# it is not one user: 65534 on most systems, which is also the id of the user without rights.
_OVERFLOW_USER_ID: Final = _overflow_user_id()


def peer_user_id(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the id of the user who owns the client's end of a TCP connection over loopback.

    Takes about 30 microseconds and does not wait. The kernel needs no capability for the answer.

    Args:
        client: Address and port of the client, as the server's socket reports its peer.
        server: Address and port of the server's end.

    Returns:
        The user id; None if the client's address is not a loopback address, if no process holds the
        socket open, if it belongs to another network namespace, if its user does not exist in the
        user namespace of this process, or if the kernel does not answer.
    """
    try:
        source, destination = _plain(client), _plain(server)
    except ValueError:
        return None
    if not source[0].is_loopback or source[0].version != destination[0].version:
        return None
    try:
        answer = _ask(source, destination)
    except OSError:
        return None
    return None if answer is None else _user_id_of(answer, source, destination)


def unix_peer_user_id(sock: socket.socket | TransportSocket) -> int | None:
    """Return the id of the user who connected to the socket.

    Args:
        sock: A connection that was accepted at a Unix socket.

    Returns:
        The effective user id of the client when it connected; None if the socket is not a Unix
        socket, or if its user does not exist in the user namespace of this process.
    """
    try:
        if sock.family != socket.AF_UNIX:
            return None
        answer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user_id, _ = _CREDENTIALS.unpack(answer)
    except (OSError, struct.error):
        return None
    return _known(user_id)


def own_user_id() -> int | None:
    """Return the effective user id of this process; None if several users may have the same one."""
    return _known(os.geteuid())


def _known(user_id: int) -> int | None:
    return None if user_id in (_OVERFLOW_USER_ID, _NO_USER) else user_id


def _plain(address: tuple[str, int]) -> _Address:
    """Return an address in the form in which two of one socket are equal.

    Raises:
        ValueError: It is not an address.
    """
    host, port = ip_address(address[0]), address[1]
    if not 0 < port <= 0xFFFF:
        raise ValueError(port)
    if isinstance(host, IPv6Address) and host.ipv4_mapped is not None:
        return host.ipv4_mapped, port
    return host, port


def _ask(source: _Address, destination: _Address) -> bytes | None:
    """Return the kernel's answer to the question for one socket, if it comes from the kernel.

    Without ``NLM_F_DUMP`` the kernel looks the socket up in its hash table and answers before
    ``send`` returns. A new socket for each question has no answers to earlier questions.

    Raises:
        OSError: The kernel does not support it, refuses it, or does not answer at once.
    """
    family = socket.AF_INET if source[0].version == 4 else socket.AF_INET6
    question = (
        _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _HELD_MASK)
        + _PORTS.pack(source[1], destination[1], source[0].packed, destination[0].packed)
        + _SOCKET.pack(0, _NO_COOKIE)
    )
    size = _HEADER.size + len(question)
    header = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _SEQUENCE, 0)
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as kernel:
        kernel.sendto(header + question, (0, 0))
        answer, (sender, _) = kernel.recvfrom(_ANSWER_BYTES)
    return answer if sender == 0 else None


def _user_id_of(answer: bytes, source: _Address, destination: _Address) -> int | None:
    """Return the user id of an answer, if it is about this socket and a process holds that.

    If the client's socket is gone, the kernel reports a socket that listens at its port.
    """
    if len(answer) < _OWNER_AT + _OWNER.size:
        return None
    size, kind, _, sequence, _ = _HEADER.unpack_from(answer)
    if size > len(answer) or kind != _SOCK_DIAG_BY_FAMILY or sequence != _SEQUENCE:
        return None
    family, state = _STATE.unpack_from(answer, _HEADER.size)
    if state not in _HELD or family not in (socket.AF_INET, socket.AF_INET6):
        return None
    ports = _PORTS.unpack_from(answer, _PORTS_AT)
    if (_end(family, ports[2], ports[0]), _end(family, ports[3], ports[1])) != (
        source,
        destination,
    ):
        return None
    user_id, inode = _OWNER.unpack_from(answer, _OWNER_AT)
    # The kernel reports user 0 for a socket that no process holds.
    return None if inode == 0 else _known(user_id)


def _end(family: int, packed: bytes, port: int) -> _Address | None:
    host = IPv4Address(packed[:4]) if family == socket.AF_INET else IPv6Address(packed)
    try:
        return _plain((str(host), port))
    except ValueError:
        return None
