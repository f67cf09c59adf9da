"""Differences between Druid's SQL and Spark's, with hints for replacements. Pure.

Owns the table of Druid's functions and forms that Spark does not have; names that Spark has are not
listed. Queries are never rewritten: arguments and types differ, and a rewritten query that is wrong
in rare cases is worse than an error with a hint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from itertools import pairwise
from typing import Final

from penstock.core.durations import parse_period
from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Granularity
from penstock.core.sql_text import tokens

# A list in a column is JSON text; without this, Spark only reports that the types do not match.
_LIST: Final = "from_json(tags, 'ARRAY<STRING>')"
FUNCTIONS: Final[Mapping[str, str]] = {
    # times
    "TIME_FLOOR": "date_trunc('DAY', __time)",
    "TIME_CEIL": "date_trunc('DAY', __time - INTERVAL 1 MICROSECOND) + INTERVAL 1 DAY",
    "TIME_SHIFT": "__time + INTERVAL 2 DAYS",
    "TIME_EXTRACT": "extract(HOUR FROM __time)",
    "TIME_PARSE": "to_timestamp(text, 'yyyy-MM-dd')",
    "TIME_FORMAT": "date_format(__time, 'yyyy-MM-dd')",
    "TIME_IN_INTERVAL": ("__time >= TIMESTAMP '2024-01-01' AND __time < TIMESTAMP '2024-02-01'"),
    "MILLIS_TO_TIMESTAMP": "timestamp_millis(number)",
    "TIMESTAMP_TO_MILLIS": "unix_millis(__time)",
    # first and last
    "EARLIEST": "min_by(number, __time)",
    "LATEST": "max_by(number, __time)",
    "EARLIEST_BY": "min_by(number, __time)",
    "LATEST_BY": "max_by(number, __time)",
    # sketches
    "APPROX_COUNT_DISTINCT_BUILTIN": "approx_count_distinct(text)",
    "APPROX_COUNT_DISTINCT_DS_HLL": "hll_sketch_estimate(hll_union_agg(hll))",
    "APPROX_COUNT_DISTINCT_DS_THETA": "theta_sketch_estimate(theta_union_agg(theta))",
    "DS_HLL": "hll_sketch_agg(text)",
    "DS_THETA": "theta_sketch_agg(text)",
    "HLL_SKETCH_UNION": "hll_union(hll, hll)",
    "THETA_SKETCH_UNION": "theta_union(theta, theta)",
    "THETA_SKETCH_INTERSECT": "theta_intersection(theta, theta)",
    "THETA_SKETCH_NOT": "theta_difference(theta, theta)",
    "APPROX_QUANTILE": "approx_percentile(number, 0.5)",
    "APPROX_QUANTILE_DS": "approx_percentile(number, 0.5)",
    "APPROX_QUANTILE_FIXED_BUCKETS": "approx_percentile(number, 0.5)",
    # lists
    "STRING_TO_MV": "split(text, '-')",
    "STRING_TO_ARRAY": "split(text, '-')",
    "MV_TO_STRING": f"array_join({_LIST}, '-')",
    "ARRAY_TO_STRING": f"array_join({_LIST}, '-')",
    "MV_TO_ARRAY": _LIST,
    "ARRAY_LENGTH": f"size({_LIST})",
    "MV_LENGTH": f"size({_LIST})",
    "ARRAY_OFFSET": f"get({_LIST}, 0)",
    "MV_OFFSET": f"get({_LIST}, 0)",
    "ARRAY_ORDINAL": f"get({_LIST}, 1 - 1)",
    "MV_ORDINAL": f"get({_LIST}, 1 - 1)",
    "ARRAY_OFFSET_OF": f"array_position({_LIST}, 'a') - 1",
    "MV_OFFSET_OF": f"array_position({_LIST}, 'a') - 1",
    "ARRAY_ORDINAL_OF": f"array_position({_LIST}, 'a')",
    "MV_ORDINAL_OF": f"array_position({_LIST}, 'a')",
    "MV_CONTAINS": f"array_contains({_LIST}, 'a')",
    "ARRAY_OVERLAP": f"arrays_overlap({_LIST}, array('a', 'z'))",
    "MV_OVERLAP": f"arrays_overlap({_LIST}, array('a', 'z'))",
    "MV_FILTER_ONLY": f"filter({_LIST}, one -> one IN ('a'))",
    "MV_FILTER_NONE": f"filter({_LIST}, one -> one NOT IN ('a'))",
    "ARRAY_CONCAT": f"concat({_LIST}, array('z'))",
    "MV_CONCAT": f"concat({_LIST}, array('z'))",
    "MV_APPEND": f"array_append({_LIST}, 'z')",
    "MV_PREPEND": f"array_prepend({_LIST}, 'z')",
    "ARRAY_SLICE": f"slice({_LIST}, 1, 2)",
    "MV_SLICE": f"slice({_LIST}, 1, 2)",
    "ARRAY_CONCAT_AGG": f"flatten(collect_list({_LIST}))",
    "UNNEST": f"explode({_LIST})",
    # JSON
    "JSON_VALUE": "get_json_object(json, '$.a')",
    "JSON_QUERY": "get_json_object(json, '$.a')",
    "JSON_KEYS": "json_object_keys(json)",
    "JSON_OBJECT": "to_json(named_struct('a', number))",
    "TO_JSON_STRING": "to_json(named_struct('a', number))",
    # texts and numbers
    "CONTAINS_STRING": "contains(text, '2024')",
    "ICONTAINS_STRING": "contains(lower(text), '2024')",
    "STRLEN": "length(text)",
    "STRPOS": "instr(text, '-')",
    "TEXTCAT": "concat(text, '!')",
    "STRING_FORMAT": "format_string('%s!', text)",
    "PARSE_LONG": "CAST(number AS BIGINT)",
    "SAFE_DIVIDE": "try_divide(number, 2)",
    "TRUNCATE": "CAST(number AS DECIMAL(20, 0))",
    "BITWISE_AND": "number & 1",
    "BITWISE_OR": "number | 1",
    "BITWISE_XOR": "number ^ 1",
    "BITWISE_COMPLEMENT": "~number",
    "BITWISE_SHIFT_LEFT": "shiftleft(number, 1)",
    "BITWISE_SHIFT_RIGHT": "shiftright(number, 1)",
}
"""Replacement of a function; `__time`, `text`, `tags` and so on are example columns."""

_NO_FUNCTION: Final[Mapping[str, str]] = {
    "LOOKUP": "join the datasource that contains the names",
    "EXTERN": "FROM TABLE(EXTERN(…)) in INSERT and REPLACE, which tasks run; queries read no files",
}
# A name that Spark cannot resolve, as the error shows it.
_PART: Final = re.compile(r"`(?:[^`]|``)+`")
_COLUMN: Final = re.compile(
    rf"\[UNRESOLVED_(?:USING_)?COLUMN[^`]*?({_PART.pattern}(?:\.{_PART.pattern})*) cannot"
)
_UNKNOWN: Final = re.compile(r"UNRESOLVED_ROUTINE\][^`]*`(\w+)`")
# Two patterns, because one that spans a query takes quadratic time if no TO follows.
_ROUNDED: Final = re.compile(r"\b(FLOOR|CEIL|CEILING)\s*\(", re.IGNORECASE)
_UNIT: Final = re.compile(r"\bTO\s+(\w+)\s*\)", re.IGNORECASE)
_TABLE: Final = re.compile(r"TABLE_OR_VIEW_NOT_FOUND\][^`]*`(\w+)`\.`(\w+)`")
_SHOWN: Final = 200
_FUNCTION_LIST: Final = "https://spark.apache.org/docs/latest/api/sql/"
_DAY_MS: Final = 86_400_000
_UNITS: Final = frozenset({"SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR"})
# In Druid, days of the week are numbered from Monday, 1.
_EXTRACTED: Final[Mapping[str, str]] = {
    **{unit: f"extract({unit} FROM {{}})" for unit in (*_UNITS, "DOY")},
    "DOW": "extract(DAYOFWEEK_ISO FROM {})",
    "EPOCH": "unix_seconds({})",
}
_SYSTEM_TABLES: Final[Mapping[str, str]] = {
    "segments": "penstock segment list, or GET /druid/coordinator/v1/datasources/…/segments",
    "tasks": "penstock task list, or GET /druid/indexer/v1/tasks",
    "supervisors": "penstock supervisor list, or GET /druid/indexer/v1/supervisor?state",
    "servers": "penstock status",
    "server_segments": "servers do not load segments: see penstock segment timeline",
}


def in_spark(sql: str, refusal: str) -> str:
    """Return what to write instead of what Spark refused; else an empty text.

    It knows forms of Druid's SQL, and texts in double quotes, which many databases allow.
    """
    unknown = _UNKNOWN.search(refusal)
    if unknown:
        name = unknown[1].upper()
        if written := _of_time_call(name, sql):
            return f"{name} is a function of Druid's SQL. In Spark SQL: {written}"
        return _of_function(name) or f"Spark SQL has no function {name}: see {_FUNCTION_LIST}"
    if column := unresolved_column(refusal):
        text = column[-1]
        # A part of a name, and a column of USING, is not a text.
        may_be_text = len(column) == 1 and "UNRESOLVED_USING_" not in refusal
        if may_be_text and f'"{text}"' in sql and "'" not in text and len(text) <= _SHOWN:
            return f"""Double quotes enclose a name. If "{text}" is a text, write '{text}'"""
        return ""
    table = _TABLE.search(refusal)
    if table:
        return _of_table(table[1].lower(), table[2].lower())
    if "PARSE_SYNTAX_ERROR" not in refusal:
        return ""
    rounded = _ROUNDED.search(sql)
    unit = None if rounded is None else _UNIT.search(sql, rounded.end())
    if rounded and unit:
        time = sql[rounded.end() : unit.start()].strip()
        if len(time) > _SHOWN or time.count("(") != time.count(")"):
            time = "__time"  # the TO may belong to another call
        return f"In Spark SQL: {_rounded(rounded[1].upper(), unit[1].upper(), time)}"
    if re.search(r"\bJSON_OBJECT\s*\(", sql, re.IGNORECASE):
        return _of_function("JSON_OBJECT")
    return ""


def unresolved_column(refusal: str) -> list[str]:
    """Return the parts of the column's name that Spark did not find; none for other errors."""
    column = _COLUMN.search(refusal)
    return quoted_names(column[1]) if column else []


