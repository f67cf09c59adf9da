"""Random expressions against a walk through every day, which knows fields only as questions."""

from __future__ import annotations

import calendar
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.flow.scheduling.cron import CronError, CronExpression
from penstock.flow.scheduling.cron.description import describe

Numbers = tuple[str, set[int]]
Days = tuple[str, Callable[[date], bool]]

WALKED_DAYS = 800
LEAP_YEARS_S = (1_703_462_400, 1_961_193_600)  # the end of 2023 to the spring of 2032
MONTHS = [name.upper() for name in calendar.month_abbr[1:]]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


@st.composite
def item(draw: st.DrawFn, first: int, last: int, names: list[str] | None = None) -> Numbers:
    """A value, a range, steps, or a range with steps."""
    low, high = draw(st.integers(first, last)), draw(st.integers(first, last))
    step = draw(st.integers(1, last))
    around = [*range(low, last + 1), *range(first, high + 1)]
    between = list(range(low, high + 1)) if low <= high else around
    name = (lambda value: names[value - first]) if names else str
    return draw(
        st.sampled_from(
            [
                (name(low), {low}),
                (f"{name(low)}-{name(high)}", set(between)),
                (f"{low}/{step}", set(range(low, last + 1, step))),
                (f"*/{step}", set(range(first, last + 1, step))),
                (f"{low}-{high}/{step}", set(between[::step])),
            ]
        )
    )


def numbers(first: int, last: int, names: list[str] | None = None) -> st.SearchStrategy[Numbers]:
    every = st.just(("*", set(range(first, last + 1))))
    some = st.lists(item(first, last, names), min_size=1, max_size=3).map(
        lambda items: (",".join(text for text, _ in items), set().union(*(s for _, s in items)))
    )
    return every | some


