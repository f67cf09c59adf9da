"""`penstock topic …`: topics and their channels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from penstock.broker.topic_names import require_name
from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.instants import parse_time
from penstock.services.cli import peek, redrive
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import confirm, echo, print_json, print_rows
from penstock.services.json_client import JsonClient
from penstock.services.json_values import objects, whole

topic_app = typer.Typer(
    help="Topics, which store events.", no_args_is_help=True, rich_markup_mode=None
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Topic = Annotated[str, typer.Argument(help="Name of the topic.")]
Channel = Annotated[
    str | None, typer.Option("--channel", "-c", help="Only this channel of the topic.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


_OF_SUPERVISORS = "supervisor."


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    peek.add_to(topic_app)
    redrive.add_to(topic_app)
    app.add_typer(topic_app, name="topic")


def _broker() -> JsonClient:
    url = CLI.found_broker_url()
    return JsonClient(url, token=CLI.token_for(url))


@topic_app.command()
def create(
    name: Topic,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Number of stream partitions.")
    ] = None,
    channel: Annotated[
        str | None, typer.Option("--channel", "-c", help="Also create a channel of the topic.")
    ] = None,
) -> None:
    """Create a topic, or a channel of one."""
    if channel is not None:
        require_name(channel, "channel")  # first, otherwise a refused channel leaves a new topic
    broker = _broker()
    # Only for the text: the broker also accepts what exists.
    existed = [_called(one, other) for one, other in _existing(name)]
    broker.request("POST", "/topic/create", query={"topic": name, "partitions": partitions})
    if channel is not None:
        broker.request("POST", "/channel/create", query={"topic": name, "channel": channel})
    what = _called(name, channel)
    echo(f"{what} already exists" if what in existed else f"created {what}")


def _existing(name: str) -> Iterator[tuple[str, str | None]]:
    """Yield a topic and its channels, if it exists."""
    for topic in _topics(name, with_clients=False):
        yield name, None
        for channel in objects(topic, "channels"):
            yield name, str(channel.get("channel_name"))


def _topics(name: str | None = None, *, with_clients: bool = True) -> list[dict[str, object]]:
    query = {"format": "json", "topic": name}
    if not with_clients:
        query["include_clients"] = "false"
    stats = _broker().get("/stats", query)
    return objects(stats, "topics")


@topic_app.command("list")
def list_topics(as_json: Json = False) -> None:
    """List the topics."""
    rows = [
        {
            "topic": one.get("topic_name"),
            "partitions": len(objects(one, "partitions")),
            "messages": sum(
                whole(part, "latest") - whole(part, "earliest")
                for part in objects(one, "partitions")
            ),
            "channels": len(objects(one, "channels")),
            "paused": bool(one.get("paused")),
        }
        for one in _topics(with_clients=False)
    ]
    print_rows(
        rows, as_json=as_json, empty="no topics; create one with: penstock topic create NAME"
    )


@topic_app.command()
def stats(name: Topic, as_json: Json = False) -> None:
    """Show a topic's stream partitions, its channels, and the cursors of its readers."""
    offsets = _broker().get("/offsets", {"topic": name})
    parts = objects(offsets, "partitions")
    topics = _topics(name)
    if as_json:
        print_json({"offsets": offsets, "stats": topics})
        return
    print_rows(
        [
            {
                "partition": part.get("partition"),
                "earliest": part.get("earliest"),
                "latest": part.get("latest"),
                "messages": whole(part, "latest") - whole(part, "earliest"),
            }
            for part in parts
        ],
        as_json=False,
    )
    channels = [_channel_row(one) for topic in topics for one in objects(topic, "channels")]
    if channels:
        echo("")
        print_rows(channels, as_json=False)
    cursors = [row for topic in topics for row in _cursor_rows(topic)]
    if cursors:
        echo("")
        print_rows(cursors, as_json=False)
    counts = [row for topic in topics for row in _count_rows(topic)]
    if counts:
        echo("")
        print_rows(counts, as_json=False)


def _cursor_rows(topic: Mapping[str, object]) -> list[dict[str, object]]:
    """Return each cursor with the number of messages after it, over all stream partitions."""
    behind: Counter[str] = Counter()
    for part in objects(topic, "partitions"):
        cursors = part.get("cursors")
        for name in cursors if isinstance(cursors, dict) else ():
            behind[str(name)] += whole(part, "latest") - whole(cursors, name)
    return [{"cursor": name, "messages behind": behind[name]} for name in sorted(behind)]


def _count_rows(topic: Mapping[str, object]) -> list[dict[str, object]]:
    """Return counts of undelivered and redelivered messages since the broker's start, if not 0."""
    topic_fields = ("messages_lost", "messages_dropped", "messages_refused")
    rows: list[dict[str, object]] = [
        {"of": "topic", "since the start": field.removeprefix("messages_"), "messages": count}
        for field in topic_fields
        if (count := whole(topic, field))
    ]
    fields = ("lost", "expired", "dead_lettered", "given_up", "shed")
    return rows + [
        {
            "of": f"channel {channel.get('channel_name')}",
            "since the start": field.replace("_", " "),
            "messages": count,
        }
        for channel in objects(topic, "channels")
        for field in fields
        if (count := whole(channel, f"messages_{field}"))
    ]


