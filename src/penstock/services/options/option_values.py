"""Parsers of option values: text of a variable or the command line, or a value of TOML.

Owns the types of values and how they are written, not which options exist. Each function returns
the value, or raises `InvalidRequest` with the expected form. Parsing a returned value again returns
it unchanged.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.broker.http_server.host_policy import normalized_host
from penstock.broker.topic_names import name_mistake
from penstock.core.durations import parse_duration
from penstock.core.errors import InvalidRequest
from penstock.core.network_guard import HostEntry
from penstock.core.tls_trust import TRUST
from penstock.core.whole_numbers import int64_of
from penstock.flow.user_modules import is_module_name
from penstock.spark.connect.connect_address import ConnectAddress

# In URLs: the part after a user's name, and the values of secret parameters. A password may contain
# slashes, which database drivers accept, so the pattern masks too much rather than too little.
_PASSWORD = re.compile(r"(://[^/@\s:]*:)\S*@")
_PARAMETER = re.compile(
    r"((?:password|passwd|pwd|secret|token|signature|sig|key)=)[^;&\s]+", re.IGNORECASE
)
_MEMORY = re.compile(r"[0-9]{1,9}[mg]")
_SIZE = re.compile(r"[0-9]{1,6}t|[0-9]{1,9}[mg]")
_UNITS = {"m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class HostPort:
    """Address at which a server listens; port 0 picks a free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> HostPort:
        """Read `HOST:PORT`, `[IPV6]:PORT`, `:PORT` or `PORT`.

        Raises:
            InvalidRequest: The text has another form.
        """
        host, separator, port = text.strip().rpartition(":")
        if not separator:
            host = ""
        number = int64_of(port)
        if number is None or not 0 <= number <= 65_535:
            raise InvalidRequest(
                f"invalid address {text!r}; write HOST:PORT such as 127.0.0.1:8888"
            )
        if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
            raise InvalidRequest(f"invalid address {text!r}; write IPv6 as [::1]:8888")
        return cls(host.strip("[]") or "127.0.0.1", number)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Return the URL that a client on this host uses: `https://`, if other hosts reach it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"{TRUST.scheme(host)}://{HostPort(host, self.port)}"


def without_scheme(url: str) -> str:
    """Return `HOST:PORT` of a URL that `HostPort.url` returned."""
    return url.removeprefix("https://").removeprefix("http://")


def masked(shown: str, mask: str) -> str:
    """Replace the secrets in URLs of a text by a mask."""
    return _PARAMETER.sub(rf"\g<1>{mask}", _PASSWORD.sub(rf"\g<1>{mask}@", shown))


def text(value: object) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidRequest(f"{value!r} is not a text, or is empty")
    return value.strip()


def path(value: object) -> Path:
    """Read a path; `~` is the home folder."""
    return Path(text(value)).expanduser()


def address(value: object) -> HostPort:
    """Read an address."""
    return HostPort.parse(str(value) if isinstance(value, int) else text(value))


def spark_connect(value: object) -> str:
    """Read the address of a Spark Connect server."""
    found = text(value)
    ConnectAddress.parse(found)
    return found


def memory(value: object) -> str:
    """Read a memory size, such as 2g."""
    found = text(value).lower()
    if not _MEMORY.fullmatch(found) or not int(found[:-1]):
        raise InvalidRequest(f"invalid memory size {value!r}; write 512m or 2g")
    return found


def memory_or_none(value: object) -> str:
    """Read a memory size, or the word none."""
    if text(value).lower() == "none":
        return "none"
    try:
        return memory(value)
    except InvalidRequest as error:
        raise InvalidRequest(f"{error}, or none") from None


def size_to(most: str) -> Callable[[object], str]:
    """Return a parser of sizes up to a maximum."""

    def parse(value: object) -> str:
        found = size(value)
        if not 0 < bytes_of(found) <= bytes_of(most):
            raise InvalidRequest(f"{value!r} is not a size from 1m to {most}")
        return found

    return parse


def size(value: object) -> str:
    """Read a size, such as 20g."""
    found = text(value).lower()
    if not _SIZE.fullmatch(found):
        raise InvalidRequest(f"invalid size {value!r}; write 500m, 20g or 1t")
    return found


def bytes_of(given: str) -> int:
    """Return a size that `size` returned, in bytes."""
    return int(given[:-1]) * _UNITS[given[-1]]


def duration(value: object) -> str:
    """Read a duration, such as 10s."""
    found = text(value)
    parse_duration(found)
    return found


