"""Logins of browsers: links with a one-time code, and the sessions that they are exchanged for.

    penstock up, penstock login --link      a link    one use, within 10 minutes
    POST /login with its code               a session up to 12 hours, until POST /logout

Owns the file `browser-logins.json` in the folder `access`, which commands and routers change, and
what a process has read of it. A code and a session are 256 random bits each, and only their SHA-256
hashes are stored, so the file has no secret that could be used. A lookup compares hashes, whose
bits a client cannot choose, so its duration tells nothing about the secret.

Invariants: a code is removed from the file in the same atomic write that adds its session, under
the lock of the folder, so it is used once, even with several routers, and after a crash. A session
has no rights of its own: each request gets those that the stored user or token has now, and none
if it was removed or changed. A file that is not valid ends all logins.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from penstock.core.access.principal import Principal, parse_principal
from penstock.core.access.private_file import (
    FileVersion,
    locked,
    make_private_folder,
    read_bounded,
    replace_private,
    version_of,
)
from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, NotFound, PenstockError, Unavailable

BROWSER_LOGINS_FILE: Final = "browser-logins.json"
LINK_MS: Final = 10 * 60_000
"""Time in which a link must be used, in milliseconds."""
SESSION_MS: Final = 12 * 3_600_000
"""Maximum duration of a session, in milliseconds."""
LINKS_MAX: Final = 100
SESSIONS_MAX: Final = 1_000
"""With more, those end that would expire first."""

_FORMAT: Final = 1
_SECRET_BYTES: Final = 32
_SECRET_CHARACTERS: Final = 43  # of 32 bytes in base64url
_FILE_BYTES_MAX: Final = 1 << 20

_logger = logging.getLogger(__name__)


class UnknownCredential(Unavailable):
    """This process does not know the user or token of a link: try again in a few seconds."""


class BrowserLogin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link or a session as stored.

    Attributes:
        principal: Id of the user or token whose rights it has.
        credential: Fingerprint of this credential when the link was made.
        expires: Epoch milliseconds.
    """

    principal: str
    credential: str
    expires: int


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: int = _FORMAT
    links: dict[str, BrowserLogin] = {}
    sessions: dict[str, BrowserLogin] = {}


