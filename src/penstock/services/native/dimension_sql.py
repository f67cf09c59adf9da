"""Dimensions, extraction functions and buckets of time as Spark SQL.

Owns the meaning of each function. A function gets the text of a value, as in Druid; a time is in
ISO 8601 for it, and `timeFormat` gets the time itself, which is the start of the query's bucket.
Pure.
"""

from __future__ import annotations

import itertools
import re
from typing import Final

from penstock.core.durations import DAY_MS, format_duration
from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity, Interval
from penstock.core.sql.druid_times import UNITS, floor_of
from penstock.core.zoned_time import is_utc, zoned_clock
from penstock.indexing.specs.druid_expressions import date_pattern
from penstock.services.native.dimension_specs import (
    BucketExtraction,
    CascadeExtraction,
    DefaultDimension,
    Dimension,
    Extraction,
    ExtractionDimension,
    FilteredDimension,
    LookupDimension,
    LookupExtraction,
    MapLookup,
    PartialExtraction,
    PlainExtraction,
    RegexExtraction,
    RegisteredLookupExtraction,
    SearchExtraction,
    SubstringExtraction,
    TimeFormatExtraction,
    search_pattern,
)
from penstock.services.native.written_sql import (
    NamedValues,
    Value,
    checked_size,
    matches_all,
    number_literal,
    text_literal,
)

BUCKETS_MAX: Final = 100_000
"""Buckets of time that are filled, or compared with those of a zone."""

_ISO: Final = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"
_QUOTED: Final = re.compile(r"('[^']*')")
_OFFSET: Final = re.compile(r"ZZ?(?!Z)")
_OFFSETS: Final = {"Z": "'+0000'", "ZZ": "'+00:00'"}
# Units of whole days, which begin at a midnight of the zone.
_ZONED_UNITS: Final = {(1, 0): "MONTH", (3, 0): "QUARTER", (12, 0): "YEAR"}


def dimension_value(spec: Dimension, scope: NamedValues, buckets: Granularity, place: str) -> Value:
    """Return the value of a dimension.

    Args:
        spec: The dimension.
        scope: The values that its names stand for.
        buckets: The granularity of the query.
        place: Its place in the request.

    Raises:
        InvalidRequest: It names an unknown column, or has no exact translation.
    """
    if isinstance(spec, FilteredDimension):
        value = dimension_value(spec.delegate, scope, buckets, f"{place}.delegate")
        return Value(f"CASE WHEN {_passes(spec, value)} THEN {value.sql} END", value.type).grouped
    column = scope.of(spec.dimension, f"{place}.dimension")
    if isinstance(spec, DefaultDimension):
        return column.cast(spec.output_type)
    if isinstance(spec, LookupDimension):
        given = spec.lookup or spec.registered or ""
        other, keep = spec.replace_missing_value_with, spec.retain_missing_value
        found = _looked_up(column.text, given, other, keep=keep)
        return checked_size(Value(found, "STRING").cast(spec.output_type), place)
    assert isinstance(spec, ExtractionDimension)
    found_value = extracted(spec.extraction_fn, column, buckets, f"{place}.extractionFn")
    return checked_size(found_value.cast(spec.output_type), place)


def _passes(spec: FilteredDimension, value: Value) -> str:
    if spec.type == "listFiltered":
        listed = ", ".join(text_literal(one) for one in spec.values or ())
        found = f"({value.text} IN ({listed}))" if listed else "FALSE"
        return found if spec.is_whitelist else f"(NOT {found})"
    if spec.type == "regexFiltered":
        return f"({value.text} RLIKE {text_literal(spec.pattern or '')})"
    return f"startswith({value.text}, {text_literal(spec.prefix or '')})"


