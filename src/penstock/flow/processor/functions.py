"""The functions of the expression language, one table.

Owns what each does and how many arguments it takes. Does not own the notation (`expressions`).

Invariants: a value is text, a number or a boolean; a function has no side effect; what it cannot
do raises `InvalidRequest` with the mend.
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
    """One function.

    Attributes:
        run: Takes the subject, then the arguments.
        least: Arguments it needs.
        most: Arguments it takes.
        about: What it does, for the documentation.
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
        InvalidRequest: It is none.
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
        raise InvalidRequest(f"{text!r} is no number: give one") from None


def as_bool(value: Value) -> bool:
    """Return a value as a boolean: the text ``true``, in any case, is true."""
    return value if isinstance(value, bool) else as_text(value).lower() == "true"


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"{text!r} is no regular expression: {error}; mend it") from None


def _substring(subject: Value, start: Value, end: Value | None = None) -> str:
    text, first = as_text(subject), int(as_number(start))
    last = len(text) if end is None else int(as_number(end))
    if not 0 <= first <= last:
        raise InvalidRequest(f"{first} to {last} is no part of a text: count from 0")
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
        raise InvalidRequest(f"{as_text(new)!r} is no replacement: {error}; mend it") from None


def _bounded(text: str) -> str:
    if len(text) > _MAX_RESULT_CHARS:
        raise InvalidRequest(f"the result is longer than {_MAX_RESULT_CHARS:,} characters")
    return text


def _divide(subject: Value, by: Value) -> Value:
    left, right = as_number(subject), as_number(by)
    if not right:
        raise InvalidRequest("division by zero: check the divisor first")
    if isinstance(left, int) and isinstance(right, int):
        # Towards zero, as in NiFi; exact, where a float of large numbers is not.
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
                f"{part!r} in {pattern!r} is no part of a date: there are yyyy, MM, dd, DDD, HH, "
                "mm, ss, SSS and 'text'"
            )
        else:
            tokens.append(part.replace("%", "%%"))
    return tuple(tokens)