class BrowserLogins:
    """The links and sessions of one installation. Any thread.

    `principal` is fast, for event loops; everything else reads or writes the file. The mutex
    serializes readers of the file, which may be the thread of access control or one of a request.

    Args:
        folder: The folder `access`.
        clock: For expiry.

    Attributes:
        known: The stored users and tokens, by their ids.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._path = folder / BROWSER_LOGINS_FILE
        self._clock = clock
        self._mutex = threading.Lock()
        self._version: FileVersion | None = None
        self._known = _Document()
        self.known: Mapping[str, Principal] = {}

    def use(self, principals: Mapping[str, Principal]) -> None:
        """Use the stored users and tokens, by their ids, from now on."""
        self.known = principals

    def new_link(self, principal: Principal) -> str:
        """Add a link durably, and return its code, which is not stored.

        Args:
            principal: A stored user or token.

        Raises:
            InvalidRequest: The file is not valid.
            Unavailable: It cannot be written.
        """
        assert principal.credential, "only a stored credential can be followed to its removal"
        code = secrets.token_urlsafe(_SECRET_BYTES)
        login = BrowserLogin(principal.id, principal.credential, self._clock.now_ms() + LINK_MS)
        make_private_folder(self._path.parent)
        with self._changed() as document:
            document.links[_digest(code)] = login
        return code

    def link(self, code: str) -> BrowserLogin | None:
        """Return a link that can still be used, without using it; None: there is none.

        Raises:
            InvalidRequest: The file is not valid.
            Unavailable: It cannot be read.
        """
        self.refresh()
        return self._live(self._known.links.get(_digest(code)))

    def redeem(self, code: str) -> tuple[str, Principal] | None:
        """Use a link durably, and return the new session; None: the code is not valid.

        Raises:
            InvalidRequest: The file is not valid.
            UnknownCredential: The code is valid and stays so, but this process does not know the
                user or token of it: it was created just now, or removed.
            Unavailable: The file cannot be written.
        """
        found = self.link(code)
        if found is None:
            return None  # a wrong code must not cost a write
        if self._principal(found) is None:
            raise UnknownCredential(
                f"{found.principal} is not known here, or its credential has changed: if it was"
                " created just now, try again in a few seconds; the link was not used up"
            )
        session = secrets.token_urlsafe(_SECRET_BYTES)
        with self._changed() as document:
            link = self._live(document.links.pop(_digest(code), None))
            if link is None:
                return None
            expires_ms = self._clock.now_ms() + SESSION_MS
            login = BrowserLogin(link.principal, link.credential, expires_ms)
            document.sessions[_digest(session)] = login
        principal = self._principal(login)
        return None if principal is None else (session, principal)

    def principal(self, session: str) -> Principal | None:
        """Return the principal of a session; None: it has ended. Fast."""
        login = self._live(self._known.sessions.get(_digest(session)))
        return None if login is None else self._principal(login)

    def end(self, session: str) -> None:
        """End a session durably; no effect if it has ended. Raises as `new_link`."""
        if _digest(session) not in self._known.sessions:
            return
        with self._changed() as document:
            document.sessions.pop(_digest(session), None)

    def refresh(self) -> None:
        """Read the file if it has changed; one that is not valid has no links and sessions."""
        with self._mutex:
            version = version_of(self._path)
            if version == self._version:
                return
            try:
                self._known = self._read()
            except PenstockError as error:  # narrow: such a file has no logins
                self._known = _Document()
                _logger.error("no browser is logged in: %s", error)  # noqa: TRY400 - no trace
            self._version = version

    def _principal(self, login: BrowserLogin) -> Principal | None:
        """Return the principal of a login; None: its credential was removed, changed or expired."""
        found = self.known.get(login.principal)
        if found is None or not hmac.compare_digest(found.credential, login.credential):
            return None
        ends_ms = min(filter(None, (login.expires, found.expires_ms)))
        return None if self._clock.now_ms() >= ends_ms else replace(found, expires_ms=ends_ms)

    def _live(self, login: BrowserLogin | None) -> BrowserLogin | None:
        return None if login is None or self._clock.now_ms() >= login.expires else login

    def _read(self) -> _Document:
        try:
            content = read_bounded(self._path, _FILE_BYTES_MAX, is_private=True)
        except NotFound:  # narrow: restores nothing
            return _Document()
        try:
            document = msgspec.json.decode(content, type=_Document)
            for login in (*document.links.values(), *document.sessions.values()):
                parse_principal(login.principal)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidRequest):
            document = _Document(format=0)
        if document.format != _FORMAT:
            raise InvalidRequest(
                "it is damaged, or of another release: delete it, and log in again",
                place=str(self._path),
            )
        return document

    @contextmanager
    def _changed(self) -> Iterator[_Document]:
        """Yield the logins for a change, and store them unless an exception is raised."""
        with locked(self._path.parent, self._clock):
            found = self._read()
            document = _Document(_FORMAT, dict(found.links), dict(found.sessions))
            yield document
            now_ms = self._clock.now_ms()
            document.links = _kept(document.links, now_ms, LINKS_MAX)
            document.sessions = _kept(document.sessions, now_ms, SESSIONS_MAX)
            replace_private(self._path, msgspec.json.encode(document) + b"\n")
        with self._mutex:
            # Any thread may have read a newer file meanwhile.
            self._version = None
        self.refresh()


def _kept(logins: dict[str, BrowserLogin], now_ms: int, count_max: int) -> dict[str, BrowserLogin]:
    """Return the logins that have not expired, at most as many as allowed."""
    live = [one for one in logins.items() if one[1].expires > now_ms]
    live.sort(key=lambda one: one[1].expires)
    return dict(live[-count_max:])


def _digest(secret: str) -> str:
    """Return the hash of a code or session; empty if the text cannot be one."""
    if len(secret) != _SECRET_CHARACTERS or not secret.isascii():
        return ""
    return hashlib.sha256(secret.encode()).hexdigest()
