"""Whole numbers of requests: what fits into 64 bits with a sign, as databases and JVMs keep them.

Python's own numbers have no bound, but making one of more than 4,300 digits raises ValueError, and
a database refuses one of more than 64 bits only when it is asked. So requests are checked first.
"""

from __future__ import annotations

from typing import Final, TypeGuard

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = len(str(INT64_MAX))


def is_int64(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number that fits; to Python true and false are numbers."""
    return (
        isinstance(value, int) and not isinstance(value, bool) and INT64_MIN <= value <= INT64_MAX
    )


def int64_of(text: str) -> int | None:
    """Return the number that a text of ASCII digits is, with or without a minus; None: it is none.

    A number that does not fit is none.
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
