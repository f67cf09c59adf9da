"""Single values of specs: durations, counts, times, intervals, names, with clear errors.

Owns the validation of fields with one value. Rules for several fields are in the modules of their
models.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    Strict,
    ValidationInfo,
)

from penstock.broker.topic_names import name_mistake
from penstock.core.durations import MAX_DURATION_MS, parse_duration, parse_period
from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity, Interval, parse_time
from penstock.core.names import (
    DATASOURCE,
    SUPERVISOR,
    TABLE,
    TASK,
    NameRule,
    check_name,
    check_stored_name,
)
from penstock.indexing.specs.druid_expressions import as_spark_sql
from penstock.indexing.specs.spec_base import as_mistake, mistake

TIME_COLUMN: Final = "__time"
OWN_PREFIX: Final = "__penstock_"
"""Prefix of columns that Penstock adds to those of users while it computes."""

# NSQ's rule, which the broker also applies; the limit leaves room for the dead-letter suffix.
_DAYS: Final = re.compile(r"P0*([0-9]{1,18})D", re.ASCII)
_ANSWER_MS_MAX: Final = 300_000
_DAYS_DIGITS_MAX: Final = 6  # of 2,700 years
# The range of a JSON parser in any language, and of a column in any database.
_MAX_COUNT: Final = 2**63 - 1
SUBMITTED: Final = "submitted"
"""Key of a validation's context: the function that returns the spelling of a submitted name."""


def _duration(value: object) -> object:
    """Parse a duration: Druid writes ISO periods; a number means milliseconds."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise mistake('write a duration, such as "PT30S"')
    with as_mistake():
        ms = parse_duration(value if isinstance(value, str) else str(value))
    if ms < 0:
        raise mistake("must not be negative")
    return ms


def _longer_than_nothing(ms: int) -> int:
    if ms < 1:
        raise mistake("must be longer than 0")
    return ms


def _answer_time(ms: int) -> int:
    if ms > _ANSWER_MS_MAX:
        seconds = _ANSWER_MS_MAX // 1000
        raise mistake(f"must be at most PT{seconds}S: a task silent for longer counts as lost")
    return ms


def _capped_duration(value: object) -> object:
    """Parse a duration; Druid's longest period, 2147483647 days, means unlimited."""
    days = _DAYS.fullmatch(value) if isinstance(value, str) else None
    if days is not None and len(days[1]) > _DAYS_DIGITS_MAX:
        return MAX_DURATION_MS
    return _duration(value)


def _count(value: object) -> object:
    if isinstance(value, bool):
        # Otherwise it would count as 0 or 1.
        raise mistake(f"must be a whole number, not {str(value).lower()}")
    if isinstance(value, int) and abs(value) > _MAX_COUNT:
        raise mistake(f"must be at most {_MAX_COUNT}")
    return value


def _within_64_bits(value: int) -> int:
    # A number in quotes becomes a number only after `_count`.
    if abs(value) > _MAX_COUNT:
        raise mistake(f"must be at most {_MAX_COUNT}")
    return value


def _flag(value: object) -> object:
    """Accept the texts that Druid accepts as flags; the strict type refuses other forms."""
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower(), value)
    return bool(value) if type(value) is int and value in {0, 1} else value


def in_any_case(*names: str) -> BeforeValidator:
    """Return a validator that accepts names, given in lower case, in any case, as Druid does."""

    def fold(value: object) -> object:
        # Other values are unchanged, so that an error shows the original.
        folded = value.lower() if isinstance(value, str) else value
        return folded if folded in names else value

    return BeforeValidator(fold)


def _topic(name: str) -> str:
    if text := name_mistake(name, may_be_ephemeral=False):
        raise mistake(text)
    return name


def _time(value: str) -> str:
    with as_mistake():
        parse_time(value)
    return value


def interval_mistake(value: object) -> str:
    """Return the mistake in the text of an interval, or empty text."""
    if not isinstance(value, str):
        return 'write an interval as text, such as "2024-01-01/2024-02-01"'
    try:
        interval = Interval.parse(value)
    except InvalidRequest as error:
        return str(error)
    return f"{value!r} is empty: its end must be after its start" if interval.is_empty else ""


def _interval(value: str) -> str:
    if text := interval_mistake(value):
        raise mistake(text)
    return value


