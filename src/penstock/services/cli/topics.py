"""`penstock topic …` and `penstock pub`."""

from __future__ import annotations

import io
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import format_time
from penstock.services.cli.context import GIVEN
from penstock.services.cli.output import confirm, print_json, print_rows, reading, say, warn
from penstock.services.httpclient import JsonClient

topic_app = typer.Typer(
    help="Topics: where events are kept.", no_args_is_help=True, rich_markup_mode=None
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Topic = Annotated[str, typer.Argument(help="Name of the topic.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(topic_app, name="topic")
    app.command("pub")(publish)


def _broker() -> JsonClient:
    return JsonClient(GIVEN.found_broker_url(), token=GIVEN.options().token)


@topic_app.command()
def create(
    name: Topic,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Stream partitions.")
    ] = None,
) -> None:
    """Create a topic."""
    _broker().request("POST", "/topic/create", query={"topic": name, "partitions": partitions})
    say(f"topic {name} is there")


def _topics(name: str | None = None) -> list[dict[str, object]]:
    stats = _broker().get("/stats", {"format": "json", "topic": name})
    found = stats.get("topics") if isinstance(stats, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


@topic_app.command("list")
def list_topics(as_json: Json = False) -> None:
    """List the topics."""
    rows = [
        {
            "topic": one.get("topic_name"),
            "partitions": len(_partitions(one)),
            "messages": _number(one, "depth"),
            "paused": bool(one.get("paused")),
        }
        for one in _topics()
    ]
    print_rows(
        rows, as_json=as_json, empty="no topics; create one with: penstock topic create NAME"
    )


def _partitions(topic: dict[str, object]) -> list[dict[str, object]]:
    parts = topic.get("partitions")
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _number(part: dict[str, object], name: str) -> int:
    value = part.get(name)
    return value if isinstance(value, int) else 0


@topic_app.command()
def stats(name: Topic, as_json: Json = False) -> None:
    """Show a topic's stream partitions."""
    offsets = _broker().get("/offsets", {"topic": name})
    found = offsets.get("partitions") if isinstance(offsets, dict) else None
    parts = [part for part in found if isinstance(part, dict)] if isinstance(found, list) else []
    if as_json:
        print_json({"offsets": offsets, "stats": _topics(name)})
        return
    rows = [
        {
            "partition": part.get("partition"),
            "earliest": part.get("earliest"),
            "latest": part.get("latest"),
            "messages": _number(part, "latest") - _number(part, "earliest"),
        }
        for part in parts
    ]
    print_rows(rows, as_json=False)


@topic_app.command("read")
def read_messages(
    name: Topic,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Stream partition; all when not given.")
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option("--offset", help="First offset; negative: from the end. [default: earliest]"),
    ] = None,
    limit: Annotated[
        int, typer.Option("--max", min=1, help="At most so many of each stream partition.")
    ] = 10,
    as_json: Json = False,
) -> None:
    """Print messages of a topic, one a line.

    Nothing is taken out of it.
    """
    # Here, because no other command of this module needs Arrow.
    from penstock.services.cli.reading import messages_from  # noqa: PLC0415

    rows: list[dict[str, object]] = []
    with GIVEN.broker() as broker:
        known = {part.partition: part for part in broker.offsets(name).partitions}
        if partition is not None and partition not in known:
            raise InvalidRequest(
                f"topic {name} has no stream partition {partition}: it has 0 to {max(known)}"
            )
        for part in known.values() if partition is None else [known[partition]]:
            first = part.earliest if offset is None else offset
            first = max(part.earliest, part.latest + first if first < 0 else first)
            for found in messages_from(broker, name, part.partition, first, limit):
                if not as_json:
                    sys.stdout.buffer.write(found.message + b"\n")
                    continue
                text = found.message.decode(errors="replace")
                rows.append(
                    {"partition": part.partition, "offset": found.offset}
                    | {"appended": format_time(found.append_time_ms), "message": text}
                )
    if as_json:
        print_json(rows)


def _change(verb: str, name: str) -> None:
    _broker().request("POST", f"/topic/{verb}", query={"topic": name})


@topic_app.command()
def delete(
    name: Topic, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
) -> None:
    """Delete a topic and its messages."""
    confirm(f"Delete the topic {name} and all its messages?", yes=yes)
    _change("delete", name)
    say(f"topic {name} is deleted")


@topic_app.command()
def empty(
    name: Topic, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
) -> None:
    """Drop a topic's messages; its offsets go on."""
    confirm(f"Drop all messages of the topic {name}?", yes=yes)
    _change("empty", name)
    say(f"topic {name} is empty")


@topic_app.command()
def pause(name: Topic) -> None:
    """Stop handing a topic's messages to consumers; publishing goes on."""
    _change("pause", name)
    say(f"topic {name} is paused")


@topic_app.command()
def unpause(name: Topic) -> None:
    """Go on handing out a topic's messages."""
    _change("unpause", name)
    say(f"topic {name} is not paused")


def publish(
    events: Annotated[
        list[str] | None, typer.Argument(help="Events; without them and --file, standard input.")
    ] = None,
    topic: Annotated[str, typer.Option("--topic", "-t", help="Name of the topic. [required]")] = "",
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="File of events, one a line.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Stream partition.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Events of one key go to one stream partition.")
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=100_000, help="Events sent at once, at most.")
    ] = 1_000,
    durable: Annotated[
        bool, typer.Option("--durable", help="Wait until the events are on the disk.")
    ] = False,
) -> None:
    """Publish events, one a line."""
    if not topic:
        raise InvalidRequest("name the topic: --topic NAME")
    if events and file:
        raise InvalidRequest("give events or --file, not both")
    if partition is not None and key is not None:
        raise InvalidRequest("give --partition or --key, not both: each names the stream partition")
    broker = GIVEN.broker()
    if not events and file is None and sys.stdin.isatty():
        warn("one event a line; Ctrl-D ends")
    count = 0
    try:
        for part in _batches(_events(events, file), batch):
            broker.publish(topic, part, partition=partition, key=key, durable=durable)
            count += len(part)
    finally:
        broker.close()
        if count or sys.exception() is None:
            say(f"{count:,} {'event' if count == 1 else 'events'} published to {topic}")


