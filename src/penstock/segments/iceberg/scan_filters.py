"""Filters of Iceberg scans, for the choice of files: which files may have matching rows. Pure.

Owns the reading of filters in the JSON form of the Iceberg REST catalog specification
(`Expression`). Engines apply the whole filter to the rows, so a condition that is not understood
keeps all files: a list, a nested field, a literal of another type than the column, a negation.

Names of columns in files may differ from those of the table only in case, as in the name mapping
of `table_schema`. A file that lacks a column has null in it, which no comparison matches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Final

from penstock.core.intervals import ETERNITY, Interval
from penstock.segments.iceberg.column_bounds import ColumnBounds, FileBounds, Value

DEPTH_MAX: Final = 100
"""Conditions that are nested deeper keep all files."""

_EMPTY: Final = Interval(ETERNITY.start_ms, ETERNITY.start_ms)
_US: Final = 1_000
"""Microseconds in a millisecond."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_TEXT: Final = len("2024-01-01")
_FRACTION_DIGITS_MAX: Final = 6
_ONLY_NULL: Final = ColumnBounds("", None, None, 0, 0)
_FLOATS: Final = frozenset({"float", "double"})


class ScanFilter:
    """The filter of a scan of a table.

    Args:
        condition: The filter as the client sent it.
        columns: Names of the columns of the table.
        time_column: Name of the column whose bounds are the interval of a file.
        is_case_sensitive: Whether the filter has the exact names of columns.

    Attributes:
        time: An interval with every instant at which rows may match.
        columns: The other columns that it compares; case does not count.
    """

    def __init__(
        self,
        condition: object,
        columns: Collection[str],
        time_column: str,
        *,
        is_case_sensitive: bool = True,
    ) -> None:
        self._condition = condition
        self._time_column = time_column
        self._is_case_sensitive = is_case_sensitive
        self._names = frozenset(columns)
        self._by_case: defaultdict[str, list[str]] = defaultdict(list)
        for name in self._names:
            self._by_case[name.lower()].append(name)
        self.time = time_of(condition, time_column)
        self.columns = frozenset(_terms(condition)) - {time_column}

    def may_match(self, file: FileBounds, interval: Interval) -> bool:
        """Return whether a file may have matching rows.

        Args:
            file: The bounds of its columns.
            interval: The interval of its rows.
        """
        times = (interval.start_ms * _US, interval.end_ms * _US - 1)

        def bounds_of(term: object) -> ColumnBounds | None:
            column = self._column(term)
            if column == self._time_column:
                return ColumnBounds("timestamptz", *times, 1, 0)
            return None if column is None else self._bounds(file, column)

        return _may_match(self._condition, bounds_of, 0)

    def _column(self, term: object) -> str | None:
        """Return the column of the table that a term means; None: it is none, or unclear."""
        if not isinstance(term, str):
            return None
        if self._is_case_sensitive:
            return term if term in self._names else None
        found = self._by_case.get(term.lower(), ())
        return found[0] if len(found) == 1 else None

    def _bounds(self, file: FileBounds, column: str) -> ColumnBounds | None:
        """Return the bounds of a column of the table in a file; None: they are unknown."""
        of_same_case = self._by_case[column.lower()]
        variants = file.names.variants(column)
        if len(variants) > 1 or (variants and len(of_same_case) > 1 and variants[0] != column):
            return None  # Engines differ in which of the columns they read.
        return file.columns.get(variants[0]) if variants else _ONLY_NULL


def time_of(condition: object, time_column: str, *, depth: int = 0) -> Interval:
    """Return an interval with every instant at which rows may fulfil a condition."""
    if condition is False or (isinstance(condition, Mapping) and condition.get("type") == "false"):
        return _EMPTY
    if not isinstance(condition, Mapping) or depth > DEPTH_MAX:
        return ETERNITY
    kind = condition.get("type")
    if not isinstance(kind, str):
        return ETERNITY
    if kind in {"and", "or"}:
        sides = [
            time_of(condition.get(side), time_column, depth=depth + 1) for side in ("left", "right")
        ]
        return _both(*sides) if kind == "and" else _either(*sides)
    if condition.get("term") != time_column:
        return ETERNITY
    if kind == "in":
        values = condition.get("values")
        found = [_instant_us(value) for value in values] if isinstance(values, list) else [None]
        times = [one for one in found if one is not None]
        if not times or len(times) < len(found):
            return ETERNITY
        return _interval(min(times), max(times) + 1)
    us = _instant_us(condition.get("value"))
    if us is None:
        return ETERNITY
    if kind == "eq":
        return _interval(us, us + 1)
    if kind in {"lt", "lt-eq"}:
        return _interval(ETERNITY.start_ms * _US, us + (kind == "lt-eq"))
    if kind in {"gt", "gt-eq"}:
        return _interval(us + (kind == "gt"), ETERNITY.end_ms * _US)
    return ETERNITY


