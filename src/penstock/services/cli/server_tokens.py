"""Tokens that the command line sends without being told to, each to one server only.

Owns the user's own file of logins, and the choice of a token for a server:

    --token-file, PENSTOCK_TOKEN, penstock.toml   sent to every server that a command names
    a login (`penstock login URL`)                sent to the server of this URL
    operator.token of a data folder               sent to the server that runs in this folder

Invariant: a token is never sent to another server. The address in a data folder may be out of date,
and another user's program may have taken the port, so the operating system must show that the
listener belongs to the user of the folder.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from penstock.core import tls_trust
from penstock.core.access.operator_token import (
    OPERATOR_TOKEN_FILE,
    SECRET_FILE_BYTES_MAX,
    parse_operator_token,
)
from penstock.core.access.private_file import (
    locked,
    make_private_folder,
    read_bounded,
    replace_private,
)
from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, NotFound, PenstockError

_FILE: Final = "logins.json"
_FILE_BYTES_MAX: Final = 1 << 20
_PORTS: Final = {"http": 80, "https": 443}
_LISTENERS: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS: Final = "0A"  # state TCP_LISTEN (proc_pid_net(5))


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, which identify a server.

    Raises:
        InvalidRequest: The URL is not valid.
    """
    parts = urlsplit(url if "//" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:  # narrow: restores nothing
        port = -1
    if parts.scheme not in _PORTS or not parts.hostname or port == -1:
        raise InvalidRequest(f"invalid server address {url!r}; write http://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise InvalidRequest(f"write the address {parts.hostname} without a user and a password")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{_PORTS[parts.scheme] if port is None else port}"


def is_loopback(origin: str) -> bool:
    """Return whether requests to a server do not leave this host."""
    return tls_trust.is_loopback(urlsplit(origin).hostname or "")


class Logins:
    """The tokens that `penstock login` keeps for this user, by server.

    Args:
        environment: Variables with the folder of the user's configuration (XDG Base Directory
            Specification).
        clock: For the wait for the lock.
    """

    def __init__(self, environment: Mapping[str, str], clock: Clock) -> None:
        named = environment.get("XDG_CONFIG_HOME", "")
        base = Path(named) if named.startswith("/") else Path.home() / ".config"
        self._folder = base / "penstock"
        self.path: Final = self._folder / _FILE
        self._clock = clock

    def read(self) -> Mapping[str, str]:
        """Return the tokens by server.

        Raises:
            InvalidRequest: The file is damaged, or other users may read it.
            Unavailable: It cannot be read.
        """
        try:
            content = read_bounded(self.path, _FILE_BYTES_MAX, is_private=True)
        except NotFound:  # narrow: restores nothing
            return {}
        try:
            tokens = json.loads(content)
        except (ValueError, RecursionError):  # narrow: restores nothing
            tokens = None
        if not isinstance(tokens, dict) or not all(isinstance(t, str) for t in tokens.values()):
            raise InvalidRequest(
                "it is damaged: delete it and log in again", place=str(self.path)
            ) from None
        return tokens

    def keep(self, origin: str, token: str) -> None:
        """Keep a token durably, instead of an earlier one for the same server. Raises as `read`."""
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        make_private_folder(self._folder)
        with locked(self._folder, self._clock):
            self._write({**self.read(), origin: token})

    def drop(self, origin: str) -> None:
        """Forget the token of a server. Raises as `read`.

        Raises:
            NotFound: There is none.
        """
        if origin not in self.read():
            raise NotFound(f"no token is kept for {origin}: penstock logout needs the same URL")
        with locked(self._folder, self._clock):
            self._write({name: token for name, token in self.read().items() if name != origin})

    def _write(self, tokens: Mapping[str, str]) -> None:
        replace_private(self.path, json.dumps(dict(tokens), indent=1).encode())


def operator_token_for(url: str, folder: Path) -> str | None:
    """Return the operator's token for the server of a data folder, if this user may read it.

    Args:
        url: Address of the server, from the data folder.
        folder: The folder of access of this data folder.
    """
    path = folder / OPERATOR_TOKEN_FILE
    try:
        owner = path.stat().st_uid
        content = read_bounded(path, SECRET_FILE_BYTES_MAX, is_private=True, owner=owner)
        token = parse_operator_token(content, str(path))
    except (OSError, PenstockError):  # narrow: the server may be one of another user
        return None
    server = urlsplit(origin_of(url))
    is_own = _is_address_of_this_host(server.hostname or "") and (
        _listeners(server.port or 0) == {owner}
    )
    return token if is_own else None


def _is_address_of_this_host(host: str) -> bool:
    if host == "localhost":
        return True
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        ipaddress.ip_address(host)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))  # the kernel accepts only its own addresses
    except (ValueError, OSError):  # narrow: restores nothing
        return False
    return True


def _listeners(port: int) -> set[int]:
    """Return the ids of the users whose programs listen on a TCP port of this host."""
    users: set[int] = set()
    for table in _LISTENERS:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:  # narrow: a host without IPv6
            continue
        for line in lines:
            # Local address, remote address, state, two sizes, two timers, retransmits, user.
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                users.add(int(fields[7]))
    return users
