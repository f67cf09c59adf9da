"""Counts of the work of sessions, and the counters of processors under their own names.

Owns the value that is summed over sessions. Invariants: FlowFiles that were rolled back or retried
do not count as in, out or removed. Their bytes read and written do count, because they were
processed. A counter can be shown and sent as JSON: its name is Unicode text of bounded length, and
its value a whole number of 64 bits; names and values from a user's processor are checked. A
processor has at most `NAMES_MAX` counters: counts under further names are added to `OTHERS`, and
`REFUSED` counts these additions.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Final

import msgspec

from penstock.core.errors import InvalidRequest
from penstock.core.whole_numbers import is_int64, within_int64


class SessionStatistics(msgspec.Struct, frozen=True):
    """Counts of FlowFiles, and bytes of content.

    A struct, because every session creates one: a frozen dataclass with this many fields takes ten
    times as long.

    Attributes:
        in_count: Taken from queues and processed.
        in_bytes: Content size of those, as taken.
        out_count: Put into queues, including those given back.
        out_bytes: Content size of those.
        created_count: Created or cloned, and put into queues.
        removed_count: Taken, and removed or transferred to an auto-terminated relationship.
        removed_bytes: Content size of those, as taken.
        expired_count: Found expired in a queue, and removed.
        expired_bytes: Content size of those.
        missing_count: Removed because their content was missing.
        retried_count: Given back for a retry.
        read_bytes: Content bytes read.
        written_bytes: Content bytes written.
        counters: Counters of the processor, by name.
    """

    in_count: int = 0
    in_bytes: int = 0
    out_count: int = 0
    out_bytes: int = 0
    created_count: int = 0
    removed_count: int = 0
    removed_bytes: int = 0
    expired_count: int = 0
    expired_bytes: int = 0
    missing_count: int = 0
    retried_count: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    counters: Mapping[str, int] = msgspec.field(default_factory=dict)

    def __add__(self, other: SessionStatistics) -> SessionStatistics:
        """Return the sum."""
        return SessionStatistics(
            **{name: getattr(self, name) + getattr(other, name) for name in _NUMBERS},
            counters=sum_of(self.counters, other.counters),
        )

    @property
    def is_idle(self) -> bool:
        """Return whether all counts are zero."""
        return self == IDLE


_NUMBERS = tuple(n for n in SessionStatistics.__struct_fields__ if n != "counters")
IDLE = SessionStatistics()


NAMES_MAX: Final = 1_000
OTHERS: Final = "(other counters)"
"""Counter with the sum of the counts under names beyond the limit."""
REFUSED: Final = "(refused names)"
"""Counter of the additions to `OTHERS`."""
_RESERVED: Final = frozenset({OTHERS, REFUSED})
_NAME_MAX: Final = 200


class Counters:
    """Counters of one session: ``session.counters.add("rows", 12)``."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, name: str, count: int = 1) -> None:
        """Add to a counter, once the session commits.

        Args:
            name: Up to 200 characters. A processor has at most 1,000 counters; further names are
                counted together.
            count: A whole number of 64 bits, including NumPy's.

        Raises:
            InvalidRequest: The name or the count cannot be shown.
        """
        known = _name_of(name)
        number = _number_of(known, count)
        add_count(self._counts, known, number)

    def take(self) -> dict[str, int]:
        """Return the counts and reset them."""
        counts, self._counts = self._counts, {}
        return counts


def sum_of(counts: Mapping[str, int], added: Mapping[str, int]) -> Mapping[str, int]:
    """Return the sums of two sets of counters, by name."""
    if not added:
        return counts
    if not counts:
        return added
    total = dict(counts)
    for name, count in added.items():
        add_count(total, name, count)
    return total


def add_count(counts: dict[str, int], name: str, count: int) -> None:
    """Add a count under its name, or under `OTHERS` if there are too many names."""
    if name not in counts and name not in _RESERVED and len(counts) >= NAMES_MAX:
        counts[REFUSED] = within_int64(counts.get(REFUSED, 0) + 1)
        name = OTHERS
    counts[name] = within_int64(counts.get(name, 0) + count)


def _name_of(name: object) -> str:  # users' code is not checked for types
    if not isinstance(name, str):
        kind = type(name).__name__
        raise InvalidRequest(f"counters.add: the name is of type {kind}: use text (str)")
    if not 0 < len(name) <= _NAME_MAX:
        raise InvalidRequest(
            f"counters.add: the name has {len(name):,} characters: use 1 to {_NAME_MAX}"
        )
    try:
        return str.encode(name).decode()  # without the type of a subclass
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"counters.add({name!a}): the name is not Unicode text: remove surrogates"
        ) from None


def _number_of(name: str, count: object) -> int:
    number = int(count) if isinstance(count, Integral) else None
    if not is_int64(number):
        # Not the value itself: it may be of any length, and its code may raise.
        kind = type(count).__name__
        raise InvalidRequest(
            f"counters.add({name!r}): the count, of type {kind}, is not a whole number of up to 64 "
            "bits: use int"
        )
    return number
