"""Times that are cut: which questions about a time the start of its bucket answers, too. Pure."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from penstock.core.durations import DAY_MS
from penstock.core.intervals import Granularity

_TIME: Final = re.compile(
    r"'([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})?)?'",
    re.ASCII,
)
_DAY_LENGTH: Final = len("'2024-01-01'")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


def nests(cut: Granularity, unit: str) -> bool:
    """Tell whether each bucket of a granularity lies in one of a unit such as DAY."""
    if cut.zoned is not None or cut.given:
        return False
    coarser = Granularity.parse(unit)
    if cut.months:
        return coarser.months > 0 and coarser.months % cut.months == 0
    # Months begin at a midnight, whichever.
    length_ms = DAY_MS if coarser.months else coarser.fixed_ms
    if not cut.fixed_ms or length_ms % cut.fixed_ms:
        return False
    return (coarser.origin_ms - cut.origin_ms) % cut.fixed_ms == 0


def starts_bucket(cut: Granularity, literal: str, *, is_date: bool) -> bool:
    """Tell whether a literal is the start of a bucket.

    Args:
        cut: The granularity.
        literal: In its quotes, as it was written; without a zone it is UTC.
        is_date: Whether it may have no time of the day.
    """
    found = _TIME.fullmatch(literal)
    if found is None or (is_date and len(literal) > _DAY_LENGTH):
        return False
    day, clock, fraction, zone = found.groups()
    text = f"{day}T{clock or '00:00:00'}{(fraction or '.0').ljust(7, '0')}{zone or 'Z'}"
    try:
        since = dt.datetime.fromisoformat(text) - _EPOCH
    except (ValueError, OverflowError):
        return False
    ms, rest = divmod(since, _MILLISECOND)
    return not rest and cut.truncate(ms) == ms