def extracted(function: Extraction, value: Value, buckets: Granularity, place: str) -> Value:
    """Return the result of an extraction function.

    Args:
        function: The function.
        value: Its input.
        buckets: The granularity of the query.
        place: Its place in the request.

    Raises:
        InvalidRequest: It has no exact translation.
    """
    if isinstance(function, CascadeExtraction):
        for number, one in enumerate(function.extraction_fns):
            where = f"{place}.extractionFns[{number}]"
            value = checked_size(extracted(one, value, buckets, where), where)
        return value
    if isinstance(function, TimeFormatExtraction):
        return _formatted(function, value, buckets, place)
    if isinstance(function, BucketExtraction):
        return _bucketed(function, value)
    text = _text(value)
    match function:
        case RegexExtraction():
            pattern = text_literal(function.expr)
            other = text
            if function.replace_missing_value:
                other = _or_null(function.replace_missing_value_with)
            found = f"regexp_extract({text}, {pattern}, {function.index})"
            sql = f"CASE WHEN ({text} RLIKE {pattern}) THEN {found} ELSE {other} END"
        case PartialExtraction():
            sql = f"CASE WHEN ({text} RLIKE {text_literal(function.expr)}) THEN {text} END"
        case SearchExtraction():
            patterns = search_pattern(function.query)
            matches = matches_all(text, patterns, f"{place}.query") or "TRUE"
            sql = f"CASE WHEN {matches} THEN {text} END"
        case SubstringExtraction():
            length = "" if function.length is None else f", {function.length}"
            # Beyond the end, Druid returns null.
            found = f"substring({text}, {function.index + 1}{length})"
            sql = f"CASE WHEN (length({text}) > {function.index}) THEN {found} END"
            if function.index == 0:
                sql = found
        case PlainExtraction():
            sql = _plain(function, text)
        case LookupExtraction() | RegisteredLookupExtraction():
            other_value = function.replace_missing_value_with
            sql = _looked_up(text, function.lookup, other_value, keep=function.retain_missing_value)
    return Value(sql, "STRING").grouped


def _plain(function: PlainExtraction, text: str) -> str:
    if function.type == "identity":
        return text
    if function.type == "strlen":  # of a missing value 0
        return f"CAST(coalesce(length({text}), 0) AS STRING)"
    return f"{function.type}({text})"


def _text(value: Value) -> str:
    """Return the text that functions get; a time is in ISO 8601."""
    if value.type == "TIME":
        return f"date_format({value.sql}, {text_literal(_ISO)})"
    return value.text


def _or_null(text: str | None) -> str:
    return "CAST(NULL AS STRING)" if not text else text_literal(text)


def _looked_up(text: str, lookup: MapLookup | str, other: str | None, *, keep: bool) -> str:
    """Return the value that a map, or the lookup of a name, has for a text."""
    rest = text if keep else _or_null(other)
    if isinstance(lookup, str):
        return f"coalesce(CAST(LOOKUP({text}, {text_literal(lookup)}) AS STRING), {rest})"
    whens = "".join(
        f" WHEN {text_literal(key)} THEN {text_literal(value)}" for key, value in lookup.map.items()
    )
    return f"(CASE {text}{whens} ELSE {rest} END)" if whens else rest


def _bucketed(function: BucketExtraction, value: Value) -> Value:
    size, offset = number_literal(float(function.size)), number_literal(float(function.offset))
    number = value.cast("DOUBLE").sql
    sql = f"(floor(({number} - {offset}) / {size}) * {size} + {offset})"
    if function.size.is_integer() and function.offset.is_integer():
        return Value(f"CAST({sql} AS BIGINT)", "LONG")
    return Value(sql, "DOUBLE")


