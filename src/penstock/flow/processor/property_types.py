"""Types of property values: how their text is parsed, and how they are documented.

Owns the types of values. Does not own properties (`properties`) nor the expression
language (`expression_language`).

Invariants: a kind has no state. `parse` raises only `InvalidRequest`, with the expected form.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

from penstock.core.byte_sizes import parse_size
from penstock.core.durations import parse_nifi_period
from penstock.core.errors import InvalidRequest
from penstock.core.printable import quoted
from penstock.core.whole_numbers import int64_of

T = TypeVar("T")

# Types that a flow's file may use for a property; None leaves the property unset.
PropertyValue: TypeAlias = "str | int | float | bool | Sequence[str] | None"

MAX_VALUE_CHARS: Final = 1 << 20
_MAX_REGEX_CHARS: Final = 10_000
_NS_PER_MS: Final = 1_000_000
_TRUE: Final = {"true", "yes", "on"}
_FALSE: Final = {"false", "no", "off"}


@dataclass(frozen=True)
class PropertyType(Generic[T]):
    """Type of values.

    Attributes:
        name: Name in the documentation, such as ``period``.
        parse: Converts the text to a value.
        choices: The only texts allowed, if they are few.
        separator: Separator of the items of a list; empty for other types.
    """

    name: str
    parse: Callable[[str], T]
    choices: tuple[str, ...] = ()
    separator: str = ""

    def read(self, value: PropertyValue) -> T:
        """Return the value for an entry of a flow's file.

        Raises:
            InvalidRequest: The entry is not of this kind.
        """
        return self.parse(text_of(value, self.separator))


def text_of(value: PropertyValue, separator: str = "") -> str:
    """Return a property's value as text, as NiFi stores all values.

    Raises:
        InvalidRequest: The value is not a text, number or boolean, nor a list of texts where a list
            is allowed.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        text = str(value)
    elif separator and isinstance(value, list | tuple) and all(isinstance(i, str) for i in value):
        text = separator.join(_without(separator, item) for item in value)
    else:
        wanted = "text, a number, true, false or a list of texts" if separator else "text"
        raise InvalidRequest(f"{value!r} has an unsupported type: write {wanted}")
    if len(text) > MAX_VALUE_CHARS:
        raise InvalidRequest(
            f"the value has {len(text):,} characters, more than the maximum of "
            f"{MAX_VALUE_CHARS:,}: shorten it"
        )
    return text


def _without(separator: str, item: str) -> str:
    if separator in item:
        raise InvalidRequest(f"item {item!r} contains the separator {separator!r}: remove it")
    return item


def _parse_int(text: str) -> int:
    number = int64_of(text.strip())
    if number is None:
        raise InvalidRequest(f"{quoted(text)} is not an integer of 64 bits: write one such as 100")
    return number


def _parse_float(text: str) -> float:
    try:
        return float(text.strip())
    except ValueError:
        raise InvalidRequest(f"{text!r} is not a number: write one such as 0.5") from None


def _parse_bool(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in _TRUE | _FALSE:
        raise InvalidRequest(f"{text!r} is not a boolean: write true or false")
    return lowered in _TRUE


def _parse_period(text: str) -> int:
    return parse_nifi_period(text) // _NS_PER_MS


def _parse_regex(text: str) -> re.Pattern[str]:
    if len(text) > _MAX_REGEX_CHARS:
        raise InvalidRequest(
            f"the pattern has {len(text):,} characters, which is too long: shorten it"
        )
    try:
        return re.compile(text)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(
            f"{text!r} is not a valid regular expression: {error}; correct it"
        ) from None


def _parse_path(text: str) -> Path:
    if not text or "\0" in text:
        raise InvalidRequest(f"{text!r} is not a valid path: remove the NUL character")
    return Path(text)


def _parse_url(text: str) -> str:
    try:
        parts = urlsplit(text.strip())
        _ = parts.port  # `urlsplit` does not check the port
    except ValueError as error:
        raise InvalidRequest(f"{text!r} is not a valid URL: {error}; correct it") from None
    if not parts.scheme or not (parts.netloc or parts.path):
        raise InvalidRequest(f"{text!r} is not a URL: write one such as https://host/path")
    return text.strip()


STR: Final = PropertyType("text", str)
INT: Final = PropertyType("integer", _parse_int)
FLOAT: Final = PropertyType("number", _parse_float)
BOOL: Final = PropertyType("boolean", _parse_bool, choices=("true", "false"))
PERIOD: Final = PropertyType("period", _parse_period)
"""Milliseconds, written with their unit: ``5 sec``."""
SIZE: Final = PropertyType("size", parse_size)
"""Bytes, written with a unit: ``10 MB``."""
REGEX: Final = PropertyType("regular expression", _parse_regex)
PATH: Final = PropertyType("path", _parse_path)
URL: Final = PropertyType("URL", _parse_url)

_BUILTIN: Final[dict[type, PropertyType[object]]] = {
    str: cast("PropertyType[object]", STR),
    int: cast("PropertyType[object]", INT),
    float: cast("PropertyType[object]", FLOAT),
    bool: cast("PropertyType[object]", BOOL),
    Path: cast("PropertyType[object]", PATH),
}


def choice(*choices: str) -> PropertyType[str]:
    """Return the kind of texts that are one of a few choices."""

    def parse(text: str) -> str:
        if text not in choices:
            raise InvalidRequest(f"unknown choice {text!r}: use one of {', '.join(choices)}")
        return text

    return PropertyType("choice", parse, choices=choices)


def list_of(
    item: type[T] | PropertyType[T], *, separator: str = ","
) -> PropertyType[tuple[T, ...]]:
    """Return the kind of a list. Text is split at the separator; empty items are ignored."""
    kind = type_of(item)

    def parse(text: str) -> tuple[T, ...]:
        items = (part.strip() for part in text.split(separator))
        return tuple(kind.parse(part) for part in items if part)

    return PropertyType(f"list of {kind.name}", parse, choices=kind.choices, separator=separator)


def type_of(kind: type[T] | PropertyType[T]) -> PropertyType[T]:
    """Return the kind for a type: str, int, float, bool, Path, an enum, or a kind itself.

    Raises:
        TypeError: The type has no kind; the author of the processor must pass a kind.
    """
    if isinstance(kind, PropertyType):
        return kind
    known = _BUILTIN.get(kind)
    if known is not None:
        return cast("PropertyType[T]", known)
    if issubclass(kind, enum.Enum):
        return cast("PropertyType[T]", _enum_kind(kind))
    raise TypeError(f"{kind.__name__} is not a type of property values: use a Kind")


def _enum_kind(members: type[enum.Enum]) -> PropertyType[enum.Enum]:
    by_value = {str(member.value): member for member in members}

    def parse(text: str) -> enum.Enum:
        member = by_value.get(text)
        if member is None:
            raise InvalidRequest(f"unknown choice {text!r}: use one of {', '.join(by_value)}")
        return member

    return PropertyType("choice", parse, choices=tuple(by_value))
