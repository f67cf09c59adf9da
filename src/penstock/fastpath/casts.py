"""Conversions by CAST as pieces of DuckDB's SQL with Spark's results. Pure.

A cast that is not listed is not compiled: a floating number as a text, which Java writes in its own
way, or as a decimal. Texts become numbers and dates only if they are written in the plainest way;
for others DuckDB raises, and Spark answers or reports them.

Source of the meaning: the page "ANSI compliance" of Spark's SQL reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.fastpath.compiled_query import NotCompiled
from penstock.fastpath.fragments import (
    DUCKDB_TYPES,
    INTEGERS,
    DecimalType,
    Fragment,
    converted,
    decimal_type,
    duckdb_type,
    left_to_spark,
    made,
)
from penstock.fastpath.functions import as_date, in_four_digits, time_of

_TEXTS: Final = {
    "int": "-?[0-9]{1,9}",
    "bigint": "-?[0-9]{1,18}",
    # Both engines read up to 15 digits as the nearest number.
    "double": "-?[0-9]{1,8}([.][0-9]{1,7})?",
    "date": "[0-9]{4}-[0-9]{2}-[0-9]{2}",
}
_SECOND_US: Final = 1_000_000


def cast_to(value: Fragment, type_: str) -> Fragment:
    """Return `CAST(value AS type_)`.

    Raises:
        NotCompiled: It is not covered.
    """
    wanted = decimal_type(type_)
    if wanted is not None:
        return _as_decimal(value, wanted)
    if isinstance(value.constant, str) and value.type == type_:
        return value
    if value.type == type_ and type_ in DUCKDB_TYPES:
        return made(f"CAST({{}} AS {duckdb_type(type_)})", type_, (value,))
    write = _CASTS.get((_kind(value.type), type_))
    if write is None:
        raise NotCompiled("cast")
    return write(value, type_)


def _kind(type_: str) -> str:
    return "decimal" if decimal_type(type_) is not None else type_


def _as_decimal(value: Fragment, wanted: DecimalType) -> Fragment:
    own = decimal_type(value.type)
    if own is None and value.type not in INTEGERS:
        raise NotCompiled("cast")
    is_fitting = own is not None and own.digits - own.scale < wanted.digits - wanted.scale
    return made(f"CAST({{}} AS {wanted.sql})", wanted.text, (value,), raises=not is_fitting)


def _implicit(value: Fragment, type_: str) -> Fragment:
    return converted(value, type_)


def _plain(value: Fragment, type_: str) -> Fragment:
    return made(f"CAST({{}} AS {DUCKDB_TYPES[type_]})", type_, (value,))


def _narrower(value: Fragment, type_: str) -> Fragment:
    """Return a number without its fraction; both engines raise if it is too large."""
    sql = "{}" if value.type in INTEGERS else "trunc({})"
    return made(f"CAST({sql} AS {DUCKDB_TYPES[type_]})", type_, (value,), raises=True)


def _is_set(value: Fragment, type_: str) -> Fragment:
    return made("({} <> 0)", type_, (value,))


def _read(value: Fragment, type_: str) -> Fragment:
    pattern = _TEXTS[type_].replace("{", "{{").replace("}", "}}")
    sql = (
        f"(CASE WHEN NOT regexp_full_match({{}}, '{pattern}')"
        f" THEN {left_to_spark('another form of a text')}"
        f" ELSE CAST({{}} AS {DUCKDB_TYPES[type_]}) END)"
    )
    return made(sql, type_, (value, value), raises=True)


def _day(value: Fragment, _type: str) -> Fragment:
    return as_date(value)


def _date_text(value: Fragment, type_: str) -> Fragment:
    day = converted(value, "timestamp")
    return made(in_four_digits("CAST({} AS VARCHAR)"), type_, (day, day, value))


def _time_text(value: Fragment, type_: str) -> Fragment:
    return made(in_four_digits(f"CAST({time_of(value)} AS VARCHAR)"), type_, (value,) * 3)


def _seconds(value: Fragment, type_: str) -> Fragment:
    us = _SECOND_US
    return made(f"(({{}} - ((({{}} % {us}) + {us}) % {us})) // {us})", type_, (value, value))


_CASTS: Final[Mapping[tuple[str, str], Callable[[Fragment, str], Fragment]]] = {
    ("int", "bigint"): _implicit,
    ("int", "double"): _implicit,
    ("bigint", "double"): _implicit,
    ("float", "double"): _implicit,
    ("decimal", "double"): _implicit,
    ("date", "timestamp"): _implicit,
    ("bigint", "int"): _narrower,
    **{(one, other): _narrower for one in ("double", "float", "decimal") for other in INTEGERS},
    **{("boolean", other): _plain for other in (*INTEGERS, "double", "string")},
    **{(one, "string"): _plain for one in INTEGERS},
    **{(one, "boolean"): _is_set for one in INTEGERS},
    **{("string", other): _read for other in _TEXTS},
    ("timestamp", "date"): _day,
    ("date", "string"): _date_text,
    ("timestamp", "string"): _time_text,
    ("timestamp", "bigint"): _seconds,
}
