"""Functions of numbers as pieces of DuckDB's SQL with Spark's results. Pure.

Spark rounds a floating number by its shortest decimal form, half up: `round(2.345, 2)` is 2.35,
although the number is a little below 2.345. DuckDB multiplies and rounds the product. So a number
is rounded that way only where the product is far from a half, and by its decimal form, if this has
at most 15 digits, elsewhere. For other numbers DuckDB raises, and Spark answers.

Source of the meaning: the classes RoundBase, Floor and Ceil of Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.fastpath.compiled_query import NotCompiled
from penstock.fastpath.fragments import (
    DECIMAL_DIGITS_MAX,
    DUCKDB_TYPES,
    INTEGERS,
    DecimalType,
    Fragment,
    converted,
    decimal_type,
    duckdb_type,
    is_number,
    left_to_spark,
    made,
    named,
    shared_type,
)

Arguments = Sequence[Fragment]
Function = Callable[[Arguments], Fragment]

_PLACES_MAX: Final = 9
# A product below this is computed to 0.0002, and is rounded without its decimal form if it is
# further than 0.001 from a half.
_NEAR_MAX: Final = "1e12"
# Floating numbers from 2^52 have no fraction.
_WHOLE_MIN: Final = "4503599627370496e0"
# Floating numbers of 64 bits below this are integers of 64 bits.
_LONG_MAX: Final = "9e18"


def whole_constant(piece: Fragment) -> int:
    """Return the value of a number that is written out.

    Raises:
        NotCompiled: It is another expression.
    """
    if not isinstance(piece.constant, int) or piece.type != "int":
        raise NotCompiled("argument that is not constant")
    return piece.constant


def rounded(value: Fragment, places: int) -> Fragment:
    """Return `round(value, places)`.

    Raises:
        NotCompiled: The type or the number of places is not covered.
    """
    if not 0 <= places <= _PLACES_MAX:
        raise NotCompiled("places of a rounded number")
    if value.type in INTEGERS:
        return made("CAST({} AS BIGINT)" if value.type == "bigint" else "CAST({} AS INTEGER)",
                    value.type, (value,))  # fmt: skip
    decimal = decimal_type(value.type)
    if decimal is not None:
        scale = min(places, decimal.scale)
        digits = min(decimal.digits - decimal.scale + 1 + scale, DECIMAL_DIGITS_MAX)
        type_ = DecimalType(digits, scale)
        return made(f"CAST({{}} AS {type_.sql})", type_.text, (value,))
    if value.type != "double":
        raise NotCompiled("types of arguments")
    unit = f"1e{places}"
    product = f"({{}} * {unit})"
    far = f"abs({product} - floor({product}) - 0.5e0) > 1e-3"
    same = "CAST(format('{{:.14e}}', {}) AS DOUBLE) = {}"
    form = f"CAST(CAST({{}} AS VARCHAR) AS DECIMAL(38, {places}))"
    sql = (
        f"(CASE WHEN {{}} IS NULL OR NOT isfinite({{}}) OR abs({{}}) >= {_WHOLE_MIN} THEN {{}}"
        f" WHEN abs({product}) < {_NEAR_MAX} AND {far} THEN floor({product} + 0.5e0) / {unit}"
        f" WHEN {same} THEN CAST(CAST({form} AS VARCHAR) AS DOUBLE)"
        f" ELSE {left_to_spark('a number of more than 15 digits is rounded')} END)"
    )
    return made(sql, "double", (value,) * sql.replace("{{", "").count("{}"))


def whole(function: str, value: Fragment) -> Fragment:
    """Return `floor(value)` or `ceil(value)`, which is an integer in Spark.

    Raises:
        NotCompiled: The type is not covered.
    """
    if value.type in INTEGERS:
        return converted(made("{}", value.type, (value,)), "bigint")
    decimal = decimal_type(value.type)
    if decimal is not None:
        if not decimal.scale:
            return made("{}", value.type, (value,))
        type_ = DecimalType(decimal.digits - decimal.scale + 1, 0)
        return made(f"CAST({function}({{}}) AS {type_.sql})", type_.text, (value,))
    if value.type != "double":
        raise NotCompiled("types of arguments")
    sql = (
        f"(CASE WHEN abs({{}}) > {_LONG_MAX} THEN {left_to_spark('a number has more than 64 bits')}"
        f" ELSE CAST({function}({{}}) AS BIGINT) END)"
    )
    return made(sql, "bigint", (value, value), raises=True)  # where Spark raises, too


def _pmod(arguments: Arguments) -> Fragment:
    if len(arguments) != 2 or not {one.type for one in arguments} <= INTEGERS:
        raise NotCompiled("types of arguments")
    divisor = arguments[1].constant
    if not isinstance(divisor, int) or not 0 < divisor < 1 << 40:
        raise NotCompiled("argument that is not constant")
    type_ = shared_type(one.type for one in arguments)
    value = converted(arguments[0], type_)
    sql = f"CAST(((({{}} % {divisor}) + {divisor}) % {divisor}) AS {DUCKDB_TYPES[type_]})"
    return made(sql, type_, (value,))


def _mod(arguments: Arguments) -> Fragment:
    if len(arguments) != 2 or not {one.type for one in arguments} <= INTEGERS:
        raise NotCompiled("types of arguments")
    if not isinstance(arguments[1].constant, int) or not arguments[1].constant:
        raise NotCompiled("argument that is not constant")
    type_ = shared_type(one.type for one in arguments)
    parts = [converted(one, type_) for one in arguments]
    return made(f"CAST(({{}} % {{}}) AS {DUCKDB_TYPES[type_]})", type_, parts)


def _abs(arguments: Arguments) -> Fragment:
    if len(arguments) != 1 or not is_number(arguments[0].type):
        raise NotCompiled("types of arguments")
    type_ = arguments[0].type
    return made(f"CAST(abs({{}}) AS {duckdb_type(type_)})", type_, arguments,
                raises=type_ in INTEGERS)  # fmt: skip


def _round(arguments: Arguments) -> Fragment:
    if len(arguments) not in {1, 2}:
        raise NotCompiled("number of arguments")
    places = whole_constant(arguments[1]) if len(arguments) == 2 else 0
    name = f"round({arguments[0].name}, {places})"
    return named(rounded(arguments[0], places), name, arguments[:1])


def _whole_of(function: str) -> Function:
    """Return floor or ceil, whose name Spark writes in capitals, except ceiling's."""

    def compile_whole(arguments: Arguments) -> Fragment:
        if len(arguments) != 1:
            raise NotCompiled("number of arguments")
        shown = function if function == "ceiling" else function.upper()
        found = whole("floor" if function == "floor" else "ceil", arguments[0])
        return named(found, f"{shown}({arguments[0].name})", arguments)

    return compile_whole