def quoted_names(text: str) -> list[str]:
    """Return the names in backquotes in a text of Spark."""
    return [one[1:-1].replace("``", "`") for one in _PART.findall(text)]


def _rounded(function: str, unit: str, time: str) -> str:
    if function == "FLOOR":
        return f"date_trunc('{unit}', {time})"
    # A time at the start of a unit stays; Spark has no interval of quarters.
    length = "3 MONTH" if unit == "QUARTER" else f"1 {unit}"
    return f"date_trunc('{unit}', {time} - INTERVAL 1 MICROSECOND) + INTERVAL {length}"


def _of_function(name: str) -> str:
    if name in FUNCTIONS:
        return f"{name} is a function of Druid's SQL. In Spark SQL: {FUNCTIONS[name]}"
    if name in _NO_FUNCTION:
        return f"{name} is a function of Druid's SQL. Here: {_NO_FUNCTION[name]}"
    return ""


def _of_time_call(name: str, sql: str) -> str:
    """Return Spark's form of the first call of a time function; empty if unknown.

    Literal periods, steps and zones of the call are used, so the hint has the same meaning.
    """
    if name not in {"TIME_FLOOR", "TIME_CEIL", "TIME_SHIFT", "TIME_EXTRACT"}:
        return ""
    try:
        return _time_call(name, *_arguments(sql, name))
    except (InvalidRequest, TypeError, ValueError):
        return ""


