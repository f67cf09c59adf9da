"""`penstock flow queue …`: FlowFiles in a connection."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from penstock.core.errors import InvalidRequest, PenstockError, counted
from penstock.services.cli.flow.flow_client import Object, request_bytes, request_object
from penstock.services.cli.flow.flow_control import connection_row, size
from penstock.services.cli.output import confirm, echo, print_json, print_rows
from penstock.services.json_values import objects, whole

_POLL_EVERY_S = 0.2
_PIECE_BYTES = 8 << 20
_UNDER_WAY = frozenset({"waiting", "dropping"})

queue_app = typer.Typer(
    help="FlowFiles in a connection.", no_args_is_help=True, rich_markup_mode=None
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Connection = Annotated[
    str, typer.Argument(help="Name or id of the connection, such as 'Read.success -> Validate'.")
]
Most = Annotated[int, typer.Option("--max", "-n", min=1, max=1_000, help="Maximum number.")]


@queue_app.command("list")
def list_queue(
    connection: Annotated[
        str | None, typer.Argument(help="Name or id of a connection. [default: list all]")
    ] = None,
    most: Most = 100,
    as_json: Json = False,
) -> None:
    """List the FlowFiles of a connection in their order, or the connections."""
    if connection is not None:
        _list(
            request_object("GET", "/flow/queue", {"connection": connection, "limit": most}), as_json
        )
        return
    found = objects(request_object("GET", "/flow/status"), "connections")
    rows = found if as_json else [connection_row(one) for one in found]
    print_rows(rows, as_json=as_json, empty="no connections")


@queue_app.command()
def search(
    connection: Connection,
    attribute: Annotated[
        str, typer.Argument(metavar="NAME=VALUE", help="An attribute and its value.")
    ],
    most: Most = 100,
    as_json: Json = False,
) -> None:
    """List the FlowFiles whose attribute has a value, including those in swap files."""
    query = {"connection": connection, "limit": most, **_attribute(attribute)}
    _list(request_object("GET", "/flow/queue", query), as_json)


@queue_app.command()
def count(
    connection: Connection,
    attribute: Annotated[str, typer.Argument(help="Name of the attribute.")],
    most: Most = 100,
    as_json: Json = False,
) -> None:
    """Count the FlowFiles by the value of an attribute, including those in swap files."""
    query = {"connection": connection, "attribute": attribute, "limit": most}
    answer = request_object("GET", "/flow/queue/count", query)
    if as_json:
        print_json(answer)
        return
    rows = [
        {
            attribute: "(none)" if one.get("value") is None else one.get("value"),
            "FlowFiles": one.get("count"),
        }
        for one in objects(answer, "counts")
    ]
    print_rows(rows, as_json=False, empty="the queue is empty")
    more = whole(answer, "values") - len(rows)
    if more > 0:
        echo()
        echo(f"and {counted(more, 'more value')}; --max shows up to 1,000")


@queue_app.command()
def content(
    connection: Connection,
    flowfile: Annotated[int, typer.Argument(metavar="ID", min=0, help="Id of a listed FlowFile.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file. [default: print]")
    ] = None,
) -> None:
    """Read the content of a FlowFile of a connection; it stays there."""
    query = {"connection": connection, "flowFile": flowfile, "limit": _PIECE_BYTES}
    piece = request_bytes("/flow/queue/content", query)  # its errors leave no file
    with contextlib.ExitStack() as files:
        out = sys.stdout.buffer
        if output is not None:
            try:
                out = files.enter_context(output.open("wb"))
            except OSError as error:
                raise InvalidRequest(f"{output} cannot be written: {error.strerror}") from None
        out.write(piece)
        offset = len(piece)
        while len(piece) == _PIECE_BYTES:
            piece = request_bytes("/flow/queue/content", {**query, "offset": offset})
            out.write(piece)
            offset += len(piece)
    if output is not None:
        echo(f"{counted(offset, 'byte')} written to {output}")


@queue_app.command()
def drop(
    connection: Connection,
    attribute: Annotated[
        str | None,
        typer.Argument(metavar="NAME=VALUE", help="Only FlowFiles whose attribute has this value."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Drop the FlowFiles of a connection, all or some; those in sessions stay."""
    which = f"FlowFiles with {attribute}" if attribute else "all FlowFiles"
    chosen = {} if attribute is None else _attribute(attribute)
    confirm(f"Drop {which} of connection {connection}?", yes=yes)
    answer = request_object("POST", "/flow/queue/drop", {"connection": connection, **chosen})
    number = answer.get("request")
    pause = threading.Event()
    try:
        while answer.get("state") in _UNDER_WAY:
            pause.wait(_POLL_EVERY_S)
            answer = request_object("GET", "/flow/queue/drop", {"request": number})
    except KeyboardInterrupt:  # narrow: the user stops the drop
        request_object("DELETE", "/flow/queue/drop", {"request": number})
        raise
    if as_json:
        print_json(answer)
    else:
        dropped = whole(answer, "dropped")
        echo(f"{counted(dropped, 'FlowFile')} dropped, {size(whole(answer, 'droppedBytes'))}")
    if answer.get("state") != "complete":
        raise PenstockError(f"not all were dropped: {answer.get('failure') or 'it was stopped'}")


def _attribute(text: str) -> dict[str, object]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidRequest(f"invalid {text!r}: write NAME=VALUE, such as filename=flights.csv")
    return {"attribute": name, "value": value}


def _list(answer: Object, as_json: bool) -> None:
    found = objects(answer, "flowFiles")
    if as_json:
        print_json(found)
        return
    rows = [
        {
            "id": one.get("id"),
            "size": size(whole(one, "size")),
            "queued": one.get("queuedDate"),
            "penalized": one.get("penalized"),
            "attributes": one.get("attributes"),
        }
        for one in found
    ]
    print_rows(rows, as_json=False, empty="no such FlowFiles", may_cut=("attributes",))
    if rows:
        echo()
        echo(f"{len(rows):,} shown of {whole(answer, 'queued'):,} queued")
