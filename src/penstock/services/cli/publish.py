"""`penstock pub`: events from arguments, a file or standard input, in batches."""

from __future__ import annotations

import contextlib
import io
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from penstock.core.errors import InvalidRequest, NotFound, Unavailable, counted
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import echo, translate_read_errors, warn

if TYPE_CHECKING:
    from penstock.broker.broker_client import BrokerClient


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("pub")(publish)


def publish(
    events: Annotated[
        list[str] | None, typer.Argument(help="Events; without them and --file, standard input.")
    ] = None,
    topic: Annotated[str, typer.Option("--topic", "-t", help="Name of the topic. [required]")] = "",
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="File of events, one per line.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Stream partition to publish to.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Events of one key go to one stream partition.")
    ] = None,
    batch: Annotated[
        int,
        typer.Option("--batch", min=1, max=100_000, help="Maximum number of events sent at once."),
    ] = 1_000,
    durable: Annotated[
        bool, typer.Option("--durable", help="Wait until the events are on the disk.")
    ] = False,
) -> None:
    """Publish events, one per line. A topic that does not exist is created."""
    if not topic:
        raise InvalidRequest("name the topic: --topic NAME")
    if events and file:
        raise InvalidRequest("give events or --file, not both")
    if partition is not None and key is not None:
        raise InvalidRequest("give --partition or --key, not both: each selects a stream partition")
    broker = CLI.broker()
    if not events and file is None and sys.stdin.isatty():
        warn("one event a line; Ctrl-D ends")
    count = 0
    try:
        for part in _batches(_events(events, file), batch):
            is_new = not count and _stream_partitions(broker, topic) is None
            broker.publish(topic, part, partition=partition, key=key, durable=durable)
            count += len(part)
            if is_new:
                with contextlib.suppress(Unavailable):  # the next batch reports the error
                    warn(_created(topic, _stream_partitions(broker, topic)))
    finally:
        broker.close()
        if count or sys.exception() is None:
            echo(f"{counted(count, 'event')} published to {topic}")


def _stream_partitions(broker: BrokerClient, topic: str) -> int | None:
    """Return how many stream partitions a topic has, None if it does not exist."""
    try:
        return len(broker.offsets(topic).partitions)
    except NotFound:
        return None


def _created(topic: str, partitions: int | None) -> str:
    """Report that a topic was created: its name may be mistyped, or its partitions too few."""
    having = "" if partitions is None else f", with {counted(partitions, 'stream partition')}"
    return (
        f"topic {topic} did not exist: it was created{having}; penstock topic create NAME"
        " --partitions N creates one with another number"
    )


def _events(events: list[str] | None, file: Path | None) -> Iterator[bytes | None]:
    if events:
        for number, event in enumerate(events, 1):
            if not event:
                raise InvalidRequest(f"event {number} is empty")
            yield event.encode()
        return
    if file is not None and str(file) != "-":
        with translate_read_errors(file), file.open("rb") as stream:
            yield from _lines(stream)
        return
    yield from _lines(sys.stdin.buffer)


_READ_BYTES = 1 << 20
# Far above the broker's limit of one message; the broker's error for such a line is more exact.
_LINE_BYTES_MAX = 64 << 20


def _lines(stream: io.BufferedReader | BinaryIO) -> Iterator[bytes | None]:
    """Yield the non-empty lines, and None when all data received so far was read.

    Raises:
        InvalidRequest: A line is too long to be an event; the lines before it were yielded.
    """
    begun: list[bytes] = []  # pieces of an incomplete line
    size = number = 0
    read = stream.read1 if isinstance(stream, io.BufferedReader) else stream.read
    while piece := read(_READ_BYTES):
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = b"".join([*begun, lines[0]])
            begun, size = [], 0
        for line in lines:
            if text := line.rstrip(b"\r"):
                yield text
        number += len(lines)
        begun.append(rest)
        size += len(rest)
        if size > _LINE_BYTES_MAX:
            yield None
            raise InvalidRequest(
                f"line {number + 1} is longer than {_LINE_BYTES_MAX:,} bytes: events are one a line"
            )
        if not _has_more(stream):
            yield None
    if text := b"".join(begun).rstrip(b"\r"):
        yield text


def _has_more(stream: io.BufferedReader | BinaryIO) -> bool:
    """Return whether the next read returns at once, as for a file or at the end of a pipe."""
    try:
        readable, _, _ = select.select([stream], [], [], 0)
    except io.UnsupportedOperation:  # bytes in memory
        return True
    return bool(readable)


# The broker takes bodies up to 5 MiB; large events make small batches.
_BATCH_BYTES_MAX = 4 << 20


def _batches(events: Iterator[bytes | None], count: int) -> Iterator[list[bytes]]:
    """Yield batches; events that have arrived do not wait for later ones (`tail -f`)."""
    part: list[bytes] = []
    size = 0
    for event in events:
        full = event is None or len(part) == count or size + len(event) > _BATCH_BYTES_MAX
        if part and full:
            yield part
            part, size = [], 0
        if event is not None:
            part.append(event)
            size += len(event) + 4
    if part:
        yield part
