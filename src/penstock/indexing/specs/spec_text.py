"""Parser for the text of a spec, in JSON or YAML, that refuses ambiguous input.

Owns the rules that are stricter than JSON: a duplicate name in an object is an error, because
one of its values would be ignored silently; so is an integer of more than 64 bits, which would
be rounded. `read_yaml` accepts the part of YAML that has one meaning in JSON and reads unquoted
scalars as YAML 1.2: `yes` and `2013-01-01` are text. Does not own YAML notation or the refused
YAML features (`core.yaml_tree`).

Invariant: a number is read exactly as written or refused; none is rounded.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

import orjson
from pydantic import JsonValue, ValidationError

from penstock.core.yaml_tree import InvalidYaml, YamlLimits, YamlNode, read_tree
from penstock.indexing.specs.errors import Mistake, SpecError, spec_error
from penstock.indexing.specs.scalars import SUBMITTED
from penstock.indexing.specs.spec_base import SpecModel

_BYTES_MAX: Final = 1024 * 1024
# There are at most as many values as bytes.
_LIMITS: Final = YamlLimits(_BYTES_MAX, depth=100, values=_BYTES_MAX, remedy="write JSON")
_BOOL: Final = {"true": True, "True": True, "TRUE": True}
_BOOL.update({"false": False, "False": False, "FALSE": False})
_INT: Final = re.compile(r"[-+]?[0-9]+")
_INT_DIGITS_MAX: Final = 20  # of 64 bits; a text of a million digits is not converted
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


def read_yaml(raw: bytes | str) -> JsonValue:
    """Return the value of a YAML text.

    Raises:
        SpecError: It is not YAML, or has a part without an unambiguous meaning in JSON.
    """
    try:
        tree = read_tree(raw, _LIMITS)
        return None if tree is None else _plain(tree)
    except InvalidYaml as error:
        raise SpecError((Mistake(error.place, error.reason),)) from None


def _plain(node: YamlNode) -> JsonValue:
    value = node.value
    if isinstance(value, dict):
        for name in node.keys.values():
            if not isinstance(_plain(name), str):
                raise InvalidYaml(name.line, name.column, "a name must be text: put it in quotes")
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if value is None or not node.is_plain else _meant(value, node)


def _meant(text: str, node: YamlNode) -> JsonValue:
    """Return the value of an unquoted text."""
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        digits = text.lstrip("+-").lstrip("0") or "0"
        if len(digits) > _INT_DIGITS_MAX:
            raise _too_large(node)
        whole = -int(digits) if text[0] == "-" else int(digits)
        if not -(1 << 63) <= whole < 1 << 64:
            raise _too_large(node)
        return whole
    if not _FLOAT.fullmatch(text):
        return text
    number = float(text)
    if math.isinf(number):
        raise _too_large(node)
    return number


def _too_large(node: YamlNode) -> InvalidYaml:
    return InvalidYaml(
        node.line,
        node.column,
        "a number of more than 64 bits: put it in quotes, or use a smaller one",
    )


_Model = TypeVar("_Model", bound=SpecModel)

SPEC_BYTES_MAX: Final = 16 * 1024 * 1024
_DEPTH_MAX: Final = 100
# Texts that begin differently are YAML: objects and lists of JSON begin with these.
_JSON_START: Final = re.compile(r"[ \t\r\n]*[\[{]|[ \t\r\n]*\Z")
_LIST_START: Final = re.compile(r"[ \t\r\n]*\[")
_TOO_DEEP: Final = Mistake(
    "", f"nested deeper than {_DEPTH_MAX} objects and lists: make it flatter"
)


# Shorter ones have less than 64 bits.
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
_DIGITS_MAX: Final = 20
_TOO_LARGE: Final = "a number of more than 64 bits: put it in quotes, or use a smaller one"


class _TooLarge:
    """Marker for a number that JSON parsers would round."""


class _Object(dict[str, object]):
    """An object, and the names that occurred in it more than once."""

    twice: tuple[str, ...]


def read_model(
    model: type[_Model],
    raw: bytes | str | Mapping[str, object],
    names: Callable[[str], str] | None = None,
) -> _Model:
    """Return the model of a text, or of a parsed object.

    Args:
        model: The model.
        raw: The text or the object.
        names: Returns the spelling of a name, for a spec that is submitted; None keeps names.

    Raises:
        SpecError: An `InvalidRequest` that lists every mistake with its place.
    """
    value = read_object(raw) if isinstance(raw, bytes | str) else raw
    if not isinstance(value, dict):
        raise SpecError((Mistake("", "the spec must be a JSON object"),))
    _check_depth(value)
    try:
        # Snake case is only for internal code.
        return model.model_validate(
            value, by_alias=True, by_name=False, context={SUBMITTED: names} if names else None
        )
    except ValidationError as error:
        raise spec_error(error, model) from None


def read_object(raw: bytes | str) -> dict[str, object]:
    """Parse a JSON object.

    Raises:
        SpecError: It is not an object, or has duplicate names; all of them are listed.
    """
    raw = _without_mark(raw)
    # A list of millions would be parsed twice before it is refused.
    value = None if _LIST_START.match(_start(raw)) else _read(raw)
    if not isinstance(value, dict):
        raise SpecError((Mistake("", "the spec must be a JSON object"),))
    return value


def read_list(raw: bytes | str) -> list[JsonValue]:
    """Parse a JSON list. Raises as `read_object`."""
    value = _read(_without_mark(raw))
    if not isinstance(value, list):
        raise SpecError((Mistake("", "must be a JSON list"),))
    return value


def _read(raw: bytes | str) -> object:
    if len(raw) > SPEC_BYTES_MAX:
        text = f"has {len(raw)} bytes, more than {SPEC_BYTES_MAX}: read rows from files"
        raise SpecError((Mistake("", text),))
    if not _JSON_START.match(_start(raw)):
        return read_yaml(raw)
    try:
        value: object = orjson.loads(raw)
    except orjson.JSONDecodeError as error:  # narrow: translates
        _refuse(
            _with_large_numbers(raw)
        )  # For the parser, a number of hundreds of digits is infinite.
        text = f"not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        raise SpecError((Mistake("", text),)) from error
    _refuse(_found(raw))
    return value


def _without_mark(raw: bytes | str) -> bytes | str:
    """Return a text without the byte order mark that some editors write before it."""
    return (
        raw.removeprefix(codecs.BOM_UTF8) if isinstance(raw, bytes) else raw.removeprefix("\ufeff")
    )


def _start(raw: bytes | str) -> str:
    return raw[:100] if isinstance(raw, str) else raw[:100].decode("latin-1")


def _found(raw: bytes | str) -> tuple[Mistake, ...]:
    """Return mistakes that JSON allows, from a second pass: the parser has merged them."""
    whole = _whole if _LONG_NUMBER.search(_encoded(raw)) else None
    try:
        return tuple(_mistakes(json.loads(raw, object_pairs_hook=_object, parse_int=whole), "", 0))
    except RecursionError:
        return (_TOO_DEEP,)


def _with_large_numbers(raw: bytes | str) -> tuple[Mistake, ...]:
    """Return the mistakes of a text that is valid JSON except for too large numbers."""
    try:
        return _found(raw)
    except ValueError:
        return ()


def _refuse(found: tuple[Mistake, ...]) -> None:
    if found:
        raise SpecError(found)


def _encoded(raw: bytes | str) -> bytes:
    # Invalid encodings have been refused, or will be.
    return raw if isinstance(raw, bytes) else raw.encode(errors="replace")


def _check_depth(value: object) -> None:
    """Refuse values that are nested too deep: an object may come from other parsers."""
    level: list[object] = [value]
    for _ in range(_DEPTH_MAX + 1):
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner.extend(v for v in one.values() if isinstance(v, dict | list))
            elif isinstance(one, list):
                inner.extend(v for v in one if isinstance(v, dict | list))
        if not inner:
            return
        level = inner
    raise SpecError((_TOO_DEEP,))


def _whole(text: str) -> int | _TooLarge:
    """Return a whole number; one of a million digits is not converted."""
    if len(text.lstrip("-")) > _DIGITS_MAX or not -(1 << 63) <= int(text) < 1 << 64:
        return _TooLarge()
    return int(text)


def _object(pairs: list[tuple[str, object]]) -> _Object:
    made = _Object(pairs)
    made.twice = ()
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        made.twice = tuple(name for name, count in counts.items() if count > 1)
    return made


def _mistakes(value: object, place: str, depth: int) -> Iterator[Mistake]:
    if depth > _DEPTH_MAX:
        raise SpecError((_TOO_DEEP,))
    if isinstance(value, _TooLarge):
        yield Mistake(place, _TOO_LARGE)
    elif isinstance(value, _Object):
        prefix = f"{place}." if place else ""
        for name in value.twice:
            yield Mistake(f"{prefix}{name}", "occurs more than once: keep one of them")
        for name, inner in value.items():
            yield from _mistakes(inner, f"{prefix}{name}", depth + 1)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _mistakes(inner, f"{place}[{index}]", depth + 1)