def number(low: int, high: int) -> Callable[[object], int]:
    """Return a parser of whole numbers between two bounds, both included."""

    def parse(value: object) -> int:
        found = None if isinstance(value, bool) else int64_of(str(value).strip())
        if found is None or not low <= found <= high:
            raise InvalidRequest(f"{value!r} is not a whole number from {low} to {high}")
        return found

    return parse


def one_of(*names: str) -> Callable[[object], str]:
    """Return a parser of one of some words."""

    def parse(value: object) -> str:
        # TOML has true and false as values, not as words.
        found = str(value).lower() if isinstance(value, bool) else text(value)
        if found not in names:
            raise InvalidRequest(f"{value!r} is not one of " + ", ".join(names))
        return found

    return parse


def java_options(value: object) -> tuple[str, ...]:
    """Read options of a JVM, such as `-Dname=value -XX:+UseZGC`; quotes protect spaces."""
    try:
        parts = shlex.split(value) if isinstance(value, str) else texts(value)
    except ValueError as error:
        raise InvalidRequest(f"invalid list of JVM options {value!r}: {error}") from error
    for part in parts:
        # The JVM treats any other word as its main class or as the value of the option before it.
        if not re.match(r"-D|-X|-ea\b|-javaagent:|-agent(lib|path):|--[a-z-]+=", part):
            raise InvalidRequest(
                f"invalid JVM option {part!r}: write -Dname=value, -X… or --name=value"
            )
    return tuple(parts)


def flag(value: object) -> bool:
    """Read true or false."""
    return one_of("true", "false")(value) == "true"


def topic(value: object) -> str:
    """Read the name of a topic that is kept on disk."""
    found = text(value)
    if mistake := name_mistake(found, may_be_ephemeral=False):
        raise InvalidRequest(mistake)
    return found


def texts(value: object) -> tuple[str, ...]:
    """Read a list, or a text whose entries are separated by commas."""
    parts = value if isinstance(value, list | tuple) else text(value).split(",")
    return tuple(text(part) for part in parts)


def hosts(value: object) -> tuple[str, ...]:
    """Read host names or IP addresses, without ports; `*.NAME` matches every name below NAME."""
    found = texts(value)
    for one in found:
        try:
            normalized_host(one.removeprefix("*."))
        except InvalidRequest as error:
            raise InvalidRequest(f"{error}; *.NAME matches every name that ends in .NAME") from None
    return found


def reachable_hosts(value: object) -> tuple[str, ...]:
    """Read hosts that inputs may reach, as `texts`, in the notation of `HostEntry.parse`."""
    found = texts(value)
    for one in found:
        HostEntry.parse(one)
    return found


def paths(value: object) -> tuple[Path, ...]:
    """Read paths, as `texts`."""
    return tuple(Path(part).expanduser() for part in texts(value))


def flow_modules(value: object) -> tuple[str, ...]:
    """Read folders and names of packages, as `texts`; folders become absolute paths."""
    return tuple(
        part if is_module_name(part) else str(Path(part).expanduser().absolute())
        for part in texts(value)
    )


def mode(value: object) -> str:
    """Read the permissions of a file, in octal."""
    found = text(value)
    if not (3 <= len(found) <= 4 and set(found) <= set("01234567")):
        raise InvalidRequest(f"invalid file mode {value!r}; write three octal digits such as 660")
    return found


def emitters(value: object) -> str:
    """Read names of emitters."""
    names = texts(value)
    known = ("log", "prometheus", "http", "none")
    wrong = [name for name in names if name not in known]
    if wrong or ("none" in names and len(names) > 1) or len(set(names)) < len(names):
        raise InvalidRequest(f"{value!r} names no emitters; write some of {', '.join(known)}")
    return ",".join(names)


def emitters_by_feed(value: object) -> tuple[str, ...]:
    """Read the emitters of each feed, such as `alerts=http+log,metrics=none`."""
    parts = [one.partition("=") for one in texts(value)]
    feeds = [feed.strip() for feed, _, _ in parts]
    known = ("metrics", "alerts")
    if not set(feeds) <= set(known) or len(set(feeds)) < len(feeds):
        there = " or ".join(known)
        raise InvalidRequest(f"{value!r} must name feeds, {there}, each once: write alerts=http")
    named = [emitters(names.split("+")).replace(",", "+") for _, _, names in parts]
    return tuple(f"{feed}={names}" for feed, names in zip(feeds, named, strict=True))


def json_object(value: object) -> str:
    """Read a JSON object; a TOML table is accepted as well."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
        if isinstance(found, dict):
            return json.dumps(found)
    except (ValueError, TypeError, RecursionError):
        pass
    raise InvalidRequest(f'{value!r} is not a JSON object such as {{"priority": 60}}')
