"""Whole numbers in requests: signed 64-bit numbers, as in databases and JVMs.

Python's numbers have no limit. But parsing one of more than 4,300 digits raises ValueError, and a
database refuses one of more than 64 bits only in a query. So requests are checked first.
"""

from __future__ import annotations

from typing import Final, TypeGuard

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = len(str(INT64_MAX))


def is_int64(value: object) -> TypeGuard[int]:
    """Return whether a value is an int, and not a bool, in the range of 64 bits."""
    return (
        isinstance(value, int) and not isinstance(value, bool) and INT64_MIN <= value <= INT64_MAX
    )


def within_int64(value: int) -> int:
    """Return a whole number, or the nearest one that fits."""
    return min(max(value, INT64_MIN), INT64_MAX)


def int64_of(text: str) -> int | None:
    """Parse a text of ASCII digits with an optional minus sign; return None if it is invalid.

    A number outside the range is invalid.
    """
    sign = "-" if text.startswith("-") else ""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        return None
    digits = digits.lstrip("0") or "0"
    if len(digits) > _DIGITS_MAX:
        return None
    number = int(sign + digits)
    return number if is_int64(number) else None
