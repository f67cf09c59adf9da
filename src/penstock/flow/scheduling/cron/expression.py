"""CRON expression with its time zone, and its firing times.

Owns the rule for the hours of a zone that are skipped or repeated:

- A time that the wall clock skips does not fire: a daily schedule at 02:30 does not fire on that
  day.
- In repeated hours, an expression for every hour (the hour field is ``*`` or equivalent) follows
  real time: a half-hourly schedule stays half-hourly. An expression for certain hours fires once
  for each wall clock time, at its first occurrence: a daily report at 01:30 is made once, at the
  earliest moment that is 01:30.

Quartz fires only at the second occurrence, which leaves a gap in schedules of every few minutes.
Spring fires at both, which runs daily schedules twice.
"""

from __future__ import annotations

from datetime import date, tzinfo
from typing import Final

from penstock.flow.scheduling.cron.calendar import DAY_S, CronCalendar, ZoneClock, zone_of
from penstock.flow.scheduling.cron.cron_parser import MAX_YEAR, ParsedFields, parse

_MS: Final = 1000
_HOURS: Final = 24
# One day more than the years of expressions: offsets of zones extend beyond them.
_BEGIN_S: Final = -DAY_S
_END_S: Final = (date(MAX_YEAR + 1, 1, 1) - date(1970, 1, 1)).days * DAY_S + DAY_S


class CronExpression:
    """Firing times by the wall clock of a zone. Thread-safe; equal if text and zone are equal.

    Attributes:
        text: The expression as written.
        zone: Time zone of the wall clock.
        fields: Parsed fields.
    """

    def __init__(self, text: str, fields: ParsedFields, zone: tzinfo) -> None:
        self.text: Final = text
        self.zone: Final = zone
        self.fields: Final = fields
        self._calendar = CronCalendar(fields)
        self._clock = ZoneClock(zone)
        self._fixed_s = self._clock.fixed_s
        self._every_hour = len(fields.hours) == _HOURS

    @classmethod
    def parse(cls, text: str, zone: tzinfo | str = "UTC") -> CronExpression:
        """Parse an expression.

        Args:
            text: Second, minute, hour, day of month, month, day of week and, optionally, year.
            zone: Time zone of the wall clock.

        Raises:
            CronError: The expression is invalid; the message shows the position.
            InvalidRequest: The zone is unknown.
        """
        return cls(text, parse(text), zone_of(zone) if isinstance(zone, str) else zone)

    def next(self, after_ms: int) -> int | None:
        """Return the first firing time after a time, both epoch ms; None if there is none.

        Firing times are whole seconds.
        """
        from_s = max(after_ms // _MS + 1, _BEGIN_S)
        if from_s > _END_S:
            return None
        found_s = self._first_from(from_s)
        return None if found_s is None else found_s * _MS

    def next_times(self, after_ms: int, count: int) -> list[int]:
        """Return up to `count` firing times after a time, epoch ms."""
        times: list[int] = []
        while len(times) < count:
            at_ms = self.next(times[-1] if times else after_ms)
            if at_ms is None:
                break
            times.append(at_ms)
        return times

    def _first_from(self, from_s: int) -> int | None:
        if self._fixed_s is not None:
            wall_s = self._calendar.at_or_after(from_s + self._fixed_s)
            return None if wall_s is None else wall_s - self._fixed_s
        steady_s = self._clock.steady_s(from_s)
        if steady_s is not None:
            wall_s = self._calendar.at_or_after(from_s + steady_s)
            if wall_s is None or self._clock.steady_s(wall_s - steady_s) == steady_s:
                return None if wall_s is None else wall_s - steady_s
        return self._first_near_shift(from_s)

    def _first_near_shift(self, from_s: int) -> int | None:
        start_s = from_s + self._clock.offset_s(from_s)
        wall_s = self._calendar.at_or_after(start_s)
        if self._every_hour and wall_s != start_s:
            again_s = self._in_second_coming(start_s, from_s, wall_s)
            if again_s is not None:
                return again_s
        while wall_s is not None:
            first_s, second_s = self._clock.instants(wall_s)
            if first_s == second_s:
                return first_s
            before, at = self._clock.shift(first_s, second_s)
            if first_s > second_s:  # skipped: continue after the skipped hour
                wall_s = self._calendar.at_or_after(at)
            elif first_s >= from_s:
                return first_s
            elif self._every_hour:
                return second_s
            else:  # fired at its first occurrence: continue after the repeated hour
                wall_s = self._calendar.at_or_after(before)
        return None

    def _in_second_coming(self, start_s: int, from_s: int, wall_s: int | None) -> int | None:
        """Return the first time in the second occurrence of a repeated hour.

        Used when the first occurrence has no further times. None: there is none, or the hour is not
        repeated.
        """
        first_s, second_s = self._clock.instants(start_s)
        if not first_s < second_s or first_s != from_s:
            return None
        end, begin = self._clock.shift(first_s, second_s)
        if wall_s is not None and wall_s < end:
            return None
        again_s = self._calendar.at_or_after(begin)
        if again_s is None or again_s >= end:
            return None
        return self._clock.instants(again_s)[1]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CronExpression):
            return NotImplemented
        return self.fields == other.fields and str(self.zone) == str(other.zone)

    def __hash__(self) -> int:
        return hash((self.fields, str(self.zone)))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<CronExpression {self.text} in {self.zone}>"
