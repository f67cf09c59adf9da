"""Safe YAML reader: texts, mappings and lists with line and column, and no other YAML features.

Owns notation and limits. Does not own the meaning of a document, nor the display of its problems.
JSON is accepted, because it is YAML.

Invariants:

- A scalar is its text as written (``0755``, ``1.10`` and ``no`` are not converted), except that an
  empty scalar, ``null`` and ``~`` without quotes are None. The caller, which knows the type,
  converts.
- No tags, anchors or aliases, one document, no duplicate keys, no lone surrogates: so the result
  contains only values that the reader of the file sees, and its size is bounded by that of the
  file.
- Bytes, depth and number of values are bounded while reading, before any object is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import yaml
from yaml.error import Mark
from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
)
from yaml.reader import ReaderError
from yaml.tokens import ScalarToken

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from yaml._yaml import Mark as CMark

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML was built without libyaml: the same events, 30 times slower
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]  # has the same events

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_HALF_CHARACTER: Final = re.compile("[\ud800-\udfff]")
_COMMENT: Final = re.compile(r"(?:(?<=\s)|^)#")
_LINE: Final = re.compile("[^\n\r\x85\u2028\u2029]*(?:\r\n|[\n\r\x85\u2028\u2029]|$)")


@dataclass(frozen=True, slots=True)
class YamlLimits:
    """Limits of a document.

    Attributes:
        size_bytes: Size of the document in UTF-8.
        depth: Number of mappings and lists around a value.
        values: Number of keys and values together.
        remedy: Remedy for a document over a limit, such as ``split the flow``.
    """

    size_bytes: int
    depth: int
    values: int
    remedy: str


class InvalidYaml(InvalidRequest):
    """A document that cannot be read.

    Attributes:
        line: Line of the problem, from 1.
        column: Column of the problem, from 1.
        reason: The problem and its remedy.
    """

    def __init__(self, line: int, column: int, reason: str) -> None:
        super().__init__(reason, place=f"line {line}, column {column}")
        self.line = line
        self.column = column
        self.reason = reason


@dataclass(slots=True)
class YamlNode:
    """A value of the document and where it begins; lines and columns count from 1.

    Attributes:
        value: Text or None; nodes by key; or nodes in order.
        line: Its line.
        column: Its column.
        is_plain: It is a scalar without quotes, so that it may be more than text, such as null.
        keys: For a mapping: the scalar node of each key.
    """

    value: str | dict[str, YamlNode] | list[YamlNode] | None
    line: int
    column: int
    is_plain: bool = False
    keys: Mapping[str, YamlNode] = field(default_factory=lambda: _NO_KEYS)


_NO_KEYS: Final[Mapping[str, YamlNode]] = MappingProxyType({})


def read_tree(document: str | bytes, limits: YamlLimits) -> YamlNode | None:
    """Read a document; return None if it is empty.

    Args:
        document: YAML or JSON; bytes are UTF-8.
        limits: Limits of the document.

    Raises:
        InvalidYaml: The document is not YAML, uses a refused feature, or is over a limit.
    """
    text = _within(document, limits)
    try:
        loader = _Loader(text)
        try:
            return _Reader(iter(loader.get_event, None), limits).document()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        context = f" {error.context}" if error.context else ""
        tab = "; indent with spaces, not with a tab" if _is_tab(text, mark) else ""
        reason = f"invalid YAML: {error.problem}{context}{tab}"
        raise InvalidYaml(*_place(mark), reason) from None
    except ReaderError as error:
        before = text[: error.position] if isinstance(error.position, int) else ""
        line = before.count("\n") + 1
        column = len(before) - (before.rfind("\n") + 1) + 1
        raise InvalidYaml(line, column, f"invalid YAML: {error.reason}") from None
    except UnicodeEncodeError:
        raise InvalidYaml(1, 1, "the text is not Unicode: write the file in UTF-8") from None


@dataclass(frozen=True, slots=True)
class YamlComment:
    """A comment of a document.

    Attributes:
        line: Its line, from 1.
        text: The text from `#` to the end of the line, without spaces at the end.
        is_alone: Nothing stands before it in its line.
    """

    line: int
    text: str
    is_alone: bool


def comments_in(document: str | bytes) -> Iterator[YamlComment]:
    """Yield the comments of a document that `read_tree` accepts, in their order.

    A comment beside the header of a block scalar (`key: |  # why`) is not found.
    """
    text = document if isinstance(document, str) else _decoded(document)
    loader = _Loader(text)
    try:
        tokens = iter(loader.get_token, None)
        scalars = (token for token in tokens if isinstance(token, ScalarToken))
        yield from _outside_of(scalars, text)
    finally:
        loader.dispose()


def _outside_of(scalars: Iterator[ScalarToken], text: str) -> Iterator[YamlComment]:
    """Yield the comments outside of texts, which come in order; both are read once."""
    following = next(scalars, None)
    near: list[ScalarToken] = []  # those that may reach into the line
    for number, found in enumerate(_LINE.finditer(text)):
        line = found[0]
        if "#" not in line:
            continue
        while following is not None and following.start_mark.line <= number:
            if following.end_mark.line >= number:
                near.append(following)
            following = next(scalars, None)
        near = [one for one in near if one.end_mark.line >= number]
        for match in _COMMENT.finditer(line):
            at = match.start()
            if not any(_covers(one, number, at) for one in near):
                yield YamlComment(number + 1, line[at:].rstrip(), not line[:at].strip())
                break


def _covers(scalar: ScalarToken, line: int, column: int) -> bool:
    start, end = scalar.start_mark, scalar.end_mark
    return (start.line, start.column) <= (line, column) < (end.line, end.column)


def _within(document: str | bytes, limits: YamlLimits) -> str:
    """Return the text of a document that is within the size limit."""
    too_long = len(document) > limits.size_bytes
    if isinstance(document, str):
        # A character has at least one byte, so a document that is far too long is not encoded.
        too_long = too_long or len(document.encode(errors="surrogatepass")) > limits.size_bytes
    if too_long:
        size = f"{limits.size_bytes >> 20} MiB"
        raise InvalidYaml(1, 1, f"the file is larger than {size}: {limits.remedy}")
    return document if isinstance(document, str) else _decoded(document)


def _decoded(document: bytes) -> str:
    try:
        return document.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = document[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise InvalidYaml(line, column, "this byte is not UTF-8: write the file in UTF-8") from None


def _is_tab(text: str, mark: Mark | None) -> bool:
    lines = text.splitlines()[mark.line : mark.line + 1] if mark is not None else []
    return bool(lines) and "\t" in lines[0][: len(lines[0]) - len(lines[0].lstrip())]


def _place(mark: Mark | CMark | None) -> tuple[int, int]:
    return (1, 1) if mark is None else (mark.line + 1, mark.column + 1)


def _refused(event: Event, reason: str) -> InvalidYaml:
    return InvalidYaml(*_place(event.start_mark), reason)


class _Reader:
    """Builds the tree of one document."""

    def __init__(self, events: Iterator[Event], limits: YamlLimits) -> None:
        self._events = events
        self._limits = limits
        self._values = 0

    def document(self) -> YamlNode | None:
        root: YamlNode | None = None
        documents = 0
        for event in self._events:
            if isinstance(event, NodeEvent):
                root = self._node(event, 0)
            elif isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _refused(event, "a second document: write one document per file")
        return root

    def _node(self, event: Event, depth: int) -> YamlNode:
        self._check(event, depth)
        if isinstance(event, ScalarEvent):
            return _scalar(event)
        line, column = _place(event.start_mark)
        if isinstance(event, MappingStartEvent):
            return self._mapping(line, column, depth + 1)
        items: list[YamlNode] = []
        while not isinstance(inner := next(self._events), SequenceEndEvent):
            items.append(self._node(inner, depth + 1))
        return YamlNode(items, line, column)

    def _mapping(self, line: int, column: int, depth: int) -> YamlNode:
        fields: dict[str, YamlNode] = {}
        keys: dict[str, YamlNode] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            self._check(event, depth)
            if not isinstance(event, ScalarEvent):
                raise _refused(event, "a key that is a list or a mapping: write a text")
            key: str = event.value
            if key in keys:
                raise _refused(
                    event,
                    f"duplicate key {key!r}, first in line {keys[key].line}: give each key its "
                    "own name",
                )
            keys[key] = _scalar(event)
            fields[key] = self._node(next(self._events), depth)
        return YamlNode(fields, line, column, keys=keys)

    def _check(self, event: Event, depth: int) -> None:
        """Refuse values over a limit and unsupported features of YAML."""
        self._values += 1
        if self._values > self._limits.values:
            raise _refused(
                event, f"more than {self._limits.values:,} values: {self._limits.remedy}"
            )
        if depth > self._limits.depth:
            raise _refused(event, f"nested deeper than {self._limits.depth}: make it flatter")
        if isinstance(event, AliasEvent):
            raise _refused(event, f"an alias, *{event.anchor}: write the value out")
        assert isinstance(event, ScalarEvent | CollectionStartEvent)
        if event.anchor is not None:
            raise _refused(event, f"an anchor, &{event.anchor}: leave it out")
        if event.tag is not None:
            raise _refused(event, f"a tag, {event.tag}: leave it out")


def _scalar(event: ScalarEvent) -> YamlNode:
    text, is_plain = event.value, event.implicit[0]
    if not text.isascii() and _HALF_CHARACTER.search(text):
        # Only an escape can contain one, and neither a store nor an answer can represent it.
        raise _refused(event, "half of a surrogate pair: write the whole character")
    value = None if is_plain and text in _NULLS else text
    return YamlNode(value, *_place(event.start_mark), is_plain)
