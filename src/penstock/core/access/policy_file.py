"""The file `access.toml`: roles, the principals that have them, and issuers, edited by people.

Owns its keys and its errors. Pure: `access_folder` reads the file and keeps the rules in force if
it is invalid. An unknown key is an error, because a mistyped `deny` would allow too much.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Final

from penstock.core.access.oidc_issuer import (
    ISSUERS_MAX,
    SUBJECT_CLAIM,
    OidcIssuer,
    check_issuer_url,
)
from penstock.core.access.policy import READY_MADE_ROLES, Policy, Role
from penstock.core.access.principal import ASSIGNABLE, PrincipalKind, parse_principal
from penstock.core.access.quotas import QUOTA_KEYS, Quotas, parse_quotas
from penstock.core.access.row_rules import ColumnMask, RowFilter, check_condition, check_mask
from penstock.core.access.rules import Pattern, ResourceKind, Rule
from penstock.core.errors import InvalidRequest
from penstock.core.printable import quoted
from penstock.core.similar_names import nearest

POLICY_BYTES_MAX: Final = 4 << 20
"""Maximum size of the file; 1,000 roles take about 200 KB."""

ALWAYS_ADMIN: Final = ("token:operator", "token:shared")
"""Principals that have the role `admin` and no other, so that no rule locks the operator out."""

_ROLE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_TABLES: Final = ("roles", "principals", "oidc")
_ROLE_KEYS: Final = ("about", "allow", "deny", "row_filters", "masks", "quotas")
_ISSUER_KEYS: Final = ("issuer", "audience", "claim", "groups_claim", "groups", "ca")
_ISSUER_TEXT_MAX: Final = 500
_EXAMPLE_RULE: Final = '["read,write topic:clicks*"]'
_TOML_PLACE: Final = re.compile(r" \(at (line \d+, column \d+|end of document)\)$", re.ASCII)


def parse_policy(text: str, place: str) -> Policy:
    """Return the policy of a file.

    Args:
        text: Its content.
        place: Its path, for messages.

    Raises:
        InvalidRequest: It is not valid; the message has the place, the reason and the remedy.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(str(error), place) from None
    except RecursionError:  # narrow: restores nothing
        raise InvalidRequest(
            "its values nest too deeply: rules are lists of texts", place=place
        ) from None
    _check_keys(document, _TABLES, place, "")
    roles = _roles(_table(document.get("roles", {}), f"{place}: roles"), f"{place}: roles")
    known = {*READY_MADE_ROLES, *(role.name for role in roles)}
    table = _table(document.get("principals", {}), f"{place}: principals")
    principals = _principals(table, known, f"{place}: principals")
    issuers = _issuers(_table(document.get("oidc", {}), f"{place}: oidc"), known, f"{place}: oidc")
    _check_issuers_of(principals, issuers, f"{place}: principals")
    return Policy(roles, principals, issuers=issuers)


def check_role_name(name: str, *, place: str = "") -> str:
    """Return the name of a role if it is valid.

    Raises:
        InvalidRequest: It is not.
    """
    if not _ROLE_NAME.fullmatch(name):
        raise InvalidRequest(
            f"{quoted(name)} is not a valid name of a role: use up to 64 letters, digits and the"
            " signs . _ -, and begin with a letter or a digit",
            place=place,
        )
    return name


def check_role_exists(name: str, known: Mapping[str, object] | set[str], *, place: str) -> str:
    """Return the name of a role if it is known.

    Raises:
        InvalidRequest: It is not.
    """
    if name not in known:
        raise InvalidRequest(
            f"unknown role {quoted(name)}: define it as [roles.NAME] in access.toml, or use one of"
            f" {', '.join(READY_MADE_ROLES)}{nearest(name, known)}",
            place=place,
        )
    return name


def _roles(table: Mapping[str, object], place: str) -> list[Role]:
    roles = []
    for name, value in table.items():
        here = f"{place}.{_key(name)}"
        check_role_name(name, place=here)
        if name in READY_MADE_ROLES:
            raise InvalidRequest(
                f"the role {name} is ready-made and cannot be changed: choose another name",
                place=here,
            )
        fields = _table(value, here)
        _check_keys(fields, _ROLE_KEYS, place, name)
        about = fields.get("about", "")
        if not isinstance(about, str):
            raise InvalidRequest("must be a text", place=f"{here}.about")
        if fields.keys() <= {"about"}:
            raise InvalidRequest(f"the role has no rule: write allow = {_EXAMPLE_RULE}", place=here)
        roles.append(
            Role(
                name,
                about,
                _rules(fields.get("allow", []), f"{here}.allow"),
                _rules(fields.get("deny", []), f"{here}.deny"),
                tuple(_row_filters(fields.get("row_filters", {}), f"{here}.row_filters")),
                tuple(_masks(fields.get("masks", {}), f"{here}.masks")),
                _quotas(fields.get("quotas", {}), here),
            )
        )
    return roles