def _period(value: str) -> str:
    with as_mistake():
        parse_period(value)
    return value


def _offset(value: str) -> str:
    with as_mistake():
        parse_period(value, may_be_zero=True)
    return value


def _expression(text: str) -> str:
    with as_mistake():
        as_spark_sql(text)
    return text


def _in_seconds(ms: int) -> str:
    return f"PT{ms // 1000}S" if ms % 1000 == 0 else f"PT{ms // 1000}.{ms % 1000:03}S"


def check_datasource_name(name: str, info: ValidationInfo) -> str:
    """Return the spelling of a datasource's name.

    Raises:
        PydanticCustomError: The name is invalid; a `ValueError`, for use in validators.
    """
    return _name(name, DATASOURCE, info)


def check_table_name(name: str, info: ValidationInfo) -> str:
    """Return the name of a datasource that rows go into. Raises as `check_datasource_name`."""
    return _name(name, TABLE, info)


def check_supervisor_id(name: str, info: ValidationInfo) -> str:
    """Return the spelling of a supervisor's id. Raises as `check_datasource_name`."""
    return _name(name, SUPERVISOR, info)


def check_task_id(name: str, info: ValidationInfo) -> str:
    """Return the spelling of a task's id. Raises as `check_datasource_name`."""
    return _name(name, TASK, info)


def _name(name: str, rule: NameRule, info: ValidationInfo) -> str:
    """Return a name; for a submitted spec, in the spelling that `SUBMITTED` returns.

    Other specs were stored or created by Penstock: their names are unchanged.
    """
    spelt: Callable[[str], str] | None = (info.context or {}).get(SUBMITTED)
    with as_mistake():
        if spelt is not None:
            name = spelt(name)
            check_name(name, rule)
        else:
            check_stored_name(name, rule)
    return name


def _check_granularity(text: str) -> str:
    with as_mistake():
        Granularity.parse(text)
    return text


def _check_column_name(name: str) -> str:
    if not name.strip():
        raise mistake("must not be empty")
    if name == TIME_COLUMN:
        raise mistake(f"{TIME_COLUMN} is the time column itself: choose another name")
    return _check_computed_name(name)


def _check_computed_name(name: str) -> str:
    if not name:
        raise mistake("must not be empty")
    if name.lower().startswith(OWN_PREFIX):
        raise mistake(f"names with {OWN_PREFIX} are reserved for Penstock: choose another name")
    if name != TIME_COLUMN and name.lower() == TIME_COLUMN:
        # For Spark, names that differ only in case are one.
        raise mistake(f"differs from {TIME_COLUMN} only in case: choose another name")
    return name


DurationMs = Annotated[
    int,
    BeforeValidator(_duration, json_schema_input_type=str | int),
    PlainSerializer(_in_seconds, when_used="json"),
]
PositiveDurationMs = Annotated[DurationMs, AfterValidator(_longer_than_nothing)]
AnswerTimeMs = Annotated[PositiveDurationMs, AfterValidator(_answer_time)]
CappedDurationMs = Annotated[
    int, BeforeValidator(_capped_duration, json_schema_input_type=str | int)
]
"""A duration; more days than the calendar has are reduced to that number."""
Flag = Annotated[bool, BeforeValidator(_flag), Strict()]
Count = Annotated[int, BeforeValidator(_count), AfterValidator(_within_64_bits)]
TopicName = Annotated[str, AfterValidator(_topic)]
TimeText = Annotated[str, AfterValidator(_time)]
IntervalText = Annotated[str, AfterValidator(_interval)]
PeriodText = Annotated[str, AfterValidator(_period)]
OffsetText = Annotated[str, AfterValidator(_offset)]
"""A period that may be empty, as `PT0S`."""
ExpressionText = Annotated[str, Field(min_length=1), AfterValidator(_expression)]
DatasourceName = Annotated[str, AfterValidator(check_datasource_name)]
TableName = Annotated[str, AfterValidator(check_table_name)]
SupervisorId = Annotated[str, AfterValidator(check_supervisor_id)]
ColumnName = Annotated[str, AfterValidator(_check_column_name)]
ComputedName = Annotated[str, AfterValidator(_check_computed_name)]
"""As `ColumnName`, or the time column."""
GranularityText = Annotated[str, AfterValidator(_check_granularity)]
TaskId = Annotated[str, AfterValidator(check_task_id)]