def _formatted(
    function: TimeFormatExtraction, value: Value, buckets: Granularity, place: str
) -> Value:
    time = _time(function, value)
    if value.type == "TIME" and buckets.name not in {"ALL", "NONE"}:
        time = bucket_start(time, buckets, (), place)
    if function.granularity is not None:
        cut = Granularity.parse(function.granularity)
        if cut.name != "ALL":
            time = bucket_start(time, cut, (), f"{place}.granularity")
    if function.format is None and function.as_millis:
        return Value(f"CAST(unix_millis({time}) AS STRING)", "STRING")
    zone = function.time_zone
    is_zoned = zone is not None and not is_utc(zone)
    pattern = _ISO
    if function.format is not None:
        try:
            pattern = date_pattern(function.format if is_zoned else _with_offsets(function.format))
        except InvalidRequest as error:
            raise InvalidRequest(str(error), place=f"{place}.format") from None
    if zone is not None and is_zoned:
        if function.format is None:
            raise InvalidRequest("needs a format", place=f"{place}.timeZone")
        time = f"from_utc_timestamp({time}, {_zone(zone, f'{place}.timeZone')})"
    return Value(f"date_format({time}, {text_literal(pattern)})", "STRING")


def _with_offsets(pattern: str) -> str:
    """Return a pattern of Joda with the offset of UTC, as text, in the place of its letters."""
    if "''" in pattern:
        return pattern
    made = ""
    for part in _QUOTED.split(pattern):
        own = part
        if not part.startswith("'"):
            own = _OFFSET.sub(lambda found: _OFFSETS[found.group()], part)
        # Two texts side by side would have a quotation mark between them.
        is_one = made.endswith("'") and own.startswith("'")
        made = f"{made[:-1]}{own[1:]}" if is_one else made + own
    return made


def _time(function: TimeFormatExtraction, value: Value) -> str:
    if value.type == "TIME":
        return value.sql
    if function.as_millis or value.type == "LONG":
        return f"timestamp_millis({value.cast('LONG').sql})"
    return f"TRY_CAST({value.text} AS TIMESTAMP)"


def _zone(name: str, place: str) -> str:
    try:
        zoned_clock(name)
    except InvalidRequest as error:
        raise InvalidRequest(str(error), place=place) from None
    return text_literal(name)


def bucket_start(
    time: str, buckets: Granularity, intervals: tuple[Interval, ...], place: str
) -> str:
    """Return the start of the bucket of a time.

    Args:
        time: The time, a timestamp.
        buckets: The buckets.
        intervals: Where the times are; empty: unknown.
        place: Their place in the request.

    Raises:
        InvalidRequest: The buckets follow a zone in a way that Spark SQL cannot compute.
    """
    if buckets.zoned is None:
        return _floor(time, buckets)
    zone = text_literal(buckets.zoned.zone)
    unit = _ZONED_UNITS.get((buckets.months, buckets.fixed_ms))
    if buckets.fixed_ms == DAY_MS:
        unit = "DAY"
    is_usual = "from" not in buckets.name.split()
    if buckets.fixed_ms == 7 * DAY_MS and is_usual and buckets.name.startswith("P1W"):
        unit = "WEEK"
    if unit is not None and is_usual:
        shown = f"date_trunc('{unit}', from_utc_timestamp({time}, {zone}))"
        return f"to_utc_timestamp({shown}, {zone})"
    if buckets.fixed_ms and _are_those_of_utc(buckets, intervals):
        plain = Granularity.parse(format_duration(buckets.fixed_ms))
        return _floor(time, plain)
    raise InvalidRequest(
        f"{buckets} is not supported: use PT1H or shorter periods with a zone whose clock is whole"
        " hours ahead of UTC, P1D, P1W, P1M, P3M or P1Y with any zone, or UTC",
        place=place,
    )


def _floor(time: str, buckets: Granularity) -> str:
    found = floor_of(time, buckets)
    return f"({found})" if buckets.months and buckets.name not in UNITS else found


def _are_those_of_utc(buckets: Granularity, intervals: tuple[Interval, ...]) -> bool:
    """Return whether all buckets of some intervals are those of UTC."""
    if not intervals:
        return False
    each = itertools.chain.from_iterable(buckets.buckets(one) for one in intervals)
    found = [*itertools.islice(each, BUCKETS_MAX + 1)]
    length = buckets.fixed_ms
    return len(found) <= BUCKETS_MAX and all(
        one.start_ms % length == 0 and one.length_ms == length for one in found
    )