def _row_filters(value: object, place: str) -> Iterator[RowFilter]:
    for name, condition in _table(value, place).items():
        here = f"{place}.{_key(name)}"
        text = _limit_text(condition, here, """clicks = "region = 'eu'" """.strip())
        yield RowFilter(_datasources(name, here), check_condition(text, place=here))


def _masks(value: object, place: str) -> Iterator[ColumnMask]:
    for name, columns in _table(value, place).items():
        here = f"{place}.{_key(name)}"
        if not isinstance(columns, dict):
            raise InvalidRequest(
                "must be a table of columns: write [roles.NAME.masks.DATASOURCE], and below it"
                ' COLUMN = "hash"',
                place=here,
            )
        for column, mask in columns.items():
            inside = f"{here}.{_key(column)}"
            text = _limit_text(mask, inside, 'email = "hash"')
            yield ColumnMask(
                _datasources(name, here), column, check_mask(text, column, place=inside)
            )


def _quotas(value: object, place: str) -> Quotas:
    here = f"{place}.quotas"
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"must be a table, not {_shown(value)}: write [roles.NAME.quotas], and below it"
            " queries = 4",
            place=here,
        )
    _check_keys(value, QUOTA_KEYS, place, "quotas")
    return parse_quotas(value, here)


def _datasources(name: str, place: str) -> str:
    """Return the pattern of datasources' names."""
    return Pattern.parse(f"{ResourceKind.DATASOURCE}:{name}", place=place).name


def _limit_text(value: object, place: str, example: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"must be a text, such as {example}", place=place)
    return value


def _rules(value: object, place: str) -> tuple[Rule, ...]:
    texts = _texts(value, place, _EXAMPLE_RULE)
    return tuple(Rule.parse(one, place=f"{place}[{n}]") for n, one in enumerate(texts))


def _principals(
    table: Mapping[str, object], known: set[str], place: str
) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for text, value in table.items():
        here = f"{place}.{_key(text)}"
        principal = parse_principal(text, place=here)
        if principal.kind not in ASSIGNABLE:
            raise InvalidRequest(
                f"the rights of {principal} are fixed: give roles to a principal of kind"
                f" {', '.join(ASSIGNABLE)}",
                place=here,
            )
        if principal.id in ALWAYS_ADMIN:
            raise InvalidRequest(
                f"{principal} always has the role admin: remove this line", place=here
            )
        if principal.id in found:
            raise InvalidRequest(
                f"{principal} has two lines, whose texts differ only in the form of their Unicode"
                " characters: join them",
                place=here,
            )
        roles = _texts(value, here, '["publisher"]')
        found[principal.id] = tuple(
            dict.fromkeys(
                check_role_exists(one, known, place=f"{here}[{n}]") for n, one in enumerate(roles)
            )
        )
    return found


def _issuers(table: Mapping[str, object], known: set[str], place: str) -> tuple[OidcIssuer, ...]:
    if len(table) > ISSUERS_MAX:
        raise InvalidRequest(f"has {len(table)} issuers: use up to {ISSUERS_MAX}", place=place)
    found: list[OidcIssuer] = []
    for name, value in table.items():
        here = f"{place}.{_key(name)}"
        issuer = _issuer(name, _table(value, here), known, place, is_only=len(table) == 1)
        if any(one.url == issuer.url for one in found):
            raise InvalidRequest(
                f"{quoted(issuer.url)} is the issuer of two tables: join them",
                place=f"{here}.issuer",
            )
        found.append(issuer)
    return tuple(found)