def _channel_row(channel: Mapping[str, object]) -> dict[str, object]:
    names = {
        "waiting": "depth",
        "in flight": "in_flight_count",
        "deferred": "deferred_count",
        "requeued": "requeue_count",
        "timed out": "timeout_count",
        "consumers": "client_count",
    }
    row: dict[str, object] = {"channel": channel.get("channel_name")}
    row |= {shown: whole(channel, field) for shown, field in names.items()}
    return row | {"paused": bool(channel.get("paused"))}


@topic_app.command()
def configure(
    name: Topic,
    options: Annotated[
        list[str] | None, typer.Argument(help="OPTION=VALUE; OPTION= resets an option.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show or change a topic's options."""
    query: dict[str, object] = {"topic": name}
    for text in options or ():
        option, equals, value = text.partition("=")
        if not equals or not option or option == "topic":
            raise InvalidRequest(f"invalid {text!r}: write OPTION=VALUE, such as max_attempts=5")
        query[option] = value
    answer = _broker().request("POST" if options else "GET", "/topic/configure", query=query)
    found = answer if isinstance(answer, dict) else {}
    if as_json:
        print_json(found)
        return
    own = found.get("set") or {}
    rows = [
        {"option": option, "value": value, "set": "for this topic" if option in own else ""}
        for option, value in (found.get("options") or {}).items()
    ]
    print_rows(rows, as_json=False)


@topic_app.command()
def replay(
    name: Topic,
    channel: Annotated[str, typer.Option("--channel", "-c", help="The channel to move.")],
    to: Annotated[
        str | None, typer.Option("--to", help="New position: beginning or end.", metavar="PLACE")
    ] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", min=0, help="New position: an offset.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", help="New position: the first message at or after this time."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Only this stream partition.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Move a channel to another position, so that messages are repeated or skipped.

    A missing channel is created. Messages in flight and deferred messages are forgotten.
    """
    if [to, offset, time].count(None) != 2 or to not in {None, "beginning", "end"}:
        raise InvalidRequest(
            "specify the position: one of --to beginning, --to end, --offset N, --time T"
        )
    query: dict[str, object] = {"topic": name, "channel": channel, "partition": partition}
    if offset is not None:
        query |= {"to": "offset", "offset": offset}
    elif time is not None:
        query |= {"to": "timestamp", "timestamp": parse_time(time)}
    else:
        query["to"] = to
    broker = _broker()
    # Send everything in one request, so that an error creates no channel.
    broker.request("POST", "/channel/create", query=query)
    answer = broker.request("POST", "/channel/seek", query=query)
    rows = objects(answer, "partitions")
    print_rows(rows, as_json=as_json)


def _change(verb: str, name: str, channel: str | None, **more: object) -> None:
    if channel is None:
        _broker().request("POST", f"/topic/{verb}", query={"topic": name, **more})
    else:
        _broker().request("POST", f"/channel/{verb}", query={"topic": name, "channel": channel})


def _called(name: str, channel: str | None) -> str:
    return f"topic {name}" if channel is None else f"channel {channel} of topic {name}"


@topic_app.command()
def delete(
    name: Topic,
    channel: Channel = None,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Only this cursor of a reader.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Delete a topic and its messages, a channel, or the cursor of a reader."""
    if cursor is not None:
        if channel is not None:
            raise InvalidRequest("give --channel or --cursor, not both")
        _delete_cursor(name, cursor, yes=yes)
        return
    loss = "and all its messages" if channel is None else "and its position"
    confirm(f"Delete the {_called(name, channel)} {loss}?", yes=yes)
    _change("delete", name, channel)
    echo(f"{_called(name, channel)} is deleted")


def _delete_cursor(name: str, cursor: str, *, yes: bool) -> None:
    if cursor.startswith(_OF_SUPERVISORS):
        raise InvalidRequest(
            f"the cursor {cursor!r} belongs to a supervisor, which would lose messages: terminate"
            " the supervisor instead"
        )
    topics = _topics(name, with_clients=False)
    known = [str(row["cursor"]) for topic in topics for row in _cursor_rows(topic)]
    if cursor not in known:
        shown = ", ".join(known) or "none"
        raise NotFound(f"topic {name} has no cursor {cursor!r}; its cursors are: {shown}")
    confirm(f"Delete the cursor {cursor} of topic {name} and its position?", yes=yes)
    broker = _broker()
    for part in (part for topic in topics for part in objects(topic, "partitions")):
        query = {"topic": name, "name": cursor, "partition": whole(part, "partition")}
        broker.request("DELETE", "/cursor", query=query)
    echo(f"cursor {cursor} of topic {name} is deleted")


@topic_app.command()
def empty(name: Topic, channel: Channel = None, yes: Yes = False) -> None:
    """Drop a topic's messages, or those of a channel; offsets continue."""
    confirm(f"Drop all messages of the {_called(name, channel)}?", yes=yes)
    _change("empty", name, channel, purge=1)
    echo(f"{_called(name, channel)} is empty")


@topic_app.command()
def pause(name: Topic, channel: Channel = None) -> None:
    """Stop delivering messages to consumers; publishing continues."""
    _change("pause", name, channel)
    echo(f"{_called(name, channel)} is paused")


@topic_app.command()
def unpause(name: Topic, channel: Channel = None) -> None:
    """Resume delivering messages."""
    _change("unpause", name, channel)
    echo(f"{_called(name, channel)} is not paused")
