"""Messages that could not be parsed, on their way to the dead-letter topic.

The engine leaves them as JSON lines in files. A file is sent in chunks that follow from its content
and from what was sent before, each with a sequence number that follows from its offsets: a file
that is sent again after a crash makes the same chunks, and the broker drops those it has.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import orjson

from penstock.core.errors import CorruptData

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.indexing.ports import DeadLetterPort
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.task.commit import BadFile
    from penstock.indexing.task.state import TaskContext
    from penstock.storage.filesystem import FileSystem

_WINDOW_BYTES: Final = 4 * 1024 * 1024
_CHUNK_MESSAGES: Final = 500
_CHUNK_BYTES: Final = 2 * 1024 * 1024
# A broker takes messages of 1 MiB by default; base64 makes one a third larger.
_MESSAGE_BYTES_MAX: Final = 900_000


@dataclass(frozen=True, slots=True)
class _Letter:
    partition: int
    offset: int
    line: bytes


class DeadLetterSender:
    """Sends files of bad messages. Blocking; one thread at a time.

    Args:
        fs: Where the files are.
        port: The broker.
        topic: The dead-letter topic.
        producer: Who sends, the same after a restart; the stream partition is added.
    """

    def __init__(self, fs: FileSystem, port: DeadLetterPort, topic: str, producer: str) -> None:
        self._fs = fs
        self._port = port
        self._topic = topic
        self._producer = producer

    def send(self, path: str, sent: Offsets) -> dict[int, int]:
        """Send what a file holds beyond the offsets in `sent`; return up to where it is sent now.

        Raises:
            Unavailable: The broker does not answer: send the file again.
            CorruptData: The file is not what the engine writes.
        """
        reached: dict[int, int] = {}
        letters = (
            letter
            for letter in read_letters(self._fs, path)
            if letter.offset >= sent.get(letter.partition, 0)
        )
        for chunk in _chunks(letters):
            last = chunk[-1]
            self._port.publish(
                self._topic,
                [_fit(letter) for letter in chunk],
                producer=f"{self._producer}.{last.partition}",
                sequence=last.offset + 1,
            )
            reached[last.partition] = last.offset + 1
        return reached


def in_reading_order(fs: FileSystem, paths: Iterable[str]) -> list[str]:
    """Return the files by stream partition and offset of their first messages; no empty ones.

    The chunks of a partition must be sent with growing sequence numbers.
    """
    first: dict[str, tuple[int, int]] = {}
    for path in paths:
        letter = next(read_letters(fs, path), None)
        if letter is not None:
            first[path] = (letter.partition, letter.offset)
    return sorted(first, key=first.__getitem__)


def read_letters(fs: FileSystem, path: str) -> Iterator[_Letter]:
    """Read a file of bad messages line by line, a window at a time.

    Raises:
        CorruptData: A line is not what the engine writes.
    """
    file = fs.open_read(path)
    try:
        position, rest = 0, b""
        while window := file.pread(_WINDOW_BYTES, position):
            *lines, rest = (rest + window).split(b"\n")
            for line in lines:
                if line:
                    yield _letter(line, path, position)
            position += len(window)
        if rest:
            yield _letter(rest, path, position)
    finally:
        file.close()


def _letter(line: bytes, path: str, position: int) -> _Letter:
    try:
        value = orjson.loads(line)
        return _Letter(int(value["partition"]), int(value["offset"]), line)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise CorruptData(path, position, f"no line of a bad message: {error!r}") from error


def _fit(letter: _Letter) -> bytes:
    """Leave out the message of a letter that no topic would take; it is still in its own topic."""
    if len(letter.line) <= _MESSAGE_BYTES_MAX:
        return letter.line
    value = orjson.loads(letter.line)
    message = value.pop("message_base64", "")
    value["message_left_out_bytes"] = len(message) * 3 // 4
    return orjson.dumps(value)


def _chunks(letters: Iterator[_Letter]) -> Iterator[Sequence[_Letter]]:
    chunk: list[_Letter] = []
    size = 0
    for letter in letters:
        full = len(chunk) >= _CHUNK_MESSAGES or size + len(letter.line) > _CHUNK_BYTES
        if chunk and (full or letter.partition != chunk[-1].partition):
            yield chunk
            chunk, size = [], 0
        chunk.append(letter)
        size += len(letter.line)
    if chunk:
        yield chunk


class DeadLetters:
    """Sends the bad messages of a task, the oldest first. Part of the task, on its mailbox.

    Args:
        context: The task.
    """

    def __init__(self, context: TaskContext) -> None:
        spec, ports = context.spec, context.ports
        self._context = context
        self._errand = context.errand("sending dead letters", "dead-letters")
        self._sender = DeadLetterSender(
            ports.fs, ports.dead_letters, spec.dead_letter_topic, _producer(spec.id)
        )

    @property
    def trouble(self) -> str:
        """What it waits for, empty if nothing."""
        return self._errand.trouble

    def advance(self) -> None:
        """Send the oldest file that is not sent."""
        commit = self._context.state.commit
        bad = commit.unsent()
        if self._errand.busy or bad is None:
            return
        sent = dict(commit.dead_lettered or {})
        self._errand.start(
            lambda: self._sender.send(bad.path, sent), lambda reached: self._sent(bad, reached)
        )

    def _sent(self, bad: BadFile, reached: Offsets) -> None:
        state = self._context.state
        state.change_commit(state.commit.mark_sent(replace(bad, sent=True), reached))
        self._context.drop([bad.path])
        self._context.wake()


def _producer(task_id: str) -> str:
    """Return the name under which a task sends: within the broker's rules, whatever the id."""
    return f"dead-letters.{hashlib.sha256(task_id.encode()).hexdigest()[:20]}"