def _sqrt(arguments: Arguments) -> Fragment:
    if len(arguments) != 1 or not is_number(arguments[0].type):
        raise NotCompiled("types of arguments")
    real = converted(arguments[0], "double")
    sql = "(CASE WHEN {} < 0 THEN CAST('NaN' AS DOUBLE) ELSE sqrt({}) END)"
    return named(made(sql, "double", (real, real)), f"SQRT({arguments[0].name})", arguments)


def _try_divide(arguments: Arguments) -> Fragment:
    if len(arguments) != 2 or not {one.type for one in arguments} <= {*INTEGERS, "double"}:
        raise NotCompiled("types of arguments")
    left, right = (converted(one, "double") for one in arguments)
    sql = "(CASE WHEN {} = 0 THEN NULL ELSE {} / {} END)"
    return made(sql, "double", (right, left, right))


def _isnan(arguments: Arguments) -> Fragment:
    if len(arguments) != 1 or arguments[0].type not in {"double", "float"}:
        raise NotCompiled("types of arguments")
    return made("COALESCE(isnan({}), false)", "boolean", arguments)


NUMBER_FUNCTIONS: Final[Mapping[str, Function]] = {
    "abs": _abs,
    "ceil": _whole_of("ceil"),
    "ceiling": _whole_of("ceiling"),
    "floor": _whole_of("floor"),
    "isnan": _isnan,
    "mod": _mod,
    "pmod": _pmod,
    "round": _round,
    "sqrt": _sqrt,
    "try_divide": _try_divide,
}
"""Those that are compiled, by their names in lower case."""
