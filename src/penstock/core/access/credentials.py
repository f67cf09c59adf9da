"""Users and tokens of an installation: the file `credentials.json`, which commands write.

Owns the form of the file, its strict reading, and its changes. The file has no secret that could be
used: passwords are argon2id hashes, tokens SHA-256 hashes of 256 random bits. `CredentialFile`
writes it under the lock of its folder, atomically, and fsyncs it, so a command that was answered is
not lost, and two commands at once do not lose each other's change.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from penstock.core.access.bearer_tokens import NewToken, new_token
from penstock.core.access.policy_file import check_role_name
from penstock.core.access.principal import Principal, PrincipalKind, check_login_name
from penstock.core.access.private_file import (
    locked,
    make_private_folder,
    read_bounded,
    replace_private,
)
from penstock.core.access.rules import Rule
from penstock.core.clock import Clock
from penstock.core.errors import Conflict, InvalidRequest, NotFound

FORMAT: Final = 1
CREDENTIALS_BYTES_MAX: Final = 64 << 20
"""Maximum size of the file; 10,000 tokens take about 3 MB."""
SCOPE_RULES_MAX: Final = 100
"""Maximum number of rules in the scope of a token, which are compared one by one."""
RESERVED_TOKENS: Final = ("operator", "shared")
"""Names of the tokens in `operator.token` and of the option `token`."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_HASH: Final = re.compile(r"\$argon2id\$[!-~]{20,400}", re.ASCII)


class UserRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user as stored.

    Attributes:
        password: The argon2id hash with its parameters.
        roles: Roles, in addition to those that `access.toml` gives.
        created: Epoch milliseconds.
    """

    password: str
    roles: tuple[str, ...] = ()
    created: int = 0

    @property
    def fingerprint(self) -> str:
        """Text that differs from that of any other password or roles."""
        return _fingerprint(self.password, *self.roles)


class TokenRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token as stored.

    Attributes:
        name: Its name, which is unique.
        sha256: Hash of its text, in hexadecimal.
        roles: Roles, in addition to those that `access.toml` gives.
        scope: Rules that narrow its rights; None: it has all rights of its roles.
        expires: Epoch milliseconds; None: it does not expire.
        created: Epoch milliseconds.
    """

    name: str
    sha256: str
    roles: tuple[str, ...] = ()
    scope: tuple[str, ...] | None = None
    expires: int | None = None
    created: int = 0


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    users: dict[str, UserRecord] = {}
    tokens: dict[str, TokenRecord] = {}


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token that was read and checked.

    Attributes:
        digest: Hash of its text.
        principal: Its principal.
    """

    digest: bytes
    principal: Principal


@dataclass(frozen=True, slots=True)
class Credentials:
    """All users and tokens. Immutable; `CredentialFile` changes them.

    Attributes:
        users: Users by name.
        tokens: Tokens by id.
    """

    users: Mapping[str, UserRecord] = field(default_factory=dict)
    tokens: Mapping[str, TokenRecord] = field(default_factory=dict)

    def user_principal(self, name: str) -> Principal | None:
        """Return the principal of a user; None: there is no such user."""
        user = self.users.get(name)
        if user is None:
            return None
        return Principal(PrincipalKind.USER, name, user.roles, credential=user.fingerprint)

    def stored_tokens(self) -> dict[str, StoredToken]:
        """Return the principals and hashes of all tokens, by id."""
        return {
            token_id: StoredToken(bytes.fromhex(token.sha256), _token_principal(token))
            for token_id, token in self.tokens.items()
        }


def _token_principal(token: TokenRecord) -> Principal:
    scope = None if token.scope is None else tuple(Rule.parse(one) for one in token.scope)
    return Principal(
        PrincipalKind.TOKEN,
        token.name,
        token.roles,
        scope,
        token.expires,
        credential=_fingerprint(token.sha256),
    )


def parse_credentials(content: bytes, place: str) -> Credentials:
    """Return the users and tokens in the content of `credentials.json`.

    Raises:
        InvalidRequest: It is not valid; the message has the place, the reason and the remedy.
    """
    try:
        document = msgspec.json.decode(content, type=_Document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _damaged(str(error), place) from None
    except UnicodeDecodeError:  # narrow: restores nothing
        raise _damaged("it is not UTF-8", place) from None
    if document.format != FORMAT:
        raise InvalidRequest(
            f"it has format {document.format}, and this release reads format {FORMAT}: use the"
            " release that wrote it",
            place=place,
        )
    names: set[str] = set()
    for name, user in document.users.items():
        here = f"{place}: users.{name}"
        check_login_name(name, place=here)
        if not _HASH.fullmatch(user.password):
            raise _damaged("the password is not an argon2id hash", here)
        _check_roles(user.roles, here)
    for token_id, token in document.tokens.items():
        here = f"{place}: tokens.{token_id}"
        check_token(token, place=here)
        if not _DIGEST.fullmatch(token.sha256):
            raise _damaged("sha256 is not a SHA-256 hash", here)
        if token.name in names:
            raise _damaged(f"the name {token.name!r} exists twice", here)
        names.add(token.name)
    return Credentials(document.users, document.tokens)


def check_token(token: TokenRecord, *, place: str = "") -> None:
    """Check the name, the roles and the scope of a token.

    Raises:
        InvalidRequest: One of them is not valid.
    """
    check_login_name(token.name, place=place)
    if token.name in RESERVED_TOKENS:
        raise InvalidRequest(
            f"the name {token.name!r} is reserved for a token of Penstock: choose another one",
            place=place,
        )
    _check_roles(token.roles, place)
    if token.scope is not None:
        if len(token.scope) > SCOPE_RULES_MAX:
            raise InvalidRequest(
                f"the scope has {len(token.scope):,} rules: use up to {SCOPE_RULES_MAX}, or a role",
                place=place,
            )
        for rule in token.scope:
            Rule.parse(rule, place=place)


class CredentialFile:
    """Reads and changes `credentials.json`. For commands; servers read with `access_folder`.

    Args:
        path: The file.
        clock: For the time of creation, and for the wait for the lock.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    def read(self) -> Credentials:
        """Return the users and tokens; none if the file does not exist.

        Raises:
            InvalidRequest: The file is not valid, or other users may read it.
            Unavailable: It cannot be read.
        """
        try:
            content = read_bounded(self._path, CREDENTIALS_BYTES_MAX, is_private=True)
        except NotFound:  # narrow: restores nothing
            return Credentials()
        return parse_credentials(content, str(self._path))

    def add_user(self, name: str, password_hash: str, roles: tuple[str, ...] = ()) -> None:
        """Add a user durably.

        Raises:
            Conflict: The user exists.
            InvalidRequest: The name or a role is not valid.
            Unavailable: The file cannot be written.
        """
        check_login_name(name)
        _check_roles(roles, "")
        with self._changed() as document:
            if name in document.users:
                raise Conflict(
                    f"user {name} exists already: change the password with penstock user password"
                )
            document.users[name] = UserRecord(password_hash, roles, self._clock.now_ms())

    def set_password(self, name: str, password_hash: str) -> None:
        """Replace the password of a user durably; connections with the old one lose their rights.

        Raises:
            NotFound: There is no such user.
            Unavailable: The file cannot be written.
        """
        with self._changed() as document:
            user = document.users.get(name)
            if user is None:
                raise NotFound(f"user {name!r} does not exist: penstock user list shows all users")
            document.users[name] = UserRecord(password_hash, user.roles, user.created)

    def remove_user(self, name: str) -> None:
        """Remove a user durably. Raises as `set_password`."""
        with self._changed() as document:
            if document.users.pop(name, None) is None:
                raise NotFound(f"user {name!r} does not exist: penstock user list shows all users")

    def add_token(
        self,
        name: str,
        roles: tuple[str, ...] = (),
        scope: tuple[str, ...] | None = None,
        expires_ms: int | None = None,
    ) -> NewToken:
        """Add a token durably and return it; its text is not stored.

        Raises:
            Conflict: A token of this name exists.
            InvalidRequest: The name, a role or a rule of the scope is not valid.
            Unavailable: The file cannot be written.
        """
        token = new_token()
        record = TokenRecord(
            name, token.digest.hex(), roles, scope, expires_ms, self._clock.now_ms()
        )
        check_token(record)
        with self._changed() as document:
            if any(one.name == name for one in document.tokens.values()):
                raise Conflict(
                    f"token {name} exists already: choose another name, or remove it with penstock"
                    f" token remove {name}"
                )
            document.tokens[token.id] = record
        return token

    def remove_token(self, name: str) -> None:
        """Remove a token durably, by its name.

        Raises:
            NotFound: There is no such token.
            Unavailable: The file cannot be written.
        """
        with self._changed() as document:
            found = next((one for one, t in document.tokens.items() if t.name == name), None)
            if found is None:
                raise NotFound(
                    f"token {name!r} does not exist: penstock token list shows all tokens"
                )
            del document.tokens[found]

    @contextmanager
    def _changed(self) -> Iterator[_Document]:
        """Yield the users and tokens for a change, and store it unless an exception is raised."""
        make_private_folder(self._path.parent)
        with locked(self._path.parent, self._clock):
            found = self.read()
            document = _Document(FORMAT, dict(found.users), dict(found.tokens))
            yield document
            content = msgspec.json.format(msgspec.json.encode(document), indent=1)
            parse_credentials(content, str(self._path))  # the next reader must accept it
            replace_private(self._path, content + b"\n")


def _check_roles(roles: tuple[str, ...], place: str) -> None:
    for role in roles:
        check_role_name(role, place=place)


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _damaged(reason: str, place: str) -> InvalidRequest:
    return InvalidRequest(
        f"{reason}: the file is written by penstock user and penstock token alone: restore it from"
        " a backup",
        place=place,
    )