def month_end(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def is_nearest_weekday(day: date, wanted: int) -> bool:
    """Look for the weekday of the month with the least distance; of two the one in between."""
    if not 1 <= wanted <= month_end(day) or day.weekday() > 4:
        return False
    weekdays = [
        number for number in range(1, month_end(day) + 1) if day.replace(day=number).weekday() <= 4
    ]
    return day.day == min(weekdays, key=lambda number: abs(number - wanted))


@st.composite
def month_day(draw: st.DrawFn) -> Days:
    number = draw(st.integers(1, 31))
    before = draw(st.integers(0, 30))
    plain, values = draw(item(1, 31))
    return draw(
        st.sampled_from(
            [
                (plain, lambda day: day.day in values),
                ("L", lambda day: day.day == month_end(day)),
                (f"L-{before}", lambda day: day.day == month_end(day) - before),
                (f"{number}W", lambda day: is_nearest_weekday(day, number)),
                ("LW", lambda day: is_nearest_weekday(day, month_end(day))),
                (f"L-{before}W", lambda day: is_nearest_weekday(day, month_end(day) - before)),
            ]
        )
    )


@st.composite
def week_day_rule(draw: st.DrawFn) -> Days:
    weekday = draw(st.integers(1, 7))
    number = draw(st.integers(1, 5))
    name = draw(st.sampled_from([str(weekday), WEEKDAYS[weekday - 1]]))

    def is_it(day: date) -> bool:
        return day.isoweekday() % 7 + 1 == weekday

    return draw(
        st.sampled_from(
            [
                (f"{name}L", lambda day: is_it(day) and day.day + 7 > month_end(day)),
                (f"{name}#{number}", lambda day: is_it(day) and (day.day + 6) // 7 == number),
                ("L", lambda day: day.weekday() == 5),
            ]
        )
    )


@st.composite
def days(draw: st.DrawFn) -> tuple[str, str, Callable[[date], bool]]:
    """Fields of day of month and day of week."""
    kind = draw(st.integers(0, 2))
    if kind == 0:
        items = draw(st.lists(month_day(), min_size=1, max_size=2))
        return (
            ",".join(text for text, _ in items),
            "?",
            lambda day: any(matches(day) for _, matches in items),
        )
    if kind == 1:
        text, values = draw(numbers(1, 7, WEEKDAYS))
        return "?", text, lambda day: day.isoweekday() % 7 + 1 in values
    text, matches = draw(week_day_rule())
    return "?", text, matches


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, Callable[[datetime], list[datetime]]]:
    """An expression, and a walk that finds its next times."""
    second, minute, hour = draw(numbers(0, 59)), draw(numbers(0, 59)), draw(numbers(0, 23))
    month = draw(numbers(1, 12, MONTHS))
    month_days, week_days, day_matches = draw(days())
    year_text, years = draw(
        st.sampled_from(
            [
                ("", set(range(1970, 2200))),
                ("2024-2031", set(range(2024, 2032))),
                ("2025/2", set(range(2025, 2200, 2))),
            ]
        )
    )

    def walk(base: datetime) -> list[datetime]:
        found = []
        day = base.date()
        for _ in range(WALKED_DAYS):
            if day.year in years and day.month in month[1] and day_matches(day):
                for h in sorted(hour[1]):
                    for m in sorted(minute[1]):
                        for s in sorted(second[1]):
                            at = datetime(day.year, day.month, day.day, h, m, s, tzinfo=UTC)
                            if at > base:
                                found.append(at)
                            if len(found) == 3:
                                return found
            day += timedelta(days=1)
        return found

    fields = [second[0], minute[0], hour[0], month_days, month[0], week_days, year_text]
    return " ".join(fields).strip(), walk


@given(expressions(), st.integers(0, 90 * 365 * 86_400) | st.integers(*LEAP_YEARS_S))
def test_next_times_are_those_of_the_walk(
    drawn: tuple[str, Callable[[datetime], list[datetime]]], base_s: int
) -> None:
    text, walk = drawn
    base = datetime.fromtimestamp(base_s, UTC)
    expected = walk(base)
    end_ms = int((base + timedelta(days=WALKED_DAYS)).timestamp() * 1000)
    found = CronExpression.parse(text).next_times(int(base.timestamp() * 1000), 3)
    # Beyond the last day of the walk nothing is known.
    known = [ms for ms in found if ms < end_ms - 86_400_000]
    walked = [int(at.timestamp() * 1000) for at in expected]
    assert known == [ms for ms in walked if ms < end_ms - 86_400_000]


@given(expressions())
def test_every_expression_can_be_described(
    drawn: tuple[str, Callable[[datetime], list[datetime]]],
) -> None:
    sentence = describe(CronExpression.parse(drawn[0]).fields)
    assert sentence
    assert "  " not in sentence


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("* * * * * ?", "every second"),
        ("0 * * * * ?", "every minute"),
        ("0 0 * * * ?", "every hour"),
        ("0 0/10 * * * ?", "every 10 minutes"),
        ("0 0,30 * * * ?", "every 30 minutes"),
        ("0 5 * * * ?", "minute 5 of every hour"),
        ("5,7 * * * * ?", "seconds 5 and 7 of every minute"),
        ("0 5/20 * * * ?", "every 20 minutes from minute 5 on"),
        (
            "0 0/5 8-18 ? * MON,FRI",
            "every 5 minutes of every hour from 8 to 18, on Monday and Friday",
        ),
        (
            "0 0 0 1,L-2W * ? 2026-2030",
            (
                "at 00:00:00, on day 1 and the weekday nearest to 2 days before the last day "
                "of the month, in 2026 to 2030"
            ),
        ),
        ("0 0 0 ? * 2,4#2", "at 00:00:00, on the second Monday of the month"),
        ("0 10,44 14 ? 3 WED", "at 14:10:00 and 14:44:00, on Wednesday, in March"),
    ],
)
def test_meanings(text: str, meaning: str) -> None:
    assert describe(CronExpression.parse(text).fields) == meaning


@given(st.text(alphabet="0123456789*/-,?LW# AMONFRI\t", max_size=40))
@example("L-W * * * * ?")
@example("0 0 0 L-1-W * ?")
@example("0 0 0 ? * #")
@example("0 0 0 ? * 1L#2")
def test_any_text_is_an_expression_or_an_error_with_its_place(text: str) -> None:
    try:
        CronExpression.parse(text).next(0)
    except CronError as error:
        assert 0 <= error.start <= len(text)  # noqa: PT017 - where, if it is wrong
        assert error.start + error.length <= len(text) + 1  # noqa: PT017