def _terms(condition: object, depth: int = 0) -> Iterator[str]:
    """Yield the columns that a condition compares, as far as it is understood."""
    if not isinstance(condition, Mapping) or depth > DEPTH_MAX:
        return
    if condition.get("type") in ("and", "or"):
        for side in ("left", "right"):
            yield from _terms(condition.get(side), depth + 1)
    elif isinstance(term := condition.get("term"), str):
        yield term


_BoundsOf = Callable[[object], ColumnBounds | None]


def _may_match(condition: object, bounds_of: _BoundsOf, depth: int) -> bool:
    if condition is False:
        return False
    if not isinstance(condition, Mapping) or depth > DEPTH_MAX:
        return True
    kind = condition.get("type")
    if kind == "false":
        return False
    if kind in ("and", "or"):
        sides = (
            _may_match(condition.get(side), bounds_of, depth + 1) for side in ("left", "right")
        )
        return all(sides) if kind == "and" else any(sides)
    bounds = bounds_of(condition.get("term"))
    if bounds is None or not isinstance(kind, str):
        return True
    if kind == "is-null":
        return bounds is _ONLY_NULL or bounds.nulls != 0
    if kind not in _COMPARED:
        return True
    if bounds.is_only_null:
        return False
    if kind == "in":
        values = condition.get("values")
        if not isinstance(values, list):
            return True
        return any(_may_equal(bounds, _literal(bounds.kind, one)) for one in values)
    value = _literal(bounds.kind, condition.get("value"))
    return value is None or _compared(kind, bounds, value)


_COMPARED: Final = frozenset(
    {"eq", "in", "lt", "lt-eq", "gt", "gt-eq", "starts-with", "not-null", "is-nan"}
)


def _compared(kind: str, bounds: ColumnBounds, value: int | float | str) -> bool:  # noqa: PYI041
    low, high = bounds.low, bounds.high
    if kind == "eq":
        return _may_equal(bounds, value)
    if kind == "lt":
        return low is None or _is_less(low, value)
    if kind == "lt-eq":
        return low is None or not _is_less(value, low)
    if kind == "gt":
        return high is None or _is_less(value, high)
    if kind == "gt-eq":
        return high is None or not _is_less(high, value)
    if kind == "starts-with" and isinstance(value, str):
        is_below = isinstance(high, str) and high < value
        is_above = isinstance(low, str) and low > value and not low.startswith(value)
        return not (is_below or is_above)
    return True


def _may_equal(bounds: ColumnBounds, value: int | float | str | None) -> bool:  # noqa: PYI041
    if value is None:
        return True
    is_below = bounds.low is not None and _is_less(value, bounds.low)
    is_above = bounds.high is not None and _is_less(bounds.high, value)
    return not (is_below or is_above)


def _is_less(one: int | float | str, other: int | float | str) -> bool:  # noqa: PYI041
    """Compare two values of one kind."""
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and one < other
    return one < other


def _literal(kind: str, value: object) -> Value:
    """Return a literal as a value of a column; None: it is of another type."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if kind == "long":
        return value if is_whole else None  # type: ignore[return-value]
    if kind in _FLOATS:
        if not is_whole and not isinstance(value, float):
            return None
        try:
            return float(value)  # type: ignore[arg-type]
        except OverflowError:
            return None
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if kind == "string":
        return value if isinstance(value, str) else None
    if kind == "date":
        return _days(value)
    if kind == "timestamp" and isinstance(value, str) and _has_zone(value):
        return None
    return _instant_us(value)


def _has_zone(value: str) -> bool:
    return value.endswith("Z") or "+" in value or "-" in value[_DAY_TEXT:]


def _days(value: object) -> int | None:
    if not isinstance(value, str) or len(value) != _DAY_TEXT:
        return None
    try:
        return (date.fromisoformat(value) - _EPOCH.date()).days
    except ValueError:
        return None


def _instant_us(value: object) -> int | None:
    """Return microseconds since 1970 of a time: ISO 8601 with a zone, or such a number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if not isinstance(value, str):
        return None
    # More digits would be cut, and the time be less than the client's.
    fraction = value.partition(".")[2]
    digits = len(fraction) - len(fraction.lstrip("0123456789"))
    if digits > _FRACTION_DIGITS_MAX:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH
    return since // timedelta(microseconds=1)


def _interval(start_us: int, end_us: int) -> Interval:
    """Return the milliseconds that have an instant of an interval in microseconds."""
    start_ms, end_ms = start_us // _US, -(-end_us // _US)
    start_ms = min(max(start_ms, ETERNITY.start_ms), ETERNITY.end_ms)
    return Interval(start_ms, min(max(end_ms, start_ms), ETERNITY.end_ms))


def _both(one: Interval, other: Interval) -> Interval:
    start_ms = max(one.start_ms, other.start_ms)
    return Interval(start_ms, max(start_ms, min(one.end_ms, other.end_ms)))


def _either(one: Interval, other: Interval) -> Interval:
    if one.is_empty:
        return other
    if other.is_empty:
        return one
    return Interval(min(one.start_ms, other.start_ms), max(one.end_ms, other.end_ms))
