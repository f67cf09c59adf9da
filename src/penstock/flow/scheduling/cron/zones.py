"""Conversion between the wall clock of a zone and UTC, with skipped and repeated hours.

Owns the arithmetic around one shift of a zone's clock. Does not own which of those times fire
(`expression`). Wall times are seconds since 1970-01-01 00:00:00 on the wall clock; instants are UTC
seconds since then.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.core.errors import InvalidRequest

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - of the wall clock
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_DAY_S: Final = 86_400
_SPAN_BITS: Final = 19  # six days
_SPANS_KEPT: Final = 1_024


def zone_of(name: str) -> tzinfo:
    """Return a zone by its name, such as ``Europe/Berlin``.

    Raises:
        InvalidRequest: No zone has this name.
    """
    if name.upper() in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidRequest(
            f"unknown time zone {name!r}: write one such as Europe/Berlin or UTC", place="zone"
        ) from None


class ZoneClock:
    """Wall clock of a zone.

    Attributes:
        fixed_s: Its constant offset from UTC, in seconds; None if it may shift.
    """

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._steady: dict[int, int | None] = {}
        offset = zone.utcoffset(None)
        self.fixed_s: Final = None if offset is None else offset // _SECOND

    def steady_s(self, instant_s: int) -> int | None:
        """Return the offset at an instant if the clock does not shift near it; else None.

        The result is cached, because most times are far from a shift.
        """
        span = instant_s >> _SPAN_BITS
        try:
            return self._steady[span]
        except KeyError:
            if len(self._steady) >= _SPANS_KEPT:
                self._steady.clear()
            # No zone shifts twice within days. The span is extended by one day on both sides,
            # because the wall time differs from UTC.
            before = self.offset_s((span << _SPAN_BITS) - _DAY_S)
            after = self.offset_s((span + 1 << _SPAN_BITS) + _DAY_S)
            self._steady[span] = steady = before if before == after else None
            return steady

    def offset_s(self, instant_s: int) -> int:
        """Return the offset of the wall clock from UTC at an instant."""
        moment = (_EPOCH_UTC + timedelta(seconds=instant_s)).astimezone(self._zone)
        return _seconds(moment)

    def instants(self, wall_s: int) -> tuple[int, int]:
        """Return the first and the second instant at which the wall clock shows a time.

        Equal: it shows the time once. First before second: it shows the time twice. First after
        second: it skips the time.
        """
        moment = (_EPOCH + timedelta(seconds=wall_s)).replace(tzinfo=self._zone)
        return wall_s - _seconds(moment), wall_s - _seconds(moment.replace(fold=1))

    def shift(self, first_s: int, second_s: int) -> tuple[int, int]:
        """Return the wall times just before and at the shift between two instants of `instants`.

        For a repeated hour: its end and its start. For a skipped hour: its start and its end.
        """
        low, high = sorted((first_s, second_s))
        before = self.offset_s(low)
        # The first instant with another offset: one shift lies between the two.
        while high - low > 1:
            middle = (low + high) // 2
            if self.offset_s(middle) == before:
                low = middle
            else:
                high = middle
        return high + before, high + self.offset_s(high)


def _seconds(moment: datetime) -> int:
    offset = moment.utcoffset()
    assert offset is not None
    return offset // _SECOND