def _issuer(
    name: str, fields: Mapping[str, object], known: set[str], place: str, *, is_only: bool
) -> OidcIssuer:
    here = f"{place}.{_key(name)}"
    if not _ROLE_NAME.fullmatch(name):
        raise InvalidRequest(
            f"{quoted(name)} is not a valid name of an issuer: use up to 64 letters, digits and the"
            " signs . _ -, and begin with a letter or a digit",
            place=here,
        )
    _check_keys(fields, _ISSUER_KEYS, place, name)
    groups_claim = _issuer_text(fields, "groups_claim", here, default="")
    groups = _groups(_table(fields.get("groups", {}), f"{here}.groups"), known, f"{here}.groups")
    if bool(groups_claim) != bool(groups):
        raise InvalidRequest(
            "groups_claim and groups belong together: write both, such as groups_claim = 'groups'"
            f' and, below [oidc.{name}.groups], "data-team" = ["analyst"]',
            place=here,
        )
    ca = _issuer_text(fields, "ca", here, default="")
    if ca and not ca.startswith("/"):
        raise InvalidRequest(
            f"{quoted(ca)} is not an absolute path: write the path of a PEM file from the root",
            place=f"{here}.ca",
        )
    return OidcIssuer(
        name,
        check_issuer_url(_issuer_text(fields, "issuer", here), place=f"{here}.issuer"),
        _issuer_text(fields, "audience", here),
        _issuer_text(fields, "claim", here, default=SUBJECT_CLAIM),
        groups_claim,
        groups,
        ca,
        "" if is_only else f"{name}/",
    )


def _groups(
    table: Mapping[str, object], known: set[str], place: str
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for group, value in table.items():
        here = f"{place}.{_key(group)}"
        roles = _texts(value, here, '["analyst"]')
        checked = (
            check_role_exists(one, known, place=f"{here}[{n}]") for n, one in enumerate(roles)
        )
        found.append((group, tuple(dict.fromkeys(checked))))
    return tuple(found)


def _check_issuers_of(
    principals: Mapping[str, tuple[str, ...]], issuers: tuple[OidcIssuer, ...], place: str
) -> None:
    """Check that each line about a principal of OpenID Connect can be about one.

    With a second issuer, the ids of all principals change. A line with the former id would have no
    effect, and may be one that denies.

    Raises:
        InvalidRequest: The id lacks the name of its issuer, or has one that it must not have.
    """
    kind = f"{PrincipalKind.OIDC}:"
    names = [f"{one.name}/" for one in issuers]
    for principal in principals:
        if not principal.startswith(kind) or not issuers:
            continue
        has_name = principal.removeprefix(kind).startswith(tuple(names))
        if len(issuers) > 1 and not has_name:
            raise InvalidRequest(
                f"there are several issuers, so {principal} lacks the name of one: write oidc:NAME/"
                f" before the name, with one of {', '.join(one.name for one in issuers)}",
                place=f"{place}.{_key(principal)}",
            )
        if len(issuers) == 1 and has_name:
            raise InvalidRequest(
                f"there is one issuer, so its name is not part of {principal}: remove {names[0]}",
                place=f"{place}.{_key(principal)}",
            )


def _issuer_text(
    table: Mapping[str, object], name: str, place: str, *, default: str | None = None
) -> str:
    value = table.get(name, default)
    if value is None:
        raise InvalidRequest(f"the key {name} is missing: add it", place=place)
    if not isinstance(value, str) or not value.isprintable() or len(value) > _ISSUER_TEXT_MAX:
        raise InvalidRequest(
            f"must be a text of up to {_ISSUER_TEXT_MAX} printable characters, not {_shown(value)}",
            place=f"{place}.{name}",
        )
    if not value and name in table:
        raise InvalidRequest("must not be empty", place=f"{place}.{name}")
    return value


def _table(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"must be a table, not {_shown(value)}: write [roles.NAME], [principals] or [oidc.NAME]"
            " on a line of its own",
            place=place,
        )
    return value


def _texts(value: object, place: str, example: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidRequest(
            f"must be a list of texts, not {_shown(value)}: write {example}", place=place
        )
    return value


def _check_keys(table: Mapping[str, object], known: tuple[str, ...], place: str, role: str) -> None:
    for name in table:
        if name not in known:
            inside = f".{_key(role)}" if role else ""
            raise InvalidRequest(
                f"unknown key {quoted(name)}: use {' or '.join(known)}{nearest(name, known)}",
                place=f"{place}{inside}",
            )


def _key(name: str) -> str:
    """Return a key as it is written in the file."""
    return name if _ROLE_NAME.fullmatch(name) and "." not in name else quoted(name)


def _shown(value: object) -> str:
    return "a table" if isinstance(value, dict) else quoted(str(value))


def _not_toml(reason: str, place: str) -> InvalidRequest:
    at = _TOML_PLACE.search(reason)
    line = at.group(1) if at else "an unknown line"
    return InvalidRequest(
        f"it is not valid TOML: {reason.removesuffix(at.group()) if at else reason}: compare the"
        " line with the example on the page about access",
        place=f"{place}: {line}",
    )
