"""Functions of the expression language, in one table.

Owns the effect of each function and the number of its arguments. Does not own the notation
(`expression_language`).

Invariants: a value is text, a number or a boolean. A function has no side effects. For an argument
that it cannot process it raises `InvalidRequest` with the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

from penstock.core.errors import InvalidRequest

Value: TypeAlias = str | int | float | bool

_MAX_RESULT_CHARS: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Function:
    """Function of the expression language.

    Attributes:
        run: Called with the subject, then the arguments.
        least: Minimum number of arguments.
        most: Maximum number of arguments.
        about: Description for the documentation.
    """

    run: Callable[..., Value]
    least: int
    most: int
    about: str


def as_text(value: Value) -> str:
    """Return a value as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def as_number(value: Value) -> int | float:
    """Return a value as a number.

    Raises:
        InvalidRequest: The value is not a number.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = as_text(value).strip()
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(f"{text!r} is not a number: use a number such as 12 or 0.5") from None


def as_bool(value: Value) -> bool:
    """Return a value as a boolean. The text ``true``, in upper or lower case, is true."""
    return value if isinstance(value, bool) else as_text(value).lower() == "true"


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(
            f"{text!r} is not a valid regular expression: {error}; correct it"
        ) from None


def _substring(subject: Value, start: Value, end: Value | None = None) -> str:
    text, first = as_text(subject), int(as_number(start))
    last = len(text) if end is None else int(as_number(end))
    if not 0 <= first <= last:
        raise InvalidRequest(
            f"invalid range {first} to {last}: count from 0, and end at or after the start"
        )
    return text[first:last]


def _before(subject: Value, mark: Value) -> str:
    return as_text(subject).partition(as_text(mark))[0] if mark else as_text(subject)


def _before_last(subject: Value, mark: Value) -> str:
    text = as_text(subject)
    head, found, _ = text.rpartition(as_text(mark)) if mark else (text, "", "")
    return head if found else text


def _after(subject: Value, mark: Value) -> str:
    text = as_text(subject)
    _, found, tail = text.partition(as_text(mark)) if mark else (text, "", "")
    return tail if found else text


def _after_last(subject: Value, mark: Value) -> str:
    return as_text(subject).rpartition(as_text(mark))[2] if mark else as_text(subject)


def _replace(subject: Value, old: Value, new: Value) -> str:
    return _bounded(as_text(subject).replace(as_text(old), as_text(new)))


def _replace_all(subject: Value, pattern: Value, new: Value) -> str:
    try:
        return _bounded(_pattern(as_text(pattern)).sub(as_text(new), as_text(subject)))
    except (re.error, IndexError) as error:
        raise InvalidRequest(
            f"{as_text(new)!r} is not a valid replacement: {error}; correct it"
        ) from None


def _bounded(text: str) -> str:
    if len(text) > _MAX_RESULT_CHARS:
        raise InvalidRequest(f"the result is longer than {_MAX_RESULT_CHARS:,} characters")
    return text


def _divide(subject: Value, by: Value) -> Value:
    left, right = as_number(subject), as_number(by)
    if not right:
        raise InvalidRequest("division by zero: check the divisor first")
    if isinstance(left, int) and isinstance(right, int):
        # Rounds towards zero, as NiFi does. Exact, unlike a float division of large numbers.
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return left / right


def _mod(subject: Value, by: Value) -> Value:
    right = as_number(by)
    if not right:
        raise InvalidRequest("division by zero: check the divisor first")
    return as_number(subject) % right


_DATE_PARTS: Final = {
    "yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "DDD": "%j",
}  # fmt: skip
_DATE_TOKEN: Final = re.compile(r"'([^']*)'|yyyy|SSS|DDD|MM|dd|HH|mm|ss|[A-Za-z]+|[^A-Za-z']+")


@lru_cache(maxsize=64)
def _date_tokens(pattern: str) -> tuple[str, ...]:
    tokens: list[str] = []
    for match in _DATE_TOKEN.finditer(pattern):
        part = match[0]
        if part.startswith("'"):
            tokens.append(match[1].replace("%", "%%"))
        elif part in _DATE_PARTS:
            tokens.append(_DATE_PARTS[part])
        elif part == "SSS":
            tokens.append("SSS")
        elif part[0].isalpha():
            raise InvalidRequest(
                f"unknown letters {part!r} in date pattern {pattern!r}: use yyyy, MM, dd, DDD, "
                "HH, mm, ss, SSS and 'text'"
            )
        else:
            tokens.append(part.replace("%", "%%"))
    return tuple(tokens)


def _format(subject: Value, pattern: Value) -> str:
    ms = int(as_number(subject))
    try:
        moment = datetime.fromtimestamp(ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidRequest(f"{ms} is out of range for a time: use epoch milliseconds") from None
    tokens = (f"{ms % 1000:03d}" if t == "SSS" else t for t in _date_tokens(as_text(pattern)))
    return moment.strftime("".join(tokens))


def _compared(test: Callable[[float, float], bool]) -> Callable[[Value, Value], bool]:
    return lambda subject, other: test(as_number(subject), as_number(other))


def _to_date(subject: Value) -> int:
    try:
        moment = datetime.fromisoformat(as_text(subject).strip())
    except ValueError:
        raise InvalidRequest(
            f"{as_text(subject)!r} is not a valid time: write one such as 2026-01-15T10:20:30Z"
        ) from None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


FUNCTIONS: Final[Mapping[str, Function]] = {
    "toUpper": Function(lambda s: as_text(s).upper(), 0, 0, "the text in upper case"),
    "toLower": Function(lambda s: as_text(s).lower(), 0, 0, "the text in lower case"),
    "trim": Function(lambda s: as_text(s).strip(), 0, 0, "the text without spaces at both ends"),
    "length": Function(lambda s: len(as_text(s)), 0, 0, "number of characters"),
    "append": Function(lambda s, t: as_text(s) + as_text(t), 1, 1, "the text with another text "
                                                                   "added at the end"),
    "prepend": Function(lambda s, t: as_text(t) + as_text(s), 1, 1, "the text with another text "
                                                                    "added at the start"),
    "substring": Function(_substring, 1, 2, "characters from one index, counted from 0, up to "
                                            "but not including another"),
    "substringBefore": Function(_before, 1, 1, "the part before the first occurrence of a text"),
    "substringBeforeLast": Function(_before_last, 1, 1, "the part before the last occurrence of "
                                                        "a text"),
    "substringAfter": Function(_after, 1, 1, "the part after the first occurrence of a text"),
    "substringAfterLast": Function(_after_last, 1, 1, "the part after the last occurrence of a "
                                                      "text"),
    "replace": Function(_replace, 2, 2, "replaces each occurrence of a text with another"),
    "replaceAll": Function(_replace_all, 2, 2, "replaces each match of a regular expression"),
    "replaceEmpty": Function(
        lambda s, t: s if as_text(s).strip() else t, 1, 1, "another value if the subject is "
                                                           "blank"
    ),
    "urlEncode": Function(lambda s: quote(as_text(s), safe=""), 0, 0, "the text encoded for a "
                                                                      "URL"),
    "urlDecode": Function(lambda s: unquote(as_text(s)), 0, 0, "the text decoded from a URL"),
    "isEmpty": Function(lambda s: not as_text(s).strip(), 0, 0, "whether the subject is missing "
                                                                "or blank"),
    "equals": Function(lambda s, t: as_text(s) == as_text(t), 1, 1, "whether the subject equals "
                                                                    "a text"),
    "equalsIgnoreCase": Function(
        lambda s, t: as_text(s).casefold() == as_text(t).casefold(), 1, 1, "whether it equals a "
                                                                           "text, ignoring case"
    ),
    "startsWith": Function(
        lambda s, t: as_text(s).startswith(as_text(t)), 1, 1, "whether it starts with a text"
    ),
    "endsWith": Function(
        lambda s, t: as_text(s).endswith(as_text(t)), 1, 1, "whether it ends with a text"
    ),
    "contains": Function(
        lambda s, t: as_text(t) in as_text(s), 1, 1, "whether it contains a text"
    ),
    "matches": Function(
        lambda s, p: _pattern(as_text(p)).fullmatch(as_text(s)) is not None,
        1, 1, "whether a regular expression matches the whole text",
    ),
    "find": Function(
        lambda s, p: _pattern(as_text(p)).search(as_text(s)) is not None,
        1, 1, "whether a regular expression matches part of the text",
    ),
    "in": Function(
        lambda s, *t: as_text(s) in map(as_text, t), 1, 100, "whether it equals one of the "
                                                             "arguments"
    ),
    "not": Function(lambda s: not as_bool(s), 0, 0, "true if the subject is not true"),
    "and": Function(lambda s, t: as_bool(s) and as_bool(t), 1, 1, "whether both are true"),
    "or": Function(lambda s, t: as_bool(s) or as_bool(t), 1, 1, "whether at least one is true"),
    "ifElse": Function(
        lambda s, a, b: a if as_bool(s) else b, 2, 2, "the first argument if the subject is true, "
                                                      "otherwise the second"
    ),
    "gt": Function(_compared(lambda a, b: a > b), 1, 1, "whether the number is greater than "
                                                        "another"),
    "ge": Function(_compared(lambda a, b: a >= b), 1, 1, "whether the number is greater or equal"),
    "lt": Function(_compared(lambda a, b: a < b), 1, 1, "whether the number is less than another"),
    "le": Function(_compared(lambda a, b: a <= b), 1, 1, "whether the number is less or equal"),
    "toNumber": Function(as_number, 0, 0, "the subject as a number"),
    "plus": Function(lambda s, n: as_number(s) + as_number(n), 1, 1, "the sum"),
    "minus": Function(lambda s, n: as_number(s) - as_number(n), 1, 1, "the difference"),
    "multiply": Function(lambda s, n: as_number(s) * as_number(n), 1, 1, "the product"),
    "divide": Function(_divide, 1, 1, "the quotient; for two integers an integer"),
    "mod": Function(_mod, 1, 1, "the remainder of a division"),
    "toDate": Function(_to_date, 0, 0, "epoch milliseconds of an ISO 8601 time"),
    "format": Function(_format, 1, 1, "epoch milliseconds formatted with a pattern such as "
                                      "yyyy-MM-dd, in UTC"),
}  # fmt: skip

SUBJECTLESS: Final[Mapping[str, Function]] = {
    "now": Function(lambda now_ms: now_ms, 0, 0, "the current time, in epoch milliseconds"),
    "literal": Function(
        lambda _now_ms, value: value,
        1,
        1,
        "the argument itself, as the subject of further functions",
    ),
}
"""Functions that replace the attribute name at the start of an expression. Their first argument is
the time.
"""