def _events(events: list[str] | None, file: Path | None) -> Iterator[bytes | None]:
    if events:
        for number, event in enumerate(events, 1):
            if not event:
                raise InvalidRequest(f"event {number} is empty")
            yield event.encode()
        return
    if file is not None and str(file) != "-":
        with reading(file), file.open("rb") as stream:
            yield from _lines(stream)
        return
    yield from _lines(sys.stdin.buffer)


_READ_BYTES = 1 << 20


def _lines(stream: io.BufferedReader | BinaryIO) -> Iterator[bytes | None]:
    """Yield the lines that are not empty, and None whenever no more has come for now."""
    rest = b""
    read = stream.read1 if isinstance(stream, io.BufferedReader) else stream.read
    while piece := read(_READ_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if text := line.rstrip(b"\r"):
                yield text
        if not _has_more(stream):
            yield None
    if text := rest.rstrip(b"\r"):
        yield text


def _has_more(stream: io.BufferedReader | BinaryIO) -> bool:
    """Say whether the next read returns at once; a file and the end of a pipe count as more."""
    try:
        readable, _, _ = select.select([stream], [], [], 0)
    except io.UnsupportedOperation:  # bytes in memory
        return True
    return bool(readable)


# The broker takes bodies up to 5 MiB; large events make small batches.
_BATCH_BYTES_MAX = 4 << 20


def _batches(events: Iterator[bytes | None], count: int) -> Iterator[list[bytes]]:
    """Yield events together; what came is not kept waiting for what may come (`tail -f`)."""
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
