"""`penstock topic peek`: show messages without consuming them."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.core.errors import InvalidRequest
from penstock.core.instants import format_time, parse_time
from penstock.core.printable import HIDDEN
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import echo_lines, print_json, print_rows

if TYPE_CHECKING:
    from penstock.broker.broker_client import PartitionOffsets

_COUNT_MAX = 1_000  # of one request
_CONTROL = re.compile(f"(?![\t\n\r])[{HIDDEN}]")
_LINE_END = re.compile(r"\s*[\r\n]\s*")


def add_to(topic_app: typer.Typer) -> None:
    """Add the command."""
    topic_app.command()(peek)


def peek(
    name: Annotated[str, typer.Argument(help="Name of the topic.")],
    channel: Annotated[
        str | None, typer.Option("--channel", "-c", help="Show their state in this channel.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            help="Only messages of the channel in this state: in_flight, deferred or requeued.",
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", min=0, help="Only this stream partition. [default: all]"),
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option(
            "--offset", help="First offset; negative: from the end. [default: the first unfinished]"
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", help="Begin with the first message at or after this time."),
    ] = None,
    contains: Annotated[
        str | None, typer.Option("--contains", help="Only messages whose body has this text.")
    ] = None,
    json_path: Annotated[
        str | None,
        typer.Option(
            "--json-path", help="Only messages with a value at this place, such as $.user.id."
        ),
    ] = None,
    equals: Annotated[
        str | None, typer.Option("--equals", help="Only messages with this value at --json-path.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option("--max", min=1, help="Maximum number of messages of each stream partition."),
    ] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print messages of a topic, one per line; of a channel, as a table.

    Messages that are not text are printed in base64, after the word base64. A dead letter of a task
    is printed as the place that the message came from, the reason, and the message. Nothing is
    consumed.
    """
    if state is not None and channel is None:
        raise InvalidRequest("--state needs a channel: add --channel")
    if offset is not None and time is not None:
        raise InvalidRequest("begin at --offset or at --time, not at both")
    more: dict[str, str | int | None] = {
        "timestamp": None if time is None else parse_time(time),
        "contains": contains,
        "json_path": json_path,
        "equals": equals,
    }
    rows: list[dict[str, object]] = []
    with CLI.broker() as broker:
        ask = partial(broker.peek, name, channel=channel, state=state, more=more)
        known = {part.partition: part for part in broker.offsets(name).partitions}
        if partition is not None and partition not in known:
            raise InvalidRequest(
                f"topic {name} has no stream partition {partition}: it has 0 to {max(known)}"
            )
        for part in known.values() if partition is None else [known[partition]]:
            first = None if offset is None else _clipped(offset, part)
            for message in _messages(ask, part.partition, first, limit):
                if channel is None and not as_json:
                    echo_lines(_line(message))
                else:
                    rows.append(_row(message, as_json=as_json))
    if as_json:
        print_json(rows)
    elif channel is not None:
        print_rows(rows, as_json=False, empty="no messages", may_cut=("message",))


def _clipped(offset: int, part: PartitionOffsets) -> int:
    wanted = part.latest + offset if offset < 0 else offset
    return min(max(part.earliest, wanted), part.latest)


def _messages(
    ask: Callable[..., dict[str, object]], partition: int, first: int | None, limit: int
) -> Iterator[Mapping[str, object]]:
    while limit:
        found = ask(partition=partition, offset=first, count=min(limit, _COUNT_MAX))
        messages = found["messages"]
        if not isinstance(messages, list):
            return
        yield from messages
        limit -= len(messages)
        first = int(str(found["next_offset"]))
        # Damage may hide messages in an empty range, and further messages may follow it.
        if first >= int(str(found["latest"])):
            return


def _text(message: Mapping[str, object]) -> str | None:
    """Return a message that is readable text; None for any other."""
    if "body" not in message:  # the broker found that it is not UTF-8
        return None
    text = str(message["body"])
    # Control characters that move the cursor or change colours are not readable text.
    return None if _CONTROL.search(text) else text


def _base64(message: Mapping[str, object]) -> str:
    packed = message.get("body_base64")
    return str(packed) if packed else base64.b64encode(str(message["body"]).encode()).decode()


def _line(message: Mapping[str, object]) -> str:
    """Return a message on one line, even JSON that spans several."""
    letter = message.get("dead_letter")
    if isinstance(letter, dict):
        return _letter_line(letter, message)
    text = _text(message)
    if text is None:
        return f"base64 {_base64(message)}"
    if text.lstrip().startswith(("{", "[")) and len(text.splitlines()) > 1:
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(text)
            # Strings in JSON cannot contain line ends.
            return _LINE_END.sub(" ", text.strip())
    return text


def _letter_line(letter: Mapping[str, object], message: Mapping[str, object]) -> str:
    """Return a dead letter as the place of its message, the reason, and the message."""
    place = f"{letter['topic']} {letter['partition']}:{letter['offset']}"
    if "body" in letter or "body_base64" in letter:
        body = _line(letter)
    else:
        body = f"(left out: about {letter['left_out_bytes']} bytes)"
    parts = [place, _LINE_END.sub(" ", str(letter["reason"])), body]
    if message.get("redriven"):
        parts.append("(redriven)")
    return " | ".join(parts)


def _row(message: Mapping[str, object], *, as_json: bool) -> dict[str, object]:
    row = {name: message[name] for name in ("partition", "offset")}
    row["appended"] = format_time(int(str(message["timestamp"])) // 1_000_000)
    row |= {name: message[name] for name in ("state", "attempts") if name in message}
    due = message.get("due")
    if due is not None or "state" in message:
        row["due"] = None if due is None else format_time(int(str(due)))
    if not as_json:
        return row | {"message": _line(message)}
    row |= {name: message[name] for name in ("redriven",) if name in message}
    letter = message.get("dead_letter")
    if isinstance(letter, dict):
        place = {name: letter[name] for name in ("topic", "partition", "offset", "reason")}
        row["dead_letter"] = place | _content(letter)
    return row | _content(message)


def _content(message: Mapping[str, object]) -> dict[str, object]:
    if "body" not in message and "body_base64" not in message:
        return {"message": None}
    text = _text(message)
    return {"message_base64": _base64(message)} if text is None else {"message": text}