def _format(subject: Value, pattern: Value) -> str:
    ms = int(as_number(subject))
    try:
        moment = datetime.fromtimestamp(ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidRequest(f"{ms} is no time in epoch milliseconds: give one") from None
    tokens = (f"{ms % 1000:03d}" if t == "SSS" else t for t in _date_tokens(as_text(pattern)))
    return moment.strftime("".join(tokens))


def _compared(test: Callable[[float, float], bool]) -> Callable[[Value, Value], bool]:
    return lambda subject, other: test(as_number(subject), as_number(other))


def _to_date(subject: Value) -> int:
    try:
        moment = datetime.fromisoformat(as_text(subject).strip())
    except ValueError:
        raise InvalidRequest(
            f"{as_text(subject)!r} is no time: write one such as 2026-01-15T10:20:30Z"
        ) from None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


FUNCTIONS: Final[Mapping[str, Function]] = {
    "toUpper": Function(lambda s: as_text(s).upper(), 0, 0, "in capital letters"),
    "toLower": Function(lambda s: as_text(s).lower(), 0, 0, "in small letters"),
    "trim": Function(lambda s: as_text(s).strip(), 0, 0, "without blanks at both ends"),
    "length": Function(lambda s: len(as_text(s)), 0, 0, "how many characters"),
    "append": Function(lambda s, t: as_text(s) + as_text(t), 1, 1, "with a text behind"),
    "prepend": Function(lambda s, t: as_text(t) + as_text(s), 1, 1, "with a text before"),
    "substring": Function(_substring, 1, 2, "from one place, counted from 0, to before another"),
    "substringBefore": Function(_before, 1, 1, "before the first place of a text"),
    "substringBeforeLast": Function(_before_last, 1, 1, "before the last place of a text"),
    "substringAfter": Function(_after, 1, 1, "after the first place of a text"),
    "substringAfterLast": Function(_after_last, 1, 1, "after the last place of a text"),
    "replace": Function(_replace, 2, 2, "a text replaced by another"),
    "replaceAll": Function(_replace_all, 2, 2, "what a regular expression matches, replaced"),
    "replaceEmpty": Function(
        lambda s, t: s if as_text(s).strip() else t, 1, 1, "another value if it is blank"
    ),
    "urlEncode": Function(lambda s: quote(as_text(s), safe=""), 0, 0, "fit for a URL"),
    "urlDecode": Function(lambda s: unquote(as_text(s)), 0, 0, "as it was before urlEncode"),
    "isEmpty": Function(lambda s: not as_text(s).strip(), 0, 0, "whether it is missing or blank"),
    "equals": Function(lambda s, t: as_text(s) == as_text(t), 1, 1, "whether it is that text"),
    "equalsIgnoreCase": Function(
        lambda s, t: as_text(s).casefold() == as_text(t).casefold(), 1, 1, "the same, in any case"
    ),
    "startsWith": Function(
        lambda s, t: as_text(s).startswith(as_text(t)), 1, 1, "whether it begins with a text"
    ),
    "endsWith": Function(
        lambda s, t: as_text(s).endswith(as_text(t)), 1, 1, "whether it ends with a text"
    ),
    "contains": Function(
        lambda s, t: as_text(t) in as_text(s), 1, 1, "whether a text is in it"
    ),
    "matches": Function(
        lambda s, p: _pattern(as_text(p)).fullmatch(as_text(s)) is not None,
        1, 1, "whether a regular expression matches all of it",
    ),
    "find": Function(
        lambda s, p: _pattern(as_text(p)).search(as_text(s)) is not None,
        1, 1, "whether a regular expression matches a part of it",
    ),
    "in": Function(
        lambda s, *t: as_text(s) in map(as_text, t), 1, 100, "whether it is one of the arguments"
    ),
    "not": Function(lambda s: not as_bool(s), 0, 0, "true if it is not true"),
    "and": Function(lambda s, t: as_bool(s) and as_bool(t), 1, 1, "whether both are true"),
    "or": Function(lambda s, t: as_bool(s) or as_bool(t), 1, 1, "whether one is true"),
    "ifElse": Function(
        lambda s, a, b: a if as_bool(s) else b, 2, 2, "the first argument if true, else the other"
    ),
    "gt": Function(_compared(lambda a, b: a > b), 1, 1, "whether the number is greater"),
    "ge": Function(_compared(lambda a, b: a >= b), 1, 1, "greater or equal"),
    "lt": Function(_compared(lambda a, b: a < b), 1, 1, "whether the number is less"),
    "le": Function(_compared(lambda a, b: a <= b), 1, 1, "less or equal"),
    "toNumber": Function(as_number, 0, 0, "as a number"),
    "plus": Function(lambda s, n: as_number(s) + as_number(n), 1, 1, "the sum"),
    "minus": Function(lambda s, n: as_number(s) - as_number(n), 1, 1, "the difference"),
    "multiply": Function(lambda s, n: as_number(s) * as_number(n), 1, 1, "the product"),
    "divide": Function(_divide, 1, 1, "the quotient; of whole numbers a whole number"),
    "mod": Function(_mod, 1, 1, "the remainder of a division"),
    "toDate": Function(_to_date, 0, 0, "epoch milliseconds of an ISO 8601 time"),
    "format": Function(_format, 1, 1, "epoch milliseconds as text, such as yyyy-MM-dd, in UTC"),
}  # fmt: skip

SUBJECTLESS: Final[Mapping[str, Function]] = {
    "now": Function(lambda now_ms: now_ms, 0, 0, "the time, in epoch milliseconds"),
    "literal": Function(lambda _now_ms, value: value, 1, 1, "the argument, to call functions on"),
}
"""Functions that stand where the name of an attribute would; they take the time first."""
