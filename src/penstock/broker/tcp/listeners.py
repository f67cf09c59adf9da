"""Listening sockets: TCP's, and unix sockets with the files they are.

Owns of a unix socket its permissions from the first moment, and what was left at its path by a
broker that died. Invariant: a file that is no socket, or that somebody listens on, is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from penstock.core.errors import InvalidRequest, Unavailable

BACKLOG = 4096  # all clients come back at once when a broker does; the kernel may allow fewer


def bind_listener(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket; connections wait until somebody accepts them.

    Raises:
        InvalidRequest: The address is not one of this machine, or not allowed.
        Unavailable: The port is taken.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidRequest(f"address {host}: {error}: name an address of this machine") from error
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
        path: Where.
        mode: Permissions of its file: who may connect.

    Raises:
        InvalidRequest: The path cannot be used.
        Unavailable: Somebody listens there.
    """
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    is_bound = False
    try:
        # Before the file is there, or for a moment everybody could connect.
        os.fchmod(listener.fileno(), mode)
        listener.bind(path)
        is_bound = True
        # Of the permissions the process's mask may have taken some away.
        Path(path).chmod(mode)
        listener.listen(BACKLOG)
    except BaseException as error:
        listener.close()
        if is_bound:
            remove_unix_listener(path)
        if not isinstance(error, OSError):
            raise
        raise InvalidRequest(
            f"{path}: {error}: name a path of 107 bytes at most in a folder that can be written",
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
        return  # binding says what is wrong, if anything is
    if not stat.S_ISSOCK(found.st_mode):
        raise InvalidRequest(
            f"{path} is there and no socket: choose another path", place="tcp-socket"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            remove_unix_listener(path)  # of a broker that died
            return
        except OSError as error:
            raise Unavailable(f"{path}: {error}: cannot see whether it is in use") from error
    raise Unavailable(
        f"{path} is in use: stop the program that listens there, or choose another path"
    )
