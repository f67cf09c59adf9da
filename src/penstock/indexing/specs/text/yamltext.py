"""A spec written as YAML: the part of YAML that has an unambiguous meaning in JSON.

Owns the meaning of an unquoted scalar: values are parsed as in YAML 1.2, so `yes` and `2013-01-01`
are text. Does not own notation, nor the refused parts of YAML (`core.yamltree`).

Invariant: a number is read exactly, or refused; none is rounded to a JSON number.
"""

from __future__ import annotations

import math
import re
from typing import Final

from pydantic import JsonValue

from penstock.core.yaml_tree import InvalidYaml, Node, YamlLimits, read_tree
from penstock.indexing.specs.errors import Mistake, SpecError

_BYTES_MAX: Final = 1024 * 1024
# There are at most as many values as bytes.
_LIMITS: Final = YamlLimits(_BYTES_MAX, depth=100, values=_BYTES_MAX, mend="write JSON")
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


def _plain(node: Node) -> JsonValue:
    value = node.value
    if isinstance(value, dict):
        for name in node.keys.values():
            if not isinstance(_plain(name), str):
                raise InvalidYaml(name.line, name.column, "a name must be text: put it in quotes")
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if value is None or not node.is_plain else _meant(value, node)


def _meant(text: str, node: Node) -> JsonValue:
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


def _too_large(node: Node) -> InvalidYaml:
    return InvalidYaml(
        node.line,
        node.column,
        "a number of more than 64 bits: put it in quotes, or use a smaller one",
    )
