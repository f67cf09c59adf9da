"""Queries for the newest rows, `ORDER BY __time DESC LIMIT n`: the newest times are read first.

Owns the times from which such a query is tried. The rows of a file are sorted by time, and the
engine keeps the newest ones while it reads, so nearly every row would replace a kept one. Therefore
the query first gets a condition that leaves about `FIRST_ROWS` rows. If it finds enough of them,
all others are older, so this is the answer of the query without the condition. If it finds some, it
is tried once more with as many rows as seem to be needed. Otherwise its own conditions select few
rows, and it runs over all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.fastpath.compiled_query import NewestRows

FIRST_ROWS: Final = 32_768
"""Number of rows among which the newest ones are searched first; a few pages of a file."""

# How many times the rows that seem to be needed are read: they are not spread evenly.
_SPARE: Final = 2
# With a larger share, all rows are read instead.
_SHARE_MAX: Final = 0.25
# For a limit up to this, the engine finds the rows by the columns that it needs for that, and
# fetches the others afterwards. If few rows meet the conditions, that takes longer.
_LATE_ROWS: Final = 50


@dataclass(frozen=True, slots=True)
class RowGroupTimes:
    """The times of a row group in microseconds, the latest included, and its number of rows."""

    start_us: int
    end_us: int
    rows: int


@dataclass(frozen=True, slots=True)
class NewestTry:
    """A way to run a query for the newest rows.

    Attributes:
        sql: The SQL. It returns up to `rows` rows, from the first one on.
        rows: How many rows answer the query; with fewer, the next try follows.
        is_last: Whether all rows are read.
    """

    sql: str
    rows: int
    is_last: bool


class NewestTries:
    """The tries of one query, the next of which depends on what was found.

    Args:
        sql: The SQL, which ends with its limit.
        newest: The limit.
        rows_max: Maximum number of rows that are returned.
        groups: The times of the row groups in the newest files; empty: not known.
        is_every: Whether these are all row groups.
        end_us: Only rows before this time count, in microseconds; None: all.
        is_selective: Whether the conditions are known to select few rows, so that all are read.
    """

    def __init__(
        self,
        sql: str,
        newest: NewestRows,
        rows_max: int,
        groups: Sequence[RowGroupTimes],
        *,
        is_every: bool = True,
        end_us: int | None = None,
        is_selective: bool = False,
    ) -> None:
        self._sql = sql.removesuffix(newest.tail)
        self._wanted = newest.offset + min(newest.limit, rows_max)
        self._groups = _before(groups, end_us)
        self._is_every = is_every
        self._is_selective = is_selective
        self.found = 0

    def __iter__(self) -> Iterator[NewestTry]:
        """Yield the tries; `found` must be set to the number of rows of each before the next."""
        total = sum(one.rows for one in self._groups)
        if not total or (total <= FIRST_ROWS and self._is_every):
            yield self._try(None, self._wanted)
            return
        if not self._is_selective:
            yield from self._newest(total)
        yield self._try(None, max(self._wanted, _LATE_ROWS + 1))

    def _newest(self, total: int) -> Iterator[NewestTry]:
        rows = min(total, FIRST_ROWS)
        yield self._try(time_of_newest(self._groups, rows), self._wanted)
        if self.found:
            needed = rows * _SPARE * self._wanted // self.found
            if needed <= total * (_SHARE_MAX if self._is_every else 1):
                yield self._try(time_of_newest(self._groups, needed), self._wanted)

    def _try(self, since_us: int | None, limit: int) -> NewestTry:
        if since_us is None:
            return NewestTry(f"{self._sql} LIMIT {limit}", self._wanted, is_last=True)
        # Within itself, the name is that of the view.
        rows = f'SELECT * FROM temp.main.rows WHERE "__time" >= make_timestamptz({since_us})'  # noqa: S608 - a number
        sql = f"WITH rows AS ({rows}) {self._sql} LIMIT {limit}"
        return NewestTry(sql, self._wanted, is_last=False)


def time_of_newest(groups: Sequence[RowGroupTimes], rows: int) -> int:
    """Return the latest time since which there is about a given number of rows.

    Args:
        groups: Row groups, whose rows are taken to be spread evenly over their times.
        rows: The number of rows, at most that of the groups.
    """
    low = min(one.start_us for one in groups)
    high = max(one.end_us for one in groups)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(_rows_since(one, middle) for one in groups) >= rows:
            low = middle
        else:
            high = middle - 1
    return low


def _rows_since(group: RowGroupTimes, time_us: int) -> int:
    if time_us <= group.start_us:
        return group.rows
    if time_us > group.end_us:
        return 0
    length_us = group.end_us - group.start_us + 1
    return group.rows * (group.end_us - time_us + 1) // length_us


def _before(groups: Sequence[RowGroupTimes], end_us: int | None) -> list[RowGroupTimes]:
    """Return the parts of row groups before a time."""
    if end_us is None:
        return list(groups)
    found = []
    for one in groups:
        if one.end_us < end_us:
            found.append(one)
        elif one.start_us < end_us:
            kept = one.rows - _rows_since(one, end_us)
            found.append(RowGroupTimes(one.start_us, end_us - 1, kept))
    return found
