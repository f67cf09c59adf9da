"""Process that reads the record of provenance for a flow: `python -m …provenance_child FOLDER`.

Owns the calls over its standard input and output, each one frame: uint32 length, then msgpack. The
flow's process would lose its own rate by decoding commits, because threads of Python share one
processor. This process has no secrets and opens no connections; it reads the spool, and writes
indexes beside it. It ends with its parent: when its input ends.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.errors import PenstockError
from penstock.flow.provenance.provenance_reader import ProvenanceReader
from penstock.flow.provenance.provenance_selection import EventFilter
from penstock.storage.disk import OsFileSystem

if TYPE_CHECKING:
    from typing import IO

LENGTH: Final = struct.Struct("<I")
_NICENESS: Final = 5


class ProvenanceCall(msgspec.Struct, frozen=True, array_like=True):
    """One call.

    Attributes:
        name: `events`, `lineage`, `flowfiles_of`, `select` or `version`.
        numbers: Its numbers.
        text: Its text.
    """

    name: str
    numbers: list[int]
    text: str = ""


class ProvenanceAnswer(msgspec.Struct, frozen=True, array_like=True):
    """One answer.

    Attributes:
        error: Reason why the call failed; empty: it did not.
        content: The result.
    """

    error: str
    content: msgspec.Raw


def read_exactly(stream: IO[bytes], length: int) -> bytes | None:
    """Return bytes of a stream; None at its end."""
    parts = []
    while length:
        part = stream.read(length)
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def write_framed(stream: IO[bytes], content: bytes) -> None:
    """Write a frame."""
    stream.write(LENGTH.pack(len(content)) + content)
    stream.flush()


def read_framed(stream: IO[bytes]) -> bytes | None:
    """Return the content of the next frame; None at the end."""
    head = read_exactly(stream, LENGTH.size)
    return None if head is None else read_exactly(stream, LENGTH.unpack(head)[0])


def answer(reader: ProvenanceReader, call: ProvenanceCall) -> object:
    """Return the result of a call. Raises as the reader."""
    numbers = call.numbers
    match call.name:
        case "events":
            return reader.events(numbers[0], numbers[1])
        case "lineage":
            return reader.lineage(numbers[1:], numbers[0])
        case "flowfiles_of":
            return reader.flowfiles_of(call.text, numbers[0], numbers[1])
        case "select":
            wanted = msgspec.json.decode(call.text, type=EventFilter)
            return reader.select(wanted, numbers[0], numbers[1])
        case _:
            version = reader.version(numbers[0], call.text)
            return [] if version is None else [version]


def main(folder: str) -> None:
    """Answer calls until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher
    os.nice(_NICENESS)
    reader = ProvenanceReader(OsFileSystem(), folder)
    calls, answers = sys.stdin.buffer, sys.stdout.buffer
    while (content := read_framed(calls)) is not None:
        call = msgspec.msgpack.decode(content, type=ProvenanceCall)
        try:
            found = ProvenanceAnswer("", msgspec.Raw(msgspec.msgpack.encode(answer(reader, call))))
        except PenstockError as error:
            found = ProvenanceAnswer(str(error), msgspec.Raw(b"\xc0"))
        write_framed(answers, msgspec.msgpack.encode(found))


if __name__ == "__main__":
    main(sys.argv[1])
