"""Principals: the users, programs and processes that send requests.

Owns the kinds of principals, their ids (`KIND:NAME`), and the header in which one process of an
installation passes a user's principal to another. Pure.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.core.access.rules import Rule
from penstock.core.errors import InvalidRequest
from penstock.core.names import normalised
from penstock.core.printable import quoted
from penstock.core.similar_names import nearest

PRINCIPAL_HEADER: Final = "X-Penstock-Principal"
"""Header with a principal. A server accepts it from principals that `may_act_for_others`."""

NAME_CHARACTERS_MAX: Final = 200


class PrincipalKind(StrEnum):
    """How a principal was authenticated."""

    OWNER = "owner"
    USER = "user"
    TOKEN = "token"  # noqa: S105 - a kind, not a secret
    CERTIFICATE = "certificate"
    OIDC = "oidc"
    PROCESS = "process"
    TASK = "task"
    NOBODY = "nobody"


# RFC 7617: the name of a user in HTTP Basic must not have a colon.
_LOGIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}", re.ASCII)
_KINDS: Final = {one.value: one for one in PrincipalKind}
_HEADER_FIELDS: Final = {"id", "roles", "scope", "expires", "via"}
# A user of the operating system and a process of the installation may do everything, and a task has
# the rights that its overlord gives it.
ASSIGNABLE: Final = (
    PrincipalKind.USER,
    PrincipalKind.TOKEN,
    PrincipalKind.CERTIFICATE,
    PrincipalKind.OIDC,
)
"""Kinds to whose principals `access.toml` gives roles."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A user, program or process that sends a request.

    Attributes:
        kind: How it was authenticated.
        name: Its name, which is unique within its kind; empty without a credential.
        roles: Roles that the credential itself gives; `Policy` adds those of `access.toml`.
        scope: Rules that narrow the rights of the credential; None: it has all rights of its roles.
        expires_ms: Time in epoch milliseconds after which the credential is invalid; None: never.
        credential: Fingerprint of the stored credential, empty if there is none. A principal whose
            credential was removed or changed may no longer do anything.
        via: Id of the process that acts for it without its credential; empty: none.
    """

    kind: PrincipalKind
    name: str
    roles: tuple[str, ...] = ()
    scope: tuple[Rule, ...] | None = None
    expires_ms: int | None = None
    credential: str = ""
    via: str = ""

    @property
    def id(self) -> str:
        """`KIND:NAME`, such as `user:alice`; the kind alone without a credential."""
        return f"{self.kind}:{self.name}" if self.name else str(self.kind)

    @property
    def may_act_for_others(self) -> bool:
        """Whether a server accepts the header `X-Penstock-Principal` from it."""
        return self.kind in {PrincipalKind.PROCESS, PrincipalKind.OWNER}

    def to_header(self) -> str:
        """Return the value of `X-Penstock-Principal`: JSON in ASCII.

        It lacks the credential, which the sender has checked, and which the receiver may not have
        read yet.
        """
        fields: dict[str, object] = {"id": self.id}
        if self.roles:
            fields["roles"] = self.roles
        if self.scope is not None:
            fields["scope"] = [str(one) for one in self.scope]
        if self.expires_ms is not None:
            fields["expires"] = self.expires_ms
        if self.via:
            fields["via"] = self.via
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_header(cls, value: str) -> Principal:
        """Return the principal of a header.

        Raises:
            InvalidRequest: The value does not come from `to_header`.
        """
        try:
            fields = json.loads(value)
        except (ValueError, RecursionError):  # narrow: restores nothing
            raise _refused_header(value) from None
        if not isinstance(fields, dict) or not fields.keys() <= _HEADER_FIELDS:
            raise _refused_header(value)
        name, roles = fields.get("id"), fields.get("roles", [])
        scope, expires = fields.get("scope"), fields.get("expires")
        via = fields.get("via", "")
        is_valid = all(isinstance(one, str) for one in (name, via)) and _is_list_of_texts(roles)
        is_valid = is_valid and (scope is None or _is_list_of_texts(scope))
        if not is_valid or not (expires is None or type(expires) is int):
            raise _refused_header(value)
        found = parse_principal(str(name), place=PRINCIPAL_HEADER)
        rules = None
        if scope is not None:
            rules = tuple(Rule.parse(one, place=PRINCIPAL_HEADER) for one in scope)
        return cls(found.kind, found.name, tuple(roles), rules, expires, via=via)

    def __str__(self) -> str:
        return self.id


NOBODY: Final = Principal(PrincipalKind.NOBODY, "")
"""The principal of a request without a valid credential."""


def parse_principal(text: str, *, place: str = "") -> Principal:
    """Return the principal of an id such as `user:alice`, without roles.

    Raises:
        InvalidRequest: The kind does not exist, or the name is empty, too long or not printable.
    """
    if text == PrincipalKind.NOBODY:
        return NOBODY
    kind, colon, name = text.partition(":")
    if not colon or not name or not name.isprintable() or len(name) > NAME_CHARACTERS_MAX:
        raise InvalidRequest(
            f"{quoted(text)} does not name a principal: write KIND:NAME, such as user:alice, with a"
            f" name of up to {NAME_CHARACTERS_MAX} printable characters",
            place=place,
        )
    name = normalised(name)
    found = _KINDS.get(kind)
    if found is None or found is PrincipalKind.NOBODY:
        raise InvalidRequest(
            f"unknown kind {quoted(kind)} of the principal {quoted(text)}: use one of"
            f" {', '.join(ASSIGNABLE)}{nearest(kind, map(str, ASSIGNABLE))}",
            place=place,
        )
    if found is PrincipalKind.USER or found is PrincipalKind.TOKEN:
        check_login_name(name, place=place)
    return Principal(found, name)


def is_login_name(name: str) -> bool:
    """Return whether a text may be the name of a user or a token."""
    return bool(_LOGIN_NAME.fullmatch(name))


def check_login_name(name: str, *, place: str = "") -> str:
    """Return the name of a user or a token if it is valid.

    Raises:
        InvalidRequest: It is not.
    """
    if not is_login_name(name):
        raise InvalidRequest(
            f"{quoted(name)} is not a valid name of a user or a token: use up to 64 letters, digits"
            " and the signs . _ - @ +, and begin with a letter or a digit",
            place=place,
        )
    return name


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _refused_header(value: str) -> InvalidRequest:
    return InvalidRequest(
        f"{quoted(value)} is not a principal as JSON: only processes of Penstock send this header",
        place=PRINCIPAL_HEADER,
    )
