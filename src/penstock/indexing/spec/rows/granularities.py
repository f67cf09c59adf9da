"""Time chunks, the precision of the time, roll-up and the intervals: ``granularitySpec``.

A granularity is a name, a period, or an object of Druid's; all become the text that
`core.intervals.Granularity` reads. Chunks are cut in UTC.
"""

from __future__ import annotations

import functools
import re
import zoneinfo
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, model_validator

from penstock.core.durations import format_duration
from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity, parse_time
from penstock.indexing.spec.model import SpecModel, mistakes
from penstock.indexing.spec.scalars import GranularityText, IntervalText

_SAMPLE_STEP_MS: Final = 13 * 3_600_000
_SAMPLE_START_MS: Final = 1_703_030_400_000  # 2023-12-20, then past a leap day and two new years
_SAMPLES: Final = 800
_UTC: Final = frozenset({"UTC", "Z", "Etc/UTC", "Etc/GMT", "GMT", "+00:00", "UCT", "Zulu"})
_FIELDS: Final = {
    "period": {"type", "period", "timeZone", "origin"},
    "duration": {"type", "duration", "origin"},
    "all": {"type"},
    "none": {"type"},
}


def _as_text(value: object) -> object:
    """Return the text of a granularity that is an object of Druid's."""
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise mistakes("granularity", [(("type",), kind, f"must be one of {', '.join(_FIELDS)}")])
    for name in value:
        if name not in _FIELDS[kind]:
            raise mistakes("granularity", [((name,), value[name], "unknown field")])
    _check_zone(value.get("timeZone"))
    if kind in {"all", "none"}:
        return kind
    text = value.get(kind)
    if kind == "duration":
        text = _of_duration(text)
    if not isinstance(text, str):
        raise mistakes("granularity", [((kind,), text, "is required, such as PT6H")])
    _check_origin(value.get("origin"), text)
    return text


def _of_duration(value: object) -> str:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise mistakes("granularity", [(("duration",), value, "must be milliseconds, 1 or more")])
    return format_duration(value)


def _check_zone(zone: object) -> None:
    if zone is None or (isinstance(zone, str) and zone in _UTC):
        return
    if isinstance(zone, str) and (zone in _zones() or re.fullmatch(r"[+-]\d\d:\d\d", zone)):
        text = f"segments are cut in UTC, not in {zone}: leave timeZone out"
    else:
        text = f"{zone!r} is no time zone: leave timeZone out, as segments are cut in UTC"
    raise mistakes("granularity", [(("timeZone",), zone, text)])


@functools.cache
def _zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _check_origin(origin: object, text: str) -> None:
    """An origin at which a chunk begins anyway changes nothing; another is not supported."""
    if origin is None:
        return
    try:
        if isinstance(origin, str):
            at = parse_time(origin)
            if Granularity.parse(text).truncate(at) == at:
                return
    except InvalidRequest as error:
        raise mistakes("granularity", [(("origin",), origin, str(error))]) from error
    wrong = "time chunks are counted from 1970-01-01: leave origin out"
    raise mistakes("granularity", [(("origin",), origin, wrong)])


AnyGranularity = Annotated[GranularityText, BeforeValidator(_as_text)]


class GranularitySpec(SpecModel):
    """The time chunks, the precision of the time, and whether equal rows become one.

    In batch tasks rows outside of `intervals` are thrown away; a stream has none.
    """

    type: Literal["uniform"] = "uniform"
    segment_granularity: AnyGranularity = "day"
    query_granularity: AnyGranularity = "none"
    rollup: bool = True
    intervals: tuple[IntervalText, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_arbitrary(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("type") == "arbitrary":
            text = "arbitrary is not supported: name a segmentGranularity, and set type to uniform"
            raise mistakes("GranularitySpec", [(("type",), "arbitrary", text)])
        return data

    @model_validator(mode="after")
    def _check_nesting(self) -> GranularitySpec:
        segment = Granularity.parse(self.segment_granularity)
        query = Granularity.parse(self.query_granularity)
        found: list[tuple[tuple[str | int, ...], object, str]] = []
        if segment == Granularity.parse("none"):
            text = "none would make a segment for each millisecond: choose an hour or more"
            found.append((("segmentGranularity",), self.segment_granularity, text))
        elif (wrong := nesting_mistake(query, segment)) is not None:
            found.append((("queryGranularity",), self.query_granularity, wrong))
        if found:
            raise mistakes("GranularitySpec", found)
        return self


def nesting_mistake(query: Granularity, segment: Granularity) -> str | None:
    """Return what is wrong when buckets of the one do not lie within those of the other."""
    if _nests(query, segment):
        return None
    return f"{query} does not fit into the segment granularity {segment}: choose a finer one"


@functools.lru_cache(maxsize=256)
def _nests(inner: Granularity, outer: Granularity) -> bool:
    """Whether each bucket of `inner` lies in one of `outer`; judged on a year of samples."""
    for step in range(_SAMPLES):
        ms = _SAMPLE_START_MS + step * _SAMPLE_STEP_MS
        small, large = inner.bucket(ms), outer.bucket(ms)
        if small.start_ms < large.start_ms or small.end_ms > large.end_ms:
            return False
    return True
