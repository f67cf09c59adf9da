"""NSQ's V2 protocol under any bytes: what must hold, and a way in for a fuzzer.

    python tests/fuzz/fuzz_protocol.py tests/fuzz/seeds [options of libFuzzer]

needs ``atheris``, which the project does not depend on. The seeds, and streams that Hypothesis
makes, are checked by `test_protocol_splits.py` without it.

The first byte of an input says what the rest is for, the second how it is cut.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from collections.abc import Iterator

import pyarrow as pa

from penstock.broker import message_id
from penstock.broker.protocol import commands as c
from penstock.broker.protocol.command_parser import CommandParser
from penstock.broker.protocol.limits import ProtocolLimits
from penstock.broker.protocol.negotiation import NegotiationLimits, negotiate
from penstock.core.compression import Deflate, Snappy
from penstock.core.errors import InvalidRequest

# Small, so that short inputs reach them.
LIMITS = ProtocolLimits(max_message_bytes=64, max_body_bytes=256, max_line_bytes=80)
NEGOTIATION = NegotiationLimits(tls=True)
COMMANDS, IDENTIFY, SNAPPY, DEFLATE = range(4)
UNPACKED_MAX = 1_000


def flat(commands: list[c.Command]) -> Iterator[object]:
    """Give commands as if none had been grouped."""
    for command in commands:
        match command:
            case c.Finish(ids):
                assert len(ids)
                yield from (("FIN", message_id.text(number)) for number in ids.tolist())
            case c.Publish(topic, messages):
                assert messages
                assert all(0 < len(message) <= LIMITS.max_message_bytes for message in messages)
                yield from (("PUB", topic, message) for message in messages)
            case c.MultiPublish(topic, messages, size_bytes):
                bodies = messages.to_pylist() if isinstance(messages, pa.Array) else [*messages]
                assert size_bytes == sum(map(len, bodies))
                yield ("MPUB", topic, bodies)
            case _:
                yield command


def parse(pieces: list[bytes]) -> list[object]:
    """Parse pieces, and hold the parser to its bounds."""
    parser = CommandParser(LIMITS)
    commands: list[c.Command] = []
    for piece in pieces:
        commands += parser.feed(piece)
        while parser.waiting_bytes:
            commands += parser.feed(b"")
        assert not any(isinstance(command, c.Malformed) for command in commands[:-1])
        bound = max(4 + LIMITS.max_body_bytes, LIMITS.max_line_bytes)
        assert len(parser._under_way) < bound
        assert 0 <= parser.wanted_bytes <= 4 + LIMITS.max_body_bytes
    return list(flat(commands))


def cut(data: bytes, step: int) -> list[bytes]:
    """Cut data into pieces: small ones of growing sizes, so that borders fall everywhere."""
    pieces = []
    start = 0
    size = 1 + step % 7
    while start < len(data):
        pieces.append(data[start : start + size])
        start += size
        size = 1 + (size * 5 + step) % 41
    return pieces


def check_commands(data: bytes, step: int) -> None:
    """Any way to cut a stream gives the same commands."""
    whole = parse([data])
    assert parse(cut(data, step)) == whole
    assert parse([data[n : n + 1] for n in range(len(data))]) == whole


def check_identify(body: bytes) -> None:
    """Any body is negotiated or refused."""
    with contextlib.suppress(c.CommandRefused):
        negotiated = negotiate(body, NEGOTIATION)
        assert not (negotiated.snappy and negotiated.deflate)


def check_compression(codec: Snappy | Deflate, data: bytes, step: int) -> None:
    """Any stream is read within bounds, or refused."""
    with contextlib.suppress(InvalidRequest):
        for piece in cut(data, step):
            taken = piece
            # A small piece may hold a thousand times its size; it comes to an end.
            while found := codec.decompress(taken, UNPACKED_MAX):
                assert len(found) <= UNPACKED_MAX
                taken = b""


def check(data: bytes) -> None:
    """Check one input."""
    kind, step, rest = *struct.unpack("BB", data[:2].ljust(2, b"\0")), data[2:]
    match kind % 4:
        case 0:
            check_commands(rest, step)
        case 1:
            check_identify(rest)
        case 2:
            check_compression(Snappy(), rest, step)
        case _:
            check_compression(Deflate(6), rest, step)


def main() -> None:
    """Fuzz for ever."""
    import atheris  # not a dependency of the project

    atheris.instrument_all()
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
