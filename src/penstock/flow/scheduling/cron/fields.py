"""Fields of a CRON expression: their names, ranges, words, and parsed values.

Owns the values. Does not own parsing (`parsing`), nor the matching days of a month (`days`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIN_YEAR: Final = 1970
# Quartz searches a hundred years ahead of the current one. A fixed bound gives the same result on
# every day. Later years are accepted, but never match.
MAX_YEAR: Final = 2199


@dataclass(frozen=True, slots=True)
class Field:
    """Field of an expression.

    Attributes:
        name: Name in errors.
        first: Lowest value.
        last: Highest value.
        words: Names of values, in order from `first`; three letters suffice.
        wraps: Whether a range may wrap around the end, such as 22-2.
        letters: Other allowed characters, for errors.
    """

    name: str
    first: int
    last: int
    words: tuple[str, ...] = ()
    wraps: bool = True
    letters: str = ", - * /"

    @property
    def allowed(self) -> str:
        """Allowed values, for errors."""
        named = f" or {self.words[0][:3]} to {self.words[-1][:3]}" if self.words else ""
        return f"{self.first} to {self.last}{named}, with {self.letters}"


_MONTHS: Final = (
    "JANUARY FEBRUARY MARCH APRIL MAY JUNE JULY AUGUST SEPTEMBER OCTOBER NOVEMBER DECEMBER"
)
_WEEKDAYS: Final = "SUNDAY MONDAY TUESDAY WEDNESDAY THURSDAY FRIDAY SATURDAY"

SECOND: Final = Field("second", 0, 59)
MINUTE: Final = Field("minute", 0, 59)
HOUR: Final = Field("hour", 0, 23)
DAY_OF_MONTH: Final = Field("day of month", 1, 31, letters=", - * / ? L W")
MONTH: Final = Field("month", 1, 12, words=tuple(_MONTHS.split()))
DAY_OF_WEEK: Final = Field(
    "day of week", 1, 7, words=tuple(_WEEKDAYS.split()), letters=", - * / ? L #"
)
YEAR: Final = Field("year", MIN_YEAR, MAX_YEAR, wraps=False)

FIELDS: Final = (SECOND, MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK, YEAR)


@dataclass(frozen=True, slots=True)
class FromLast:
    """Day that is this number of days before the last of the month, or its nearest weekday."""

    before: int = 0
    weekday: bool = False


@dataclass(frozen=True, slots=True)
class NearestWeekday:
    """Day from Monday to Friday nearest to a day of the month, within the month."""

    day: int


@dataclass(frozen=True, slots=True)
class LastInMonth:
    """Last occurrence of a day of the week in the month; 1 is Sunday."""

    weekday: int


@dataclass(frozen=True, slots=True)
class NthInMonth:
    """Nth occurrence of a day of the week in the month; 1 is Sunday."""

    weekday: int
    number: int


MonthDayRule = FromLast | NearestWeekday
WeekDayRule = LastInMonth | NthInMonth


@dataclass(frozen=True, slots=True)
class ParsedFields:
    """Parsed fields of an expression.

    Attributes:
        seconds: Values that match, in order; also for minutes, hours, months and years.
        month_days: Days of the month; empty if only rules are given, or if the days of the week
            apply.
        month_day_rules: Further days of the month.
        week_days: Days of the week, 1 is Sunday; None: the days of the month apply.
        week_day_rule: The one day of the week in the month.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    month_days: tuple[int, ...]
    month_day_rules: tuple[MonthDayRule, ...]
    months: tuple[int, ...]
    week_days: tuple[int, ...] | None
    week_day_rule: WeekDayRule | None
    years: tuple[int, ...]
