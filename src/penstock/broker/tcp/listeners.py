"""Listening sockets: TCP sockets, and unix sockets with their files.

Owns the permissions of a unix socket from its creation, and the removal of a file left by a
broker that died. Invariant: a file that is not a socket, or on which a process listens, is kept.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from penstock.core.errors import InvalidRequest, Unavailable

BACKLOG = 4096  # all clients reconnect at once after a restart; the kernel may allow fewer


def bind_listener(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket; connections wait until they are accepted.

    Raises:
        InvalidRequest: The address is not one of this machine, or not allowed.
        Unavailable: The port is taken.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(
            f"invalid address {host}: {error}: specify an address of this machine"
        ) from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException as error:
        listener.close()
        if not isinstance(error, OSError):
            raise
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"port {port} of {host} is taken: stop the program that uses it, or choose another "
                "port (0 picks a free one)"
            ) from error
        raise InvalidRequest(
            f"port {port} of {host} cannot be bound: {error.strerror}: choose another address"
        ) from error
    return listener


def bind_unix_listener(path: str, mode: int) -> socket.socket:
    """Return a listening unix socket.

    Args:
        path: Path of its file.
        mode: Permissions of its file, which decide who can connect.

    Raises:
        InvalidRequest: The path cannot be used.
        Unavailable: A process listens there.
    """
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    is_bound = False
    try:
        # Before `bind` creates the file: otherwise everyone could connect for a moment.
        os.fchmod(listener.fileno(), mode)
        listener.bind(path)
        is_bound = True
        # The umask of the process may have removed permissions.
        Path(path).chmod(mode)
        listener.listen(BACKLOG)
    except BaseException as error:
        listener.close()
        if is_bound:
            remove_unix_listener(path)
        if not isinstance(error, OSError):
            raise
        raise InvalidRequest(
            f"{path}: {error}: specify a path of at most 107 bytes in a writable folder",
            place="tcp-socket",
        ) from error
    return listener


def remove_unix_listener(path: str) -> None:
    """Remove the file of a socket that was closed."""
    with contextlib.suppress(OSError):
        Path(path).unlink()


def _remove_stale(path: str) -> None:
    try:
        found = Path(path).lstat()
    except OSError:
        return  # `bind` reports the problem, if there is one
    if not stat.S_ISSOCK(found.st_mode):
        raise InvalidRequest(
            f"{path} exists and is not a socket: choose another path", place="tcp-socket"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            remove_unix_listener(path)  # left by a broker that died
            return
        except OSError as error:
            raise Unavailable(f"{path}: {error}: cannot check whether it is in use") from error
    raise Unavailable(
        f"{path} is in use: stop the program that listens there, or choose another path"
    )
