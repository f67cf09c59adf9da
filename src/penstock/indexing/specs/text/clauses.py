"""Parts of a spec as clauses of a SQL statement, for error messages.

Owns only the text; statements are parsed elsewhere. Invariant: a clause parses to the value that it
was written from, unless it was shortened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.instants import format_time
from penstock.core.intervals import ETERNITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.intervals import Interval

_CONDITIONS_SHOWN: Final = 3


def overwrite_clause(intervals: Sequence[Interval]) -> str:
    """Return the clause of a REPLACE of these intervals; if there are many, of the first few."""
    if list(intervals) == [ETERNITY]:
        return "OVERWRITE ALL"
    shown = " OR ".join(
        f"__time >= {_timestamp(one.start_ms)} AND __time < {_timestamp(one.end_ms)}"
        for one in intervals[:_CONDITIONS_SHOWN]
    )
    more = len(intervals) - _CONDITIONS_SHOWN
    return f"OVERWRITE WHERE {shown}{f' OR … ({more} more)' if more > 0 else ''}"


def _timestamp(time_ms: int) -> str:
    text = format_time(time_ms).removesuffix("Z").removesuffix(".000").removesuffix("T00:00:00")
    return f"TIMESTAMP '{text.replace('T', ' ')}'"
