"""Parser for Quartz CRON expressions.

`parse` owns the grammar and the errors with their positions. `CronField` lists the fields with
their ranges and names, `ParsedFields` holds the values, and `CronError` shows the expression
with a mark under the error. Does not own which days of a month the values match (`calendar`).

Where a newer release of Quartz applies or refuses a part that an older one ignores silently, the
parser follows the newer one: ``L,15`` and several ``W`` in a list all count, and text after the
year is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator


class CronError(InvalidRequest):
    """Invalid CRON expression; the message shows it with a mark under the error.

    Args:
        text: The expression.
        start: Start of the invalid part, in characters.
        length: Length of that part, in characters; at least one mark is shown.
        problem: Error and remedy.
    """

    def __init__(self, text: str, start: int, length: int, problem: str) -> None:
        shown = "".join(character if character.isprintable() else " " for character in text)
        super().__init__(f"{problem}\n    {shown}\n    {' ' * start}{'^' * max(1, length)}")
        self.text = text
        self.start = start
        self.length = max(1, length)
        self.problem = problem


MIN_YEAR: Final = 1970
# Quartz searches a hundred years ahead of the current one. A fixed bound gives the same result on
# every day. Later years are accepted, but never match.
MAX_YEAR: Final = 2199


@dataclass(frozen=True, slots=True)
class CronField:
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

SECOND: Final = CronField("second", 0, 59)
MINUTE: Final = CronField("minute", 0, 59)
HOUR: Final = CronField("hour", 0, 23)
DAY_OF_MONTH: Final = CronField("day of month", 1, 31, letters=", - * / ? L W")
MONTH: Final = CronField("month", 1, 12, words=tuple(_MONTHS.split()))
DAY_OF_WEEK: Final = CronField(
    "day of week", 1, 7, words=tuple(_WEEKDAYS.split()), letters=", - * / ? L #"
)
YEAR: Final = CronField("year", MIN_YEAR, MAX_YEAR, wraps=False)

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
        seconds: Values that match, in order; the same for minutes, hours, months and years.
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


_FIELDS_MIN: Final = 6
_TEXT_MAX: Final = 2_000
_WORD_LETTERS: Final = 3
_MAX_NTH: Final = 5
_MAX_BEFORE_LAST: Final = 30
_SATURDAY: Final = 7

_PLAIN: Final = re.compile(
    r"(?P<first>\*|[0-9]+|[A-Z]+)?(?:-(?P<last>[0-9]+|[A-Z]+))?(?P<slash>/(?P<step>[0-9]+)?)?"
)
_FROM_LAST: Final = re.compile(r"L(?:-(?P<before>[0-9]+))?(?P<weekday>W)?")
_NEAREST: Final = re.compile(r"(?P<day>[0-9]+)W")
_LAST_IN_MONTH: Final = re.compile(r"(?P<weekday>[0-9]+|[A-Z]{3,}?)L")
_NTH_IN_MONTH: Final = re.compile(r"(?P<weekday>[0-9]+|[A-Z]+)#(?P<number>[0-9]*)")


@dataclass(frozen=True, slots=True)
class _Part:
    """Part of the expression: text in upper case, and its position."""

    whole: str
    text: str
    start: int

    def error(self, problem: str) -> CronError:
        return CronError(self.whole, self.start, len(self.text), problem)

    def items(self) -> Iterator[_Part]:
        at = self.start
        for text in self.text.split(","):
            yield _Part(self.whole, text, at)
            at += len(text) + 1

    def group(self, match: re.Match[str], name: str) -> _Part:
        return _Part(self.whole, match[name], self.start + match.start(name))


def parse(text: str) -> ParsedFields:
    """Parse an expression.

    Raises:
        CronError: The expression is invalid; the message shows the position.
    """
    parts = _split(text)
    day, weekday = parts[3], parts[5]
    if day.text == "?" == weekday.text:
        raise weekday.error(
            "day of month and day of week are both ?: write * for the one that applies"
        )
    if day.text != "?" != weekday.text:
        raise (day if weekday.text != "*" == day.text else weekday).error(
            "day of month and day of week are both given: write ? for the one that does not apply"
        )
    days, day_rules = ((), ()) if day.text == "?" else _days_of_month(day)
    weekdays, weekday_rule = (None, None) if weekday.text == "?" else _days_of_week(weekday)
    return ParsedFields(
        seconds=_values(SECOND, parts[0]),
        minutes=_values(MINUTE, parts[1]),
        hours=_values(HOUR, parts[2]),
        month_days=days,
        month_day_rules=day_rules,
        months=_values(MONTH, parts[4]),
        week_days=weekdays,
        week_day_rule=weekday_rule,
        years=_values(YEAR, parts[6]) if len(parts) > _FIELDS_MIN else _whole(YEAR),
    )


def _split(text: str) -> list[_Part]:
    if len(text) > _TEXT_MAX:
        raise CronError(text[:60], 60, 1, f"the expression is longer than {_TEXT_MAX} characters")
    if not text.isascii():
        at = next(index for index, character in enumerate(text) if not character.isascii())
        raise CronError(text, at, 1, "no field allows this character")
    parts = [_Part(text, match[0].upper(), match.start()) for match in re.finditer(r"\S+", text)]
    names = " ".join(field.name.replace(" ", "-") for field in FIELDS[:-1])
    if len(parts) < _FIELDS_MIN:
        if len(parts) == 1 and parts[0].text.startswith("@"):
            raise parts[0].error(
                "macros are not supported: write out the fields, such as 0 0 0 * * ? for daily"
            )
        hint = (
            "; for a line of a Unix crontab, add a field for the second in front, and ? for one "
            "of the days"
            if len(parts) == _FIELDS_MIN - 1
            else ""
        )
        raise CronError(
            text,
            len(text.rstrip()),
            1,
            f"{len(parts)} fields are too few: write {names} [year]{hint}",
        )
    if len(parts) > len(FIELDS):
        raise parts[len(FIELDS)].error(
            f"nothing may follow the year: the fields are {names} [year]"
        )
    return parts


def _values(field: CronField, part: _Part) -> tuple[int, ...]:
    found: set[int] = set()
    for item in part.items():
        found |= _plain(field, item)
    return tuple(sorted(found))


def _whole(field: CronField) -> tuple[int, ...]:
    return tuple(range(field.first, field.last + 1))


def _plain(field: CronField, item: _Part) -> set[int]:
    """Parse a value, a range or steps."""
    if item.text == "?":
        raise item.error(
            f"? stands for a day field that does not apply: {field.name} takes {field.allowed}"
        )
    match = _PLAIN.fullmatch(item.text)
    if match is None or not item.text:
        raise item.error(f"{field.name} takes {field.allowed}")
    step = _step(field, item, match) if match["slash"] else None
    if match["first"] is None or match["first"] == "*":
        if match["last"]:
            raise item.error(f"a range must begin with a value: {field.name} takes {field.allowed}")
        if step == 0:
            raise item.group(match, "step").error("a step must be 1 or more")
        return set(range(field.first, field.last + 1, step or 1))
    first = _value(field, item.group(match, "first"))
    if match["last"]:
        last = _value(field, item.group(match, "last"))
        named = not (match["first"].isdecimal() and match["last"].isdecimal())
        return _range(field, item, (first, last, step), named=named)
    # A step of 0 means only the value, and so does a name with steps. Quartz does the same, so
    # flows that were written for it fire as before.
    if not step or not match["first"].isdecimal():
        return {first}
    return set(range(first, field.last + 1, step))


def _range(
    field: CronField, item: _Part, bounds: tuple[int, int, int | None], *, named: bool
) -> set[int]:
    first, last, step = bounds
    if step == 0:
        raise item.error("a step must be 1 or more")
    if step is not None and named:
        raise item.error(f"a range of names cannot have a step: write {first}-{last}/{step}")
    if first <= last:
        return set(range(first, last + 1, step or 1))
    if not field.wraps:
        raise item.error(f"{first} is after {last}: a range of {field.name}s must ascend")
    span = field.last - field.first + 1
    around = range(first, last + span + 1, step or 1)
    return {(value - field.first) % span + field.first for value in around}


def _step(field: CronField, item: _Part, match: re.Match[str]) -> int:
    if not match["step"]:
        slash = item.group(match, "slash")
        raise slash.error("a number must follow the slash, such as 0/10 for every ten")
    part = item.group(match, "step")
    step = int(part.text[:9])
    if step > field.last:
        raise part.error(f"a step of {field.name}s must be at most {field.last}, not {part.text}")
    return step


def _value(field: CronField, part: _Part) -> int:
    """Parse a number or a name."""
    if not part.text.isdecimal():
        return _named(field, part)
    value = int(part.text[:9])
    # Quartz accepts years that never match: `1969` is a schedule that never fires.
    lowest, highest = (0, 9_999) if field is YEAR else (field.first, field.last)
    if not lowest <= value <= highest:
        raise part.error(f"{part.text} is not a valid {field.name}: it takes {field.allowed}")
    return value


def _named(field: CronField, part: _Part) -> int:
    if len(part.text) >= _WORD_LETTERS:
        for number, word in enumerate(field.words, field.first):
            if word.startswith(part.text):
                return number
    raise part.error(f"{part.text} is not a valid {field.name}: it takes {field.allowed}")


def _days_of_month(part: _Part) -> tuple[tuple[int, ...], tuple[MonthDayRule, ...]]:
    days: set[int] = set()
    rules: list[MonthDayRule] = []
    for item in part.items():
        last = _FROM_LAST.fullmatch(item.text)
        nearest = _NEAREST.fullmatch(item.text)
        if last is not None:
            before = int((last["before"] or "0")[:9])
            if before > _MAX_BEFORE_LAST:
                raise item.group(last, "before").error(
                    f"no month has a day {before} days before its last: use at most "
                    f"{_MAX_BEFORE_LAST}"
                )
            rules.append(FromLast(before, weekday=bool(last["weekday"])))
        elif nearest is not None:
            rules.append(NearestWeekday(_value(DAY_OF_MONTH, item.group(nearest, "day"))))
        elif "W" in item.text:
            raise item.error("W must follow one day, or L: such as 15W, LW or L-2W")
        else:
            days |= _plain(DAY_OF_MONTH, item)
    return tuple(sorted(days)), tuple(rules)


def _days_of_week(part: _Part) -> tuple[tuple[int, ...], WeekDayRule | None]:
    days: set[int] = set()
    nth: tuple[_Part, int] | None = None
    items = list(part.items())
    for item in items:
        if nth is not None:
            raise nth[0].error("# must be in the last item of the field, once")
        if item.text == "L":
            _alone(item, items)
            days.add(_SATURDAY)
        elif (last := _LAST_IN_MONTH.fullmatch(item.text)) is not None:
            _alone(item, items)
            return (), LastInMonth(_value(DAY_OF_WEEK, item.group(last, "weekday")))
        elif (match := _NTH_IN_MONTH.fullmatch(item.text)) is not None:
            nth = item, _nth(item, match)
            days.add(_value(DAY_OF_WEEK, item.group(match, "weekday")))
        else:
            days |= _plain(DAY_OF_WEEK, item)
    if nth is not None:
        # In a list, the number applies to the first of its days, as in Quartz: `2,4#2` is the
        # second Monday. This keeps the meaning of flows written for Quartz; `describe` shows it.
        return (), NthInMonth(min(days), nth[1])
    return tuple(sorted(days)), None


def _alone(item: _Part, items: list[_Part]) -> None:
    if len(items) > 1:
        raise item.error("L of a day of week must stand alone, not in a list")


def _nth(item: _Part, match: re.Match[str]) -> int:
    part = item.group(match, "number")
    if not part.text or not 1 <= int(part.text[:9]) <= _MAX_NTH:
        raise part.error(f"1 to {_MAX_NTH} must follow #: which such day of the month")
    return int(part.text)
