"""`penstock trace …`: follow one event from its message to its row, and a row back to messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.core.errors import InvalidRequest, counted
from penstock.core.printable import quoted
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import echo, print_json, print_rows, warn
from penstock.services.json_values import objects, part, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

trace_app = typer.Typer(help="Follow one event.", no_args_is_help=True, rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_PATH = "/penstock/v1/trace"


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(trace_app, name="trace")


@trace_app.command()
def message(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[
        int | None, typer.Argument(help="The stream partition, as penstock topic peek shows it.")
    ] = None,
    offset: Annotated[int | None, typer.Argument(help="The offset in it.")] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", help="Id of the message, instead of partition and offset.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Follow a message to its row, or to the reason why SQL does not show it."""
    given = [value is not None for value in (partition, offset)]
    if (message_id is not None and any(given)) or (message_id is None and not all(given)):
        raise InvalidRequest("write a stream partition and an offset, or --id ID")
    query = {"topic": topic, "partition": partition, "offset": offset, "id": message_id}
    found = CLI.api().get(f"{_PATH}/message", query)
    if as_json:
        print_json(found)
        return
    at = part(found, "message", "publishedAt") or "deleted by the topic"
    echo(
        f"message {part(found, 'id')}: stream partition {part(found, 'partition')}, offset"
        f" {part(found, 'offset')} of {topic}, {at}"
    )
    for one in objects(found, "flow"):
        echo(f"  {part(one, 'text')}")
    readers = objects(found, "readers")
    if not readers:
        echo("no supervisor that you may see reads this topic")
    for reader in readers:
        echo("")
        _print_reader(reader)


def _print_reader(reader: Mapping[str, object]) -> None:
    ended = ", terminated" if part(reader, "terminated") else ""
    echo(
        f"{part(reader, 'datasource')} (supervisor {part(reader, 'supervisor')}{ended}):"
        f" {part(reader, 'outcome')}: {part(reader, 'reason')}"
    )
    if part(reader, "rolledUp"):
        echo("rows are rolled up: one row may stand for several messages")
    if part(reader, "readAgain"):
        echo("the supervisor was reset and will read this message again")
    rows = [
        {"step": part(one, "step"), "time": part(one, "time"), "what": part(one, "text")}
        for one in objects(reader, "steps")
    ]
    print_rows(rows, as_json=False, empty="no steps", may_cut=("what",))


@trace_app.command()
def row(
    datasource: Annotated[str, typer.Argument(help="The datasource.")],
    time: Annotated[str, typer.Argument(help="The row's __time, such as 2013-01-01T12:00:00Z.")],
    columns: Annotated[
        list[str] | None,
        typer.Argument(help="Values of columns: NAME=VALUE, or NAME alone for null."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Follow a row back to its messages, or to its batch task."""
    wanted = {
        "datasource": datasource,
        "time": time,
        "columns": dict(map(_column, columns or [])),
    }
    api = CLI.api()
    answer = api.post(f"{_PATH}/row", wanted)
    messages = objects(answer, "messages")
    while (cursor := part(answer, "cursor")) is not None:
        scanned, total = whole(answer, "scanned"), whole(answer, "toScan")
        warn(f"{scanned:,} of {total:,} messages scanned")
        answer = api.post(f"{_PATH}/row", {**wanted, "cursor": cursor})
        messages += objects(answer, "messages")
    if as_json:
        shown = dict(answer) if isinstance(answer, dict) else {}
        print_json({**shown, "messages": messages})
        return
    echo(f"{datasource} at {part(answer, 'time')}: {counted(whole(answer, 'rows'), 'row')}")
    if unread := part(answer, "unread"):
        echo(f"not all files were searched: {unread}")
    segments = [
        {
            "segment": part(one, "segment"),
            "rows": part(one, "rows"),
            "task": part(one, "task") or part(one, "reason"),
            "published": part(one, "publishedAt"),
            "input": part(one, "input"),
        }
        for one in objects(answer, "segments")
    ]
    running = [
        {
            "segment": "not published yet",
            "rows": part(one, "rows"),
            "task": part(one, "task"),
            "published": None,
            "input": None,
        }
        for one in objects(answer, "running")
    ]
    print_rows([*segments, *running], as_json=False, empty="SQL shows no such row")
    if part(answer, "rolledUp"):
        echo("rows are rolled up: one row may stand for several messages")
    notes = part(answer, "notes")
    for note in notes if isinstance(notes, list) else []:
        echo(str(note))
    if messages:
        echo("")
        print_rows(messages, as_json=False)
    elif whole(answer, "toScan"):
        echo("no message that the topic still has makes this row")


def _column(text: str) -> tuple[str, str | None]:
    """Return the name and the value of an argument.

    Raises:
        InvalidRequest: The name is empty.
    """
    name, given, value = text.partition("=")
    if not name:
        raise InvalidRequest(f"{quoted(text)} is not NAME=VALUE: write the name of a column first")
    return name, value if given else None
