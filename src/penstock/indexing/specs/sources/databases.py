"""A database whose rows a batch task reads: Druid's input source `sql`.

Owns the allowed parameters of a connection, so that a task connects only to the server that the
spec names, with the secret in the spec, and never with rights of its own process: no files of the
worker, no sockets, no user without a password. The database itself enforces that a statement only
reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, cast, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import Field, field_validator

from penstock.core.errors import InvalidRequest
from penstock.indexing.secrets import MASK, MASK_REMEDY, URL_MASK_REMEDY
from penstock.indexing.specs.errors import did_you_mean
from penstock.indexing.specs.scalars import Flag
from penstock.indexing.specs.sources.secret_values import EnvironmentSecret, Secret
from penstock.indexing.specs.spec_base import (
    Found,
    IgnoredValue,
    SpecModel,
    as_mistake,
    mistake,
    mistakes,
    refuse_types,
)
from penstock.storage.databases.database_address import DatabaseAddress, TlsMode

_STATEMENTS_MAX: Final = 1_000
_FORM: Final = "write jdbc:postgresql://host:5432/database"
_SCHEME: Final = "jdbc:postgresql:"
_PORT: Final = 5432
_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f/\ud800-\udfff]{1,255}")
_TEXT: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}")
# A character that no text of PostgreSQL can contain.
_UNFIT: Final = re.compile(r"[\x00\ud800-\udfff]")
_PARAMETERS: Final = ("ssl", "sslmode", "currentSchema", "ApplicationName", "connectTimeout")
_CONNECT_TIMEOUT_MAX_S: Final = 600
_REFUSED_DATABASES: Final[Mapping[str, str]] = {
    "mysql": "export the tables to files, such as CSV, and read those",
}


def read_jdbc(url: str) -> DatabaseAddress:
    """Return the address in a JDBC URL.

    Raises:
        InvalidRequest: It is not a PostgreSQL URL, or has a part that is not allowed. The message
            shows only the names of its parameters.
    """
    if MASK in url:
        raise InvalidRequest(URL_MASK_REMEDY)
    if not url.startswith(f"{_SCHEME}//"):
        raise InvalidRequest(f"is not a JDBC URL for PostgreSQL with a host: {_FORM}")
    try:
        parts = urlsplit(url.removeprefix("jdbc:"))
        host, port = parts.hostname or "", _PORT if parts.port is None else parts.port
    except ValueError:  # Its text contains the alleged port, which may be a password.
        raise InvalidRequest(f"its port must be a number, and its host a name: {_FORM}") from None
    if "@" in parts.netloc:
        raise InvalidRequest(
            f"must contain no user and no password: set them in their own fields. {_FORM}"
        )
    if not _HOST.fullmatch(host) or not port:
        raise InvalidRequest(f"must name one host by its name or its address: {_FORM}")
    name = unquote(parts.path.removeprefix("/"))
    if not _NAME.fullmatch(name) or parts.fragment:
        raise InvalidRequest(f"must name a database after the host, and nothing else: {_FORM}")
    given = parse_qsl(parts.query, keep_blank_values=True)
    return _with_parameters(DatabaseAddress(host, port, name), given)


def _with_parameters(address: DatabaseAddress, given: list[tuple[str, str]]) -> DatabaseAddress:
    values = dict(given)
    for name in values:
        if name in {"user", "password"}:
            raise InvalidRequest(f"must not contain {name}: set it outside of the URL, as {name}")
        if name not in _PARAMETERS:
            hint = did_you_mean(name, list(_PARAMETERS))
            raise InvalidRequest(f"unsupported parameter {name!r:.40}{hint}; leave it out")
    if len(values) < len(given):
        raise InvalidRequest("has a parameter twice: keep one of them")
    return DatabaseAddress(
        address.host,
        address.port,
        address.name,
        _tls(values),
        _text(values, "currentSchema"),
        _text(values, "ApplicationName") or address.application,
        _seconds(values, address.connect_timeout_s),
    )


def _tls(values: Mapping[str, str]) -> TlsMode:
    mode, plain = values.get("sslmode"), values.get("ssl")
    if plain not in {None, "", "true", "false"}:
        raise InvalidRequest("the parameter 'ssl' must be true or false")
    if mode is not None:
        if mode not in get_args(TlsMode):
            known = ", ".join(get_args(TlsMode))
            raise InvalidRequest(f"the parameter 'sslmode' must be one of {known}")
        return cast("TlsMode", mode)
    # As in the JDBC driver: a request for TLS requires a server with a valid certificate.
    return "verify-full" if plain in {"", "true"} else "prefer"


def _text(values: Mapping[str, str], name: str) -> str | None:
    value = values.get(name)
    if value is not None and not _TEXT.fullmatch(value):
        raise InvalidRequest(f"the parameter {name!r} must be a text of up to 255 characters")
    return value


def _seconds(values: Mapping[str, str], default: int) -> int:
    value = values.get("connectTimeout", str(default))
    if not re.fullmatch(r"[0-9]{1,3}", value) or not 1 <= int(value) <= _CONNECT_TIMEOUT_MAX_S:
        raise InvalidRequest(
            f"the parameter 'connectTimeout' must be seconds, 1 to {_CONNECT_TIMEOUT_MAX_S}"
        )
    return int(value)


class ConnectorConfig(SpecModel):
    """Address of a database, and its user."""

    connect_uri: str = Field(alias="connectURI")
    user: Annotated[str, Field(min_length=1, max_length=255)]
    password: Secret

    unsupported: ClassVar[Mapping[str, str]] = {
        "dbcp": "a task opens one connection, without a pool: leave it out"
    }
    druid_defaults: ClassVar[Mapping[str, object]] = {"dbcp": {}}
    without_effect: ClassVar[Mapping[str, IgnoredValue]] = dict.fromkeys(
        ("createTables", "host", "port"), IgnoredValue.ANY
    )

    @field_validator("connect_uri")
    @classmethod
    def _check_uri(cls, value: str) -> str:
        with as_mistake():
            read_jdbc(value)
        return value

    @field_validator("user")
    @classmethod
    def _check_user(cls, value: str) -> str:
        if _UNFIT.search(value):
            raise mistake("must contain no zero byte, nor half of a surrogate pair")
        return value

    @field_validator("password")
    @classmethod
    def _check_password(cls, value: EnvironmentSecret | str) -> EnvironmentSecret | str:
        if value == MASK:
            raise mistake(MASK_REMEDY)
        if isinstance(value, str) and (not value or _UNFIT.search(value)):
            # Without one the driver uses those of the process, which specs must not use.
            raise mistake("must be a text that is not empty and contains no zero byte")
        return value

    @property
    def address(self) -> DatabaseAddress:
        """Its address."""
        return read_jdbc(self.connect_uri)


class PostgresDatabase(SpecModel):
    """A database of a PostgreSQL server."""

    type: Literal["postgresql"]
    connector_config: ConnectorConfig

    without_effect: ClassVar[Mapping[str, IgnoredValue]] = {"driverClassName": IgnoredValue.ANY}


class DatabaseInput(SpecModel):
    """Rows that SQL statements return, in one read-only transaction of a database."""

    type: Literal["sql"] = "sql"
    database: Annotated[PostgresDatabase, refuse_types(_REFUSED_DATABASES)]
    sqls: tuple[str, ...] = Field(min_length=1, max_length=_STATEMENTS_MAX)
    fold_case: Flag = False

    @field_validator("sqls")
    @classmethod
    def _check_sqls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        found: Found = []
        for number, sql in enumerate(value):
            if not sql.strip("; \t\r\n"):
                found.append(((number,), None, "is empty: write a SELECT"))
            elif _UNFIT.search(sql):
                text = "must contain no zero byte, nor half of a surrogate pair"
                found.append(((number,), None, text))
        if found:
            raise mistakes("sqls", found)
        return value
