"""Quotas of roles: how much a principal may use at once or per second. Pure.

Owns their keys in `access.toml`, the rule by which the quotas of several roles combine, and the
token bucket of rates. `quota_use` has what principals use at the moment.

Rule of combination: of each quota, the smallest value of all roles of a principal counts. A quota
that no role has is not limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from penstock.core.byte_sizes import format_size, parse_size
from penstock.core.durations import parse_duration
from penstock.core.errors import InvalidRequest
from penstock.core.printable import quoted

BURST_S: Final = 10
"""Seconds over which a rate is averaged: a principal that was quiet may send this much at once."""

_COUNT_MAX: Final = 1_000_000_000
_NANO: Final = 1_000_000_000


class Quota(StrEnum):
    """The kinds of quotas, with their keys in `access.toml`."""

    QUERIES = "queries"
    QUERY_TIME = "query_time"
    QUERY_BYTES = "query_bytes"
    MESSAGES_PER_SECOND = "messages_per_second"
    BYTES_PER_SECOND = "bytes_per_second"
    TASKS = "tasks"
    CONNECTIONS = "connections"


QUOTA_KEYS: Final = tuple(map(str, Quota))
"""Keys of a table of quotas."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of a role or of a principal; None: no limit.

    Attributes:
        queries: Queries that run or wait at once.
        query_time: Longest time of one query, in milliseconds.
        query_bytes: Bytes of the files that one query may read.
        messages_per_second: Messages published in a second, averaged over `BURST_S`.
        bytes_per_second: Bytes of these messages, averaged over `BURST_S`, too.
        tasks: Batch tasks that it has submitted and that have not ended.
        connections: Connections of NSQ's protocol.
    """

    queries: int | None = None
    query_time: int | None = None
    query_bytes: int | None = None
    messages_per_second: int | None = None
    bytes_per_second: int | None = None
    tasks: int | None = None
    connections: int | None = None

    def __bool__(self) -> bool:
        return self != NO_QUOTAS

    def of(self, quota: Quota) -> int | None:
        """Return the value of one quota; None: no limit."""
        value: int | None = getattr(self, quota)
        return value

    def shown(self) -> dict[str, str]:
        """Return the quotas that limit something, as people write them, by their keys."""
        values = {quota: self.of(quota) for quota in Quota}
        return {
            str(quota): shown_value(quota, value)
            for quota, value in values.items()
            if value is not None
        }


NO_QUOTAS: Final = Quotas()
"""Nothing is limited."""


def smallest(quotas: Iterable[Quotas]) -> Quotas:
    """Return the quotas of a principal whose roles have these quotas."""
    found: dict[str, int] = {}
    for one in quotas:
        for quota in Quota:
            value = one.of(quota)
            if value is not None:
                found[quota] = min(value, found.get(quota, value))
    return Quotas(**found) if found else NO_QUOTAS


def shown_value(quota: Quota, value: int) -> str:
    """Return the value of a quota as people write it."""
    if quota is Quota.QUERY_TIME:
        return f"{value / 1000:g} s"
    if quota in {Quota.QUERY_BYTES, Quota.BYTES_PER_SECOND}:
        return format_size(value)
    return f"{value:,}"


def parse_quotas(table: Mapping[str, object], place: str) -> Quotas:
    """Return the quotas of a table whose keys are known.

    Args:
        table: Values by `QUOTA_KEYS`.
        place: Its place, for messages.

    Raises:
        InvalidRequest: A value is not valid; with its place, the reason and the remedy.
    """
    found = {name: _PARSERS[Quota(name)](value, f"{place}.{name}") for name, value in table.items()}
    return Quotas(**found) if found else NO_QUOTAS


def _count(value: object, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _COUNT_MAX:
        raise InvalidRequest(
            f"{quoted(str(value))} is not valid: write a whole number from 1 to {_COUNT_MAX:,};"
            " to allow nothing, write a rule that denies it",
            place=place,
        )
    return value


def _duration(value: object, place: str) -> int:
    # Without a unit it would mean milliseconds, and most people would mean seconds.
    if isinstance(value, str) and not value.strip().isdigit():
        return _parsed(parse_duration, value, "30 s", place)
    raise InvalidRequest(
        f"{quoted(str(value))} has no unit: write a text such as '30 s', '5m' or 'PT1H'",
        place=place,
    )


def _size(value: object, place: str) -> int:
    if isinstance(value, str) and not value.strip().isdigit():
        return _parsed(parse_size, value, "1 GiB", place)
    raise InvalidRequest(
        f"{quoted(str(value))} has no unit: write a text such as '512 KiB' or '1 GiB'",
        place=place,
    )


def _parsed(parse: Callable[[str], int], text: str, example: str, place: str) -> int:
    try:
        value = parse(text)
    except InvalidRequest as error:  # narrow: translates
        raise InvalidRequest(str(error), place=place) from None
    if not value:
        raise InvalidRequest(
            f"{quoted(text)} is zero: write more, such as '{example}'; to allow nothing, write a"
            " rule that denies it",
            place=place,
        )
    return value


_PARSERS: Final[Mapping[Quota, Callable[[object, str], int]]] = MappingProxyType(
    {
        Quota.QUERIES: _count,
        Quota.QUERY_TIME: _duration,
        Quota.QUERY_BYTES: _size,
        Quota.MESSAGES_PER_SECOND: _count,
        Quota.BYTES_PER_SECOND: _size,
        Quota.TASKS: _count,
        Quota.CONNECTIONS: _count,
    }
)


class TokenBucket:
    """Bucket of a rate: it gains `rate` tokens per second, and holds those of `BURST_S` seconds.

    It is full at first. Whole numbers of billionths of tokens and of nanoseconds make it exact, up
    to one nanosecond, to which waits are rounded up.
    Invariant: in any time of t seconds, at most `rate * (t + BURST_S)` tokens are used, if each
    taker waits for `wait_ns` before it uses them. If it uses more than `burst` at once, this holds
    for any time that begins before its wait.

    Args:
        rate: Tokens per second, at least 1.
        now_ns: The time, in nanoseconds from an arbitrary start.
    """

    __slots__ = ("_at_ns", "_level", "rate")

    def __init__(self, rate: int, now_ns: int) -> None:
        self.rate: Final = rate
        self._level = self.burst * _NANO
        self._at_ns = now_ns

    @property
    def burst(self) -> int:
        """Most tokens that it holds."""
        return self.rate * BURST_S

    def wait_ns(self, amount: int, now_ns: int) -> int:
        """Return after how many nanoseconds it has gained an amount; 0: it has it now.

        It ends above 0 for an amount larger than `burst`, too, which a full bucket never holds:
        callers that cannot wait compare both.
        """
        passed_ns = now_ns - self._at_ns
        if passed_ns > 0:
            self._level = min(self.burst * _NANO, self._level + passed_ns * self.rate)
            self._at_ns = now_ns
        missing = amount * _NANO - self._level
        return -(-missing // self.rate) if missing > 0 else 0

    def take(self, amount: int) -> None:
        """Take an amount, after `wait_ns`; the next takers wait for the missing rest."""
        self._level -= amount * _NANO

    def is_full(self, now_ns: int) -> bool:
        """Return whether it holds `burst`, so that a new bucket would be the same."""
        return not self.wait_ns(self.burst, now_ns)
