"""The field of a row's time, and its format: ``timestampSpec``."""

from __future__ import annotations

import functools
import re
from typing import Final

from pydantic import Field, field_validator

from penstock.core.intervals import parse_time
from penstock.core.time_patterns import TimePattern
from penstock.indexing.specs.errors import did_you_mean
from penstock.indexing.specs.model import SpecModel, as_mistake, mistake

FORMATS: Final = ("auto", "iso", "posix", "millis", "micro", "nano")
# Other values of this form are misspelt names; patterns contain a year.
_PATTERN_LIKE: Final = re.compile(r"[yYx]{2}|[^A-Za-z]|^[yY]")


class TimestampSpec(SpecModel):
    """The field of a row's time, and its format: a name, or a pattern of Joda."""

    column: str = Field(default="timestamp", min_length=1)
    format: str = "auto"
    missing_value: str | None = None

    @field_validator("format")
    @classmethod
    def _check_format(cls, value: str) -> str:
        if value.lower() in FORMATS:  # Druid ignores their case
            return value.lower()
        if not _PATTERN_LIKE.search(value):
            names = f"{value!r} is not one of {', '.join(FORMATS)}, nor a pattern with a year"
            raise mistake(names + (did_you_mean(value, list(FORMATS), or_all=False)))
        with as_mistake():
            TimePattern.compile(value)
        return value

    @field_validator("missing_value")
    @classmethod
    def _check_missing_value(cls, value: str | None) -> str | None:
        if value is not None:
            with as_mistake():
                parse_time(value)
        return value

    @property
    def missing_value_ms(self) -> int | None:
        """The time of rows without one; None: such rows are unparseable."""
        return None if self.missing_value is None else parse_time(self.missing_value)

    @functools.cached_property
    def pattern(self) -> TimePattern | None:
        """The pattern, if the format is one."""
        return None if self.format in FORMATS else TimePattern.compile(self.format)
