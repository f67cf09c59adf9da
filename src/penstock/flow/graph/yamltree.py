"""YAML read safely: texts, mappings and lists with line and column, and nothing else of YAML.

Owns limits and notation. Does not own what the document means. JSON is read, too: it is YAML.

Invariants:

- A scalar is text as it was written (``0755``, ``1.10`` and ``no`` stay what they are), but for an
  empty one, ``null`` and ``~`` without quotes, which are None. Who knows the type converts it.
- No tags, no anchors, no aliases, one document, no key twice: so nothing is made that the reader of
  the file does not see, and the size of the result is bounded by that of the file.
- Bytes, depth and count of values are bounded while reading, before anything is built on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)
from yaml.reader import ReaderError

from penstock.flow.graph.places import InvalidFlow, Place, Problem

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML was built without libyaml: the same events, ten times slower
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]  # has the same events

MAX_BYTES: Final = 16 << 20
MAX_DEPTH: Final = 64
MAX_VALUES: Final = 1_000_000

_NULLS: Final = {"", "~", "null", "Null", "NULL"}


@dataclass(slots=True)
class Node:
    """A value of the document and where it begins; lines and columns count from 1.

    Attributes:
        value: Text or None; nodes by key; or nodes in order.
        line: Its line.
        column: Its column.
        keys: For a mapping: where each key is.
    """

    value: str | dict[str, Node] | list[Node] | None
    line: int
    column: int
    keys: dict[str, tuple[int, int]]


def read_tree(text: str, file: str = "") -> Node:
    """Read a document.

    Args:
        text: The document, YAML or JSON.
        file: Its name, for errors.

    Raises:
        InvalidFlow: It is no YAML, uses what is refused, or is over a limit.
    """
    # A character has one byte at least, so what is far too long is not encoded to be measured.
    if len(text) > MAX_BYTES or len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise _wrong(file, 1, 1, f"the file has more than {MAX_BYTES >> 20} MiB: split the flow")
    try:
        events = _events(text)
        return _Reader(file).read(events)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        context = f" {error.context}" if error.context else ""
        tab = "; indent with blanks, not with a tab" if _is_tab(text, mark) else ""
        raise _wrong(
            file, line, column, f"this is no YAML: {error.problem}{context}{tab}"
        ) from None
    except ReaderError as error:
        before = text[: error.position] if isinstance(error.position, int) else ""
        line = before.count("\n") + 1
        column = len(before) - (before.rfind("\n") + 1) + 1
        raise _wrong(file, line, column, f"this is no YAML: {error.reason}") from None
    except UnicodeEncodeError:
        raise _wrong(file, 1, 1, "the text is not Unicode: write the file in UTF-8") from None


def _is_tab(text: str, mark: yaml.Mark | None) -> bool:
    lines = text.splitlines()[mark.line : mark.line + 1] if mark is not None else []
    return bool(lines) and "\t" in lines[0][: len(lines[0]) - len(lines[0].lstrip())]


def _events(text: str) -> Iterator[Event]:
    loader = _Loader(text)
    try:
        while loader.check_event():
            event = loader.get_event()
            assert event is not None
            yield event
    finally:
        loader.dispose()


def _wrong(file: str, line: int, column: int, message: str) -> InvalidFlow:
    return InvalidFlow([Problem(Place(line, column, "", file), message)])


def _begin(event: Event) -> tuple[int, int]:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)


class _Reader:
    """Builds the tree of one document."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._values = 0
        self._documents = 0
        self._open: list[Node] = []  # the mappings and lists around the place
        self._keys: list[str | None] = []  # for each: the key that waits for its value
        self._root: Node | None = None

    def read(self, events: Iterator[Event]) -> Node:
        for event in events:
            if isinstance(event, NodeEvent):
                self._node(event)
            elif isinstance(event, CollectionEndEvent):
                self._open.pop()
                self._keys.pop()
            elif isinstance(event, DocumentStartEvent):
                self._documents += 1
                if self._documents > 1:
                    raise self._refused(event, "a second document: write one flow in a file")
        if self._root is None:
            raise _wrong(self._file, 1, 1, "the file is empty: write a flow, beginning with name:")
        return self._root

    def _node(self, event: NodeEvent) -> None:
        self._check(event)
        line, column = _begin(event)
        if isinstance(event, ScalarEvent):
            if self._takes_key():
                self._key(event, line, column)
                return
            is_null = event.style in {None, ""} and event.value in _NULLS
            self._add(Node(None if is_null else event.value, line, column, {}))
            return
        if self._takes_key():
            raise self._refused(event, "a key that is a list or a mapping: write a text")
        is_mapping = isinstance(event, MappingStartEvent)
        node = Node({} if is_mapping else [], line, column, {})
        self._add(node)
        self._open.append(node)
        self._keys.append(None)

    def _check(self, event: NodeEvent) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise self._refused(event, f"more than {MAX_VALUES:,} values: split the flow")
        if len(self._open) >= MAX_DEPTH:
            raise self._refused(event, f"nested deeper than {MAX_DEPTH}: make it flatter")
        if isinstance(event, AliasEvent):
            raise self._refused(event, f"an alias, *{event.anchor}: write the value out")
        if event.anchor is not None:
            raise self._refused(event, f"an anchor, &{event.anchor}: leave it out")
        if isinstance(event, ScalarEvent | CollectionStartEvent) and event.tag is not None:
            raise self._refused(event, f"a tag, {event.tag}: leave it out")

    def _takes_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and not self._waiting()

    def _waiting(self) -> bool:
        return self._keys[-1] is not None

    def _key(self, event: ScalarEvent, line: int, column: int) -> None:
        mapping = self._open[-1]
        key: str = event.value
        first = mapping.keys.get(key)
        if first is not None:
            raise self._refused(
                event, f"{key!r} stands here twice, first in line {first[0]}: give each its name"
            )
        mapping.keys[key] = (line, column)
        self._keys[-1] = key

    def _add(self, node: Node) -> None:
        if not self._open:
            self._root = node
            return
        around = self._open[-1].value
        if isinstance(around, list):
            around.append(node)
        elif isinstance(around, dict):
            key = self._keys[-1]
            assert key is not None
            around[key] = node
            self._keys[-1] = None

    def _refused(self, event: Event, message: str) -> InvalidFlow:
        return _wrong(self._file, *_begin(event), message)