def _time_call(name: str, time: str, period: str, *rest: str) -> str:
    """Return Spark's form of a call; empty if unknown.

    Raises:
        InvalidRequest: The period is not valid.
        ValueError: An argument is not a literal.
    """
    literal = _text(period)
    if name == "TIME_EXTRACT":
        return "" if rest else _EXTRACTED.get(literal.upper(), "").format(time)
    if name == "TIME_SHIFT":
        return _shifted(time, literal, int(rest[0])) if len(rest) == 1 else ""
    if rest and rest[0].upper() != "NULL":
        return ""  # it has another origin
    cut = _floor if name == "TIME_FLOOR" else _ceiling
    granularity = Granularity.parse(literal)
    if len(rest) < 2:
        return cut(time, granularity)
    zone = _text(rest[1])
    local = cut(f"from_utc_timestamp({time}, '{zone}')", granularity)
    return f"to_utc_timestamp({local}, '{zone}')"


def _floor(time: str, granularity: Granularity) -> str:
    if granularity.name in _UNITS:
        return f"date_trunc('{granularity.name}', {time})"
    if granularity.months:
        months = f"year({time}) * 12 + month({time}) - 1"
        return (
            f"date_trunc('MONTH', {time})"
            f" - make_ym_interval(0, pmod({months}, {granularity.months}))"
        )
    origin = f" - {granularity.origin_ms}" if granularity.origin_ms else ""
    length = granularity.fixed_ms
    return f"timestamp_millis(unix_millis({time}) - pmod(unix_millis({time}){origin}, {length}))"


