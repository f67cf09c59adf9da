"""Between the wall clock of a zone and UTC, with the hours that are skipped or come twice.

Owns the arithmetic around one shift of a zone's clock. Does not own which of those times fire:
`expression` does. Wall times are seconds since 1970-01-01 00:00:00 as the clock shows them;
instants are UTC seconds since then.
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
        InvalidRequest: There is none of that name.
    """
    if name.upper() in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidRequest(
            f"{name!r} is no time zone: write one such as Europe/Berlin or UTC", place="zone"
        ) from None


class ZoneClock:
    """The wall clock of a zone.

    Attributes:
        fixed_s: By how much it is ahead of UTC, in seconds, if it never shifts; None: it may.
    """

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._steady: dict[int, int | None] = {}
        offset = zone.utcoffset(None)
        self.fixed_s: Final = None if offset is None else offset // _SECOND

    def steady_s(self, instant_s: int) -> int | None:
        """Return the offset at an instant if the clock is not shifted around it; else None.

        From a cache, as most times are far from a shift.
        """
        span = instant_s >> _SPAN_BITS
        try:
            return self._steady[span]
        except KeyError:
            if len(self._steady) >= _SPANS_KEPT:
                self._steady.clear()
            # No zone shifts there and back again within days. One day more on both sides: the wall
            # time is not that of the span.
            before = self.offset_s((span << _SPAN_BITS) - _DAY_S)
            after = self.offset_s((span + 1 << _SPAN_BITS) + _DAY_S)
            self._steady[span] = steady = before if before == after else None
            return steady

    def offset_s(self, instant_s: int) -> int:
        """Return by how much the wall clock is ahead of UTC at an instant."""
        moment = (_EPOCH_UTC + timedelta(seconds=instant_s)).astimezone(self._zone)
        return _seconds(moment)

    def instants(self, wall_s: int) -> tuple[int, int]:
        """Return when the wall clock shows a time: the first and the second time.

        Equal: it does so once. First before second: it does so twice. First after second: never,
        as the clock jumps over it.
        """
        moment = (_EPOCH + timedelta(seconds=wall_s)).replace(tzinfo=self._zone)
        return wall_s - _seconds(moment), wall_s - _seconds(moment.replace(fold=1))

    def shift(self, first_s: int, second_s: int) -> tuple[int, int]:
        """Return the wall times just before and at the shift between two instants of `instants`.

        Of an hour that comes twice: its end and its begin. Of one that is skipped: its begin and
        its end.
        """
        low, high = sorted((first_s, second_s))
        before = self.offset_s(low)
        # The first instant with another offset: there is one shift between the two.
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
