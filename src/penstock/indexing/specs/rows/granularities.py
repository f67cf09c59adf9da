"""Time chunks, the precision of the time, roll-up and the intervals: ``granularitySpec``.

A granularity is a name, a period, or an object of Druid; all become the text that
`core.intervals.Granularity` parses. One with another zone or origin is written as Druid's object
again.
"""

from __future__ import annotations

import functools
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, PlainSerializer, model_validator

from penstock.core.durations import format_duration
from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity, Interval
from penstock.indexing.specs.scalars import Flag, GranularityText, IntervalText
from penstock.indexing.specs.spec_base import Found, SpecModel, as_mistake, mistakes

_SAMPLE_STEP_MS: Final = 13 * 3_600_000
_SAMPLE_START_MS: Final = 1_703_030_400_000  # 2023-12-20, then past a leap day and two new years
_SAMPLES: Final = 800
# Also valid for all years since 1970: earlier zone offsets had other fractions of an hour.
_COARSE_START_MS: Final = 13 * 60_000
_COARSE_STEP_MS: Final = 97 * 24 * 3_600_000 + 7_000
_FIELDS: Final = {
    "period": {"type", "period", "timeZone", "origin"},
    "duration": {"type", "duration", "origin"},
    "all": {"type"},
    "none": {"type"},
}


def _as_text(value: object) -> object:
    """Return the text of a granularity that is an object of Druid."""
    if isinstance(value, str) and " " in value.strip():
        return _canonical(value)
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise mistakes("granularity", [(("type",), kind, f"must be one of {', '.join(_FIELDS)}")])
    for name in value:
        if name not in _FIELDS[kind]:
            raise mistakes("granularity", [((name,), value[name], "unknown field")])
    if kind in {"all", "none"}:
        return kind
    text = value.get(kind)
    if kind == "duration":
        text = _of_duration(text)
    if not isinstance(text, str) or not text.strip() or " " in text.strip():
        raise mistakes("granularity", [((kind,), text, "is required, such as PT6H")])
    for name, word in (("timeZone", "in"), ("origin", "from")):
        if (given := value.get(name)) is not None:
            text = _placed(text, word, name, given)
    return text


def _canonical(text: str) -> str:
    with as_mistake():
        return Granularity.parse(text).name


def _placed(text: str, word: str, field: str, value: object) -> str:
    """Return the text of a granularity with a zone or an origin."""
    if not isinstance(value, str) or not value or " " in value:
        kind = "a time zone, such as Europe/Berlin" if word == "in" else "a time"
        raise mistakes("granularity", [((field,), value, f"must be {kind}")])
    placed = f"{text} {word} {value}"
    _try(text, ("period",), text)
    _try(placed, (field,), value)
    # If a zone or an origin changes nothing, the name is the one without it.
    found = Granularity.parse(placed)
    return text if found == Granularity.parse(text) else found.name


def _try(text: str, place: tuple[str, ...], value: object) -> None:
    try:
        Granularity.parse(text)
    except InvalidRequest as error:
        raise mistakes("granularity", [(place, value, str(error))]) from error


def granularity_json(text: str) -> str | dict[str, str]:
    """Return a granularity in Druid's form: its name or period, or an object if it has more."""
    granularity = Granularity.parse(text)
    words = granularity.name.split()
    if len(words) == 1:
        return text if " " not in text else granularity.name
    found = {"type": "period", "period": words[0]}
    for word, value in zip(words[1::2], words[2::2], strict=True):
        found["timeZone" if word == "in" else "origin"] = value
    return found


def _of_duration(value: object) -> str:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise mistakes("granularity", [(("duration",), value, "must be milliseconds, 1 or more")])
    return format_duration(value)


AnyGranularity = Annotated[
    GranularityText,
    BeforeValidator(_as_text),
    PlainSerializer(granularity_json, when_used="json"),
]


class GranularitySpec(SpecModel):
    """The time chunks, the precision of the time, and whether equal rows are rolled up.

    In batch tasks rows outside `intervals` are dropped; a stream has no intervals. If `arbitrary`,
    the intervals are the time chunks, and there is no segment granularity.
    """

    type: Literal["uniform", "arbitrary"] = "uniform"
    segment_granularity: AnyGranularity | None = "day"
    query_granularity: AnyGranularity = "none"
    rollup: Flag = True
    intervals: tuple[IntervalText, ...] | None = None

    @model_validator(mode="after")
    def _check_together(self) -> GranularitySpec:
        """Use the intervals of type arbitrary as the segment granularity."""
        is_listed = self.type == "arbitrary"
        if found := self._mistakes_in_list() if is_listed else self._mistakes_in_nesting():
            raise mistakes("GranularitySpec", found)
        return self.model_copy(update={"segment_granularity": None}) if is_listed else self

    def _mistakes_in_list(self) -> Found:
        """Check that listed time chunks are disjoint, and that no bucket crosses an end."""
        found: Found = []
        if self.segment_granularity is not None and "segment_granularity" in self.model_fields_set:
            text = "type arbitrary has its intervals as time chunks: leave it out, or set uniform"
            found.append((("segmentGranularity",), self.segment_granularity, text))
        if not self.intervals:
            text = "is required with type arbitrary: its intervals are the time chunks"
            return [*found, (("intervals",), self.intervals, text)]
        chunks = [Interval.parse(text) for text in self.intervals]
        try:
            Granularity.of_intervals(chunks)
        except InvalidRequest as error:
            text = f"{error}; with type arbitrary they are the time chunks: cut one of the two"
            found.append((("intervals",), None, text))
        query = Granularity.parse(self.query_granularity)
        if (cut := next((one for one in chunks if not query.is_aligned(one)), None)) is not None:
            text = f"{query} does not fit into the time chunk {cut}: choose a finer one, or let it"
            text += " begin and end with a bucket"
            found.append((("queryGranularity",), self.query_granularity, text))
        return found

    def _mistakes_in_nesting(self) -> Found:
        segment = self.chunks
        query = Granularity.parse(self.query_granularity)
        found: Found = []
        if segment == Granularity.parse("none"):
            text = "none would make a segment for each millisecond: choose an hour or more"
            found.append((("segmentGranularity",), self.segment_granularity, text))
        if wrong := granularity_mistake(query, segment):
            found.append((("queryGranularity",), self.query_granularity, wrong))
        return found

    @property
    def chunks(self) -> Granularity:
        """The time chunks."""
        if self.segment_granularity is not None:
            return Granularity.parse(self.segment_granularity)
        return Granularity.of_intervals(map(Interval.parse, self.intervals or ()))


def granularity_mistake(query: Granularity, segment: Granularity) -> str | None:
    """Return the mistake if buckets of `query` are not within those of `segment`."""
    if _nests(query, segment):
        return None
    return f"{query} does not fit into the segment granularity {segment}: choose a finer one"


@functools.lru_cache(maxsize=256)
def _nests(inner: Granularity, outer: Granularity) -> bool:
    """Return whether each bucket of `inner` is within one of `outer`; checked on samples."""
    samples = [_SAMPLE_START_MS + step * _SAMPLE_STEP_MS for step in range(_SAMPLES)]
    if inner.zoned != outer.zoned:
        samples += range(_COARSE_START_MS, _SAMPLE_START_MS, _COARSE_STEP_MS)
    for ms in samples:
        small, large = inner.bucket(ms), outer.bucket(ms)
        if small.start_ms < large.start_ms or small.end_ms > large.end_ms:
            return False
    return True
