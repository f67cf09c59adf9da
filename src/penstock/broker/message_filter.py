"""Search in the messages of a stream partition, with bounded work for each request.

Owns which messages match a filter (a text in the body, a value at a place of its JSON), and the
scan of a range of offsets: it reads a limited number of messages and bytes, and the result has the
offset at which the next request continues. Reads the disk: not for the event loop.

Only paths with a single result are accepted, such as ``$.user.id`` or ``$.items[0].price`` (the
singular queries of RFC 9535): patterns and descents would let one request compute without a bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from penstock.broker.dead_letter import parse_dead_letter
from penstock.core.errors import InvalidRequest
from penstock.core.printable import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.broker.memory.memory_queue import MessageQueue

SCANNED_MESSAGES_MAX: Final = 20_000
SCANNED_BYTES_MAX: Final = 8 << 20

_READ_BYTES: Final = 1 << 20
_PATH_CHARACTERS_MAX: Final = 1_000
_STEP: Final = re.compile(
    r"\.(?P<name>[^\W\d][\w-]*)|\[(?P<index>[0-9]{1,9})\]|\['(?P<single>[^']*)'\]"
    r'|\["(?P<double>[^"]*)"\]'
)
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of a stream partition.

    Attributes:
        offset: Its offset.
        time_ms: When it was appended, epoch ms.
        due_ms: Its earliest delivery, epoch ms; 0: at once.
        body: Its body.
    """

    offset: int
    time_ms: int
    due_ms: int
    body: bytes


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Conditions on the body of a message; without any, every message matches.

    A dead letter of a task also matches if the message in it does.

    Attributes:
        contains: Bytes that the body has.
        path: Place in the body's JSON that exists; None: any body.
        equals: Text of the value at that place; None: any value.
    """

    contains: bytes = b""
    path: tuple[str | int, ...] | None = None
    equals: str | None = None

    @classmethod
    def of(cls, contains: str, path: str, equals: str | None) -> MessageFilter:
        """Return the filter of a request's texts.

        Raises:
            InvalidRequest: The path is invalid, or `equals` has none.
        """
        if equals is not None and not path:
            raise InvalidRequest(
                "equals needs a json_path: add one such as $.name", place="json_path"
            )
        return cls(contains.encode(), parse_path(path) if path else None, equals)

    @property
    def is_empty(self) -> bool:
        """Return whether every message matches."""
        return not self.contains and self.path is None

    def matches(self, message: StoredMessage) -> bool:
        """Return whether a message, or the one in a dead letter, fulfils the conditions."""
        if self.is_empty or self._fits(message.body):
            return True
        letter = parse_dead_letter(message.body)
        return letter is not None and letter.message is not None and self._fits(letter.message)

    def _fits(self, body: bytes) -> bool:
        if self.contains not in body:
            return False
        if self.path is None:
            return True
        try:
            value: object = orjson.loads(body)
        except orjson.JSONDecodeError:
            return False
        for step in self.path:
            value = _child(value, step)
        if value is _MISSING:
            return False
        if self.equals is None or value == self.equals:
            return True
        return orjson.dumps(value).decode() == self.equals


def _child(value: object, step: str | int) -> object:
    if isinstance(step, str):
        return value.get(step, _MISSING) if isinstance(value, dict) else _MISSING
    if isinstance(value, list) and step < len(value):
        return value[step]
    return _MISSING


def parse_path(text: str) -> tuple[str | int, ...]:
    """Return the steps of a JSON path with a single result.

    Raises:
        InvalidRequest: It is not such a path.
    """
    steps: list[str | int] = []
    position = 1
    if text.startswith("$") and len(text) <= _PATH_CHARACTERS_MAX:
        while (found := _STEP.match(text, position)) is not None:
            index = found["index"]
            name = found["name"] or found["single"] or found["double"] or ""
            steps.append(name if index is None else int(index))
            position = found.end()
        if position == len(text):
            return tuple(steps)
    raise InvalidRequest(
        f"{quoted(text[:200])} is not a JSON path with a single result: write one such as"
        " $.user.id or $.items[0]['unit price']",
        place="json_path",
    )


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """Bounds of one scan.

    Attributes:
        count: Maximum number of matching messages.
        found_bytes: Maximum size of them; one message may exceed it.
        messages: Maximum number of messages that are read.
        read_bytes: Maximum size of them; one block may exceed it.
    """

    count: int
    found_bytes: int
    messages: int = SCANNED_MESSAGES_MAX
    read_bytes: int = SCANNED_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ScanResult:
    """Result of one scan.

    Attributes:
        found: The matching messages, by ascending offset.
        scanned: Number of messages that were read.
        next_offset: The offset at which the next scan continues.
    """

    found: list[StoredMessage]
    scanned: int
    next_offset: int


def scan_messages(
    queue: MessageQueue,
    start: int,
    end: int,
    matches: Callable[[StoredMessage], bool],
    limits: ScanLimits,
) -> ScanResult:
    """Return the matching messages of [start, end), as far as the limits allow.

    Raises:
        PenstockError: The queue cannot be read.
    """
    found: list[StoredMessage] = []
    scanned = read_bytes = found_bytes = 0
    position = start
    for message in _messages(queue, start, end):
        if scanned >= limits.messages or (scanned and read_bytes >= limits.read_bytes):
            return ScanResult(found, scanned, position)
        size = len(message.body)
        if matches(message):
            if found and found_bytes + size > limits.found_bytes:
                return ScanResult(found, scanned, message.offset)
            found.append(message)
            found_bytes += size
        scanned += 1
        read_bytes += size
        position = message.offset + 1
        if len(found) >= limits.count:
            return ScanResult(found, scanned, position)
    return ScanResult(found, scanned, end)


def _messages(queue: MessageQueue, start: int, end: int) -> Iterator[StoredMessage]:
    """Yield the messages of [start, end) that exist; lost and deleted ones are left out."""
    position = max(start, queue.earliest)
    while position < end:
        blocks = queue.read(position, _READ_BYTES)
        if not blocks:
            return
        for block in blocks:
            first = max(position, block.base_offset)
            last = min(end, block.base_offset + block.count)
            for offset in range(first, last):
                body: bytes = block.messages[offset - block.base_offset].as_py()
                yield StoredMessage(offset, block.append_time_ms, block.due_ms, body)
            position = max(position, block.base_offset + block.count)