def _ceiling(time: str, granularity: Granularity) -> str:
    # A time at the start of a unit stays.
    before = f"{time} - INTERVAL 1 MICROSECOND"
    if granularity.months:
        length = f"{granularity.months} MONTH"
    else:
        seconds = Decimal(granularity.fixed_ms) / 1000
        length = f"{seconds.normalize():f} SECOND"
    return f"{_floor(before, granularity)} + INTERVAL '{length.split()[0]}' {length.split()[1]}"


def _shifted(time: str, literal: str, steps: int) -> str:
    period = parse_period(literal)
    unit, unit_ms = ("SECOND", 1_000) if period.ms % _DAY_MS else ("DAY", _DAY_MS)
    if period.ms % unit_ms:
        return ""
    shifts = ((period.months * steps, "MONTH"), (period.ms // unit_ms * steps, unit))
    for amount, name in shifts:
        if amount:
            time += f" {'-' if amount < 0 else '+'} INTERVAL '{abs(amount)}' {name}"
    return time


def _arguments(sql: str, name: str) -> list[str]:
    """Return the texts of the arguments of a function's first call.

    Raises:
        InvalidRequest: A text, a name or a comment is not closed.
    """
    found = tokens(sql)
    calls = (
        at
        for at, (token, following) in enumerate(pairwise(found))
        if token.name.upper() == name and following.text == "("
    )
    at = next(calls, len(found)) + 1
    depth, parts = 0, []
    begin = found[at].position + 1 if at < len(found) else 0
    for token in found[at:]:
        depth += (token.text == "(") - (token.text == ")")
        if (token.text == "," and depth == 1) or not depth:
            parts.append(sql[begin : token.position].strip())
            begin = token.position + 1
        if not depth:
            break
    return parts


def _text(argument: str) -> str:
    """Return the text between the quotes of a literal.

    Raises:
        ValueError: The argument is another expression.
    """
    (token,) = tokens(argument)
    if not token.is_text or "'" in token.raw[1:-1]:
        raise ValueError(argument)
    return token.raw[1:-1]


def _of_table(schema: str, table: str) -> str:
    if schema == "information_schema":
        return "In Spark SQL: SHOW TABLES, and DESCRIBE a datasource"
    if schema == "sys" and table in _SYSTEM_TABLES:
        return f"Here: {_SYSTEM_TABLES[table]}"
    if schema == "druid":
        return "Write names of datasources without a schema"
    return ""
