"""Arithmetic of decimals as pieces of DuckDB's SQL, with Spark's types of results. Pure.

Sums, differences and products are compiled only where Spark keeps all digits. Then no value can be
too large for its type, and DuckDB, whose types may be smaller, is exact or raises. A quotient is
computed of integers of up to 38 digits. Spark rounds it to 39 digits and then to its scale, each
time half up. This is the quotient rounded once: with a numerator below 10^38, a quotient other than
a half is further from one than the first rounding moves it.

Source of the rules for types: the class DecimalPrecision of Spark, and the page "Data types".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.fastpath.compiled_query import NotCompiled
from penstock.fastpath.fragments import (
    DECIMAL_DIGITS_MAX,
    DecimalType,
    Fragment,
    as_decimal,
    decimal_type,
    made,
)

# Digits after the point that Spark keeps of a result that is too long.
_KEPT_SCALE: Final = 6
_SUM_DIGITS: Final = 10
_MEAN_DIGITS: Final = 4


def _type_of(piece: Fragment) -> DecimalType:
    found = decimal_type(piece.type)
    if found is None:
        raise NotCompiled("types of operands")
    return found


def _bounded(digits: int, scale: int) -> DecimalType:
    """Return Spark's type of a result that needs some digits."""
    if digits <= DECIMAL_DIGITS_MAX:
        return DecimalType(digits, scale)
    whole = digits - scale
    return DecimalType(DECIMAL_DIGITS_MAX, max(DECIMAL_DIGITS_MAX - whole, min(scale, _KEPT_SCALE)))


def computed_decimal(left: Fragment, operator: str, right: Fragment) -> Fragment:
    """Return arithmetic of two numbers, of which one is a decimal and none a floating one.

    Raises:
        NotCompiled: Spark could round the result, or the operator is not covered.
    """
    left, right = as_decimal(left), as_decimal(right)
    one, other = _type_of(left), _type_of(right)
    if operator == "/":
        scale = max(_KEPT_SCALE, one.scale + other.digits + 1)
        whole = one.digits - one.scale + other.scale
        type_ = _bounded(whole + scale, scale)
        found = quotient(left, right, type_)
        return replace(found, raises=found.raises or whole > type_.digits - type_.scale)
    if operator in {"+", "-"}:
        scale = max(one.scale, other.scale)
        digits = max(one.digits - one.scale, other.digits - other.scale) + scale + 1
    elif operator == "*":
        scale, digits = one.scale + other.scale, one.digits + other.digits + 1
    else:
        raise NotCompiled("operator")
    if digits > DECIMAL_DIGITS_MAX:
        raise NotCompiled("digits of a decimal")
    type_ = DecimalType(digits, scale)
    return made(f"CAST(({{}} {operator} {{}}) AS {type_.sql})", type_.text, (left, right))


def quotient(left: Fragment, right: Fragment, type_: DecimalType) -> Fragment:
    """Return the quotient of two decimals as a decimal, rounded half up.

    Raises:
        NotCompiled: The result has fewer digits after the point than an operand.
    """
    one, other = _type_of(left), _type_of(right)
    shift = type_.scale + other.scale - one.scale
    if shift < 0 or one.digits + one.scale > DECIMAL_DIGITS_MAX:
        raise NotCompiled("digits of a decimal")
    # Both as integers, so that their quotient is the result without its point. DuckDB raises if
    # twice the first one has more than 127 bits, so it is below 10^38.
    above = f"({_whole(left, one)} * CAST('1{'0' * shift}' AS HUGEINT))"
    below = _whole(right, other)
    rounded = f"((2 * abs({above}) + abs({below})) // (2 * abs({below})))"
    whole = f"CAST(sign({left.sql}) * sign({right.sql}) * {rounded} AS DECIMAL(38, 0))"
    unit = f"CAST('0.{'1':0>{type_.scale}}' AS DECIMAL({type_.scale}, {type_.scale}))"
    sql = f"CAST(({whole} * {unit}) AS {type_.sql})"
    parameters = (*left.parameters, *right.parameters) * 2 + right.parameters
    is_checked = not right.is_never_zero and not right.constant
    if is_checked:
        sql = f"(CASE WHEN {right.sql} = 0 THEN error('division by zero') ELSE {sql} END)"
        parameters = (*right.parameters, *parameters)
    is_error = is_checked or left.raises or right.raises
    return Fragment(sql, type_.text, parameters, raises=is_error)


def _whole(piece: Fragment, type_: DecimalType) -> str:
    """Return a decimal as an integer: its digits without the point."""
    if not type_.scale:
        return f"CAST({piece.sql} AS HUGEINT)"
    return f"CAST(({piece.sql} * CAST('1{'0' * type_.scale}' AS HUGEINT)) AS HUGEINT)"


def sum_type(type_: str) -> DecimalType:
    """Return the type of a sum of decimals.

    Raises:
        NotCompiled: A sum of it could have more digits than a decimal.
    """
    found = decimal_type(type_)
    if found is None or found.digits + _SUM_DIGITS > DECIMAL_DIGITS_MAX:
        raise NotCompiled("digits of a decimal")
    return DecimalType(found.digits + _SUM_DIGITS, found.scale)


def mean_type(type_: str) -> DecimalType:
    """Return the type of a mean of decimals.

    Raises:
        NotCompiled: A sum of it could have more digits than a decimal.
    """
    found = sum_type(type_)
    digits = found.digits - _SUM_DIGITS + _MEAN_DIGITS
    return DecimalType(digits, found.scale + _MEAN_DIGITS)
