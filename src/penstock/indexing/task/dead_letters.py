"""Delivery of messages that could not be parsed to the dead-letter topic.

The engine stores them as JSON lines in files. A file is sent in chunks that depend only on its
content and on what was sent before, each with a sequence number derived from its offsets. So a file
that is sent again after a crash has the same chunks, and the broker drops those it already has.

Replicas read the same messages, but not in the same batches, so their files differ. Each waits
until a sequence is closed and all of it is persisted, and sends its files as if they were one. So
the chunks of all replicas are the same, and so is the name of their producer.
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
    from penstock.indexing.task.commit_file import BadFile
    from penstock.indexing.task.streaming_state import StreamTaskParts
    from penstock.storage.filesystem import FileSystem

_WINDOW_BYTES: Final = 4 * 1024 * 1024
_CHUNK_MESSAGES: Final = 500
_CHUNK_BYTES: Final = 2 * 1024 * 1024
# A broker accepts messages of 1 MiB by default; base64 makes them one third larger.
_MESSAGE_BYTES_MAX: Final = 900_000


@dataclass(frozen=True, slots=True)
class _Letter:
    partition: int
    offset: int
    line: bytes


class DeadLetterSender:
    """Sends files of bad messages. Blocking; one thread at a time.

    Args:
        fs: The file system of the files.
        port: The broker.
        topic: The dead-letter topic.
        producer: Name of the producer, the same after a restart; the stream partition is appended.
    """

    def __init__(self, fs: FileSystem, port: DeadLetterPort, topic: str, producer: str) -> None:
        self._fs = fs
        self._port = port
        self._topic = topic
        self._producer = producer

    def send(self, paths: Sequence[str], sent: Offsets) -> dict[int, int]:
        """Send messages from files beyond the offsets in `sent`; return the new end offsets.

        Args:
            paths: The files, in the order of `in_reading_order`.
            sent: The end offsets of earlier calls, by stream partition.

        Raises:
            Unavailable: The broker does not answer: send the files again.
            CorruptData: A file is not in the engine's format.
        """
        reached: dict[int, int] = {}
        letters = (
            letter
            for path in paths
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
    """Return the non-empty files in the order of their first messages.

    The order is by stream partition, then by offset, because the chunks of a partition must be sent
    with increasing sequence numbers.
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
        CorruptData: A line is not in the engine's format.
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
        raise CorruptData(path, position, f"a line is not a dead letter: {error!r}") from error


def _fit(letter: _Letter) -> bytes:
    """Return a dead letter without its message if it exceeds the broker's default limit.

    The topic that the task reads still has the message.
    """
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


class DeadLetterSends:
    """Sends the bad messages of a task, the oldest first. Part of the task, on its mailbox.

    Args:
        context: The task.
    """

    def __init__(self, context: StreamTaskParts) -> None:
        spec, ports = context.spec, context.ports
        self._context = context
        self._call = context.background_call("sending dead letters", "dead-letters")
        producer = _producer(spec.base_sequence_name)
        self._sender = DeadLetterSender(
            ports.fs, ports.dead_letters, spec.dead_letter_topic, producer
        )

    @property
    def last_error(self) -> str:
        """The last error; empty if the last call succeeded."""
        return self._call.last_error

    def advance(self) -> None:
        """Send the oldest unsent files that may be sent."""
        bad = self._due()
        if self._call.busy or not bad:
            return
        fs, sent = self._context.ports.fs, dict(self._context.state.commit.dead_lettered or {})
        self._call.start(
            lambda: self._sender.send(in_reading_order(fs, [b.path for b in bad]), sent),
            lambda reached: self._sent(bad, reached),
            self._context.fail,
        )

    def _due(self) -> tuple[BadFile, ...]:
        state = self._context.state
        oldest = state.commit.unsent()
        if oldest is None or self._context.spec.replicas == 1:
            return () if oldest is None else (oldest,)
        # The oldest sequence, because it is published first.
        first = next(iter(state.sequences.items), None)
        if first is None or not first.is_read(state.commit.current):
            return ()
        return state.commit.unsent_of(first.name)

    def _sent(self, bad: Sequence[BadFile], reached: Offsets) -> None:
        state = self._context.state
        commit = state.commit
        for one in bad:
            commit = commit.mark_sent(replace(one, sent=True), reached)
        state.change_commit(commit)
        self._context.drop(one.path for one in bad)
        self._context.wake()


def _producer(base_name: str) -> str:
    """Return the producer name that replicas share, in the form that the broker requires."""
    return f"dead-letters.{hashlib.sha256(base_name.encode()).hexdigest()[:20]}"
