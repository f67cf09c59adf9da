"""`penstock table …`: Delta tables of datasources, and the cursors of streams that read them."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote

import typer

from penstock.core.errors import Conflict, counted
from penstock.services.cli.command_options import CLI
from penstock.services.cli.indexing.followed_tasks import Datasource, Json, Yes, named
from penstock.services.cli.output import confirm, echo, print_json, print_rows, warn
from penstock.services.json_values import objects, part, whole

table_app = typer.Typer(
    help="Delta tables of datasources, and cursors of streams.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
delta_app = typer.Typer(
    help="Delta tables, for engines that read no Iceberg catalog.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
cursor_app = typer.Typer(
    help="Cursors of Spark queries: how far each has read a datasource.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
table_app.add_typer(delta_app, name="delta")
table_app.add_typer(cursor_app, name="cursor")

_DISABLED: Final = "disabled"
_NOT_READABLE: Final = ("refused", "damaged", "failing")


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(table_app, name="table")


@delta_app.command()
def enable(datasource: Datasource, as_json: Json = False) -> None:
    """Let a datasource have a Delta table, which follows each publish."""
    _print_state(CLI.api().post(_path(datasource)), as_json=as_json)


@delta_app.command()
def disable(datasource: Datasource, yes: Yes = False) -> None:
    """Delete the Delta table of a datasource. Its segments are not changed."""
    confirm(
        f"delete the Delta table of {datasource}?",
        yes=yes,
        loss="engines can no longer read it, and a new one has no earlier versions",
    )
    CLI.api().request("DELETE", _path(datasource))
    echo(f"deleted the Delta table of {datasource}")


@delta_app.command()
def rebuild(datasource: Datasource, as_json: Json = False) -> None:
    """Write the log of a Delta table again, without earlier versions."""
    _print_state(CLI.api().post(f"{_path(datasource)}/rebuild"), as_json=as_json)


@delta_app.command()
def status(datasource: Datasource, as_json: Json = False) -> None:
    """Show where the Delta table of a datasource is, and whether it is current."""
    _print_state(CLI.api().get(_path(datasource)), as_json=as_json)


@cursor_app.command(name="list")
def list_cursors(datasource: Datasource, as_json: Json = False) -> None:
    """Show the rows that each query with the option `cursor` has not read."""
    found = objects(CLI.api().get(_cursors(datasource)), "cursors")
    rows = [
        {
            "cursor": one.get("cursor"),
            "rows behind": one.get("rowsBehind"),
            "moved": one.get("moved"),
        }
        for one in found
    ]
    print_rows(rows, as_json=as_json)


@cursor_app.command(name="delete")
def delete_cursor(
    datasource: Datasource,
    cursor: Annotated[str, typer.Argument(help="Name of the cursor.")],
    yes: Yes = False,
) -> None:
    """Delete the cursor of a query that has ended. A running query sets it again."""
    confirm(f"delete the cursor {cursor} of {datasource}?", yes=yes)
    CLI.api().request("DELETE", f"{_cursors(datasource)}/{quote(cursor, safe='')}")
    echo(f"cursor {cursor} of {datasource} is deleted")


def _cursors(datasource: str) -> str:
    return f"/penstock/v1/datasources/{named(datasource)}/cursors"


def _path(datasource: str) -> str:
    return f"/penstock/v1/datasources/{named(datasource)}/delta"


def _print_state(answer: object, *, as_json: bool) -> None:
    """Print the state of a table.

    Raises:
        Conflict: The table cannot be brought up to date.
    """
    state, name = part(answer, "state"), part(answer, "datasource")
    if as_json:
        print_json(answer)
    elif state == _DISABLED:
        echo(f"{name} has no Delta table")
    else:
        echo(f"{part(answer, 'location')}: {state}")
        if part(answer, "table") is not None:
            _print_table(part(answer, "table"))
    if state in _NOT_READABLE:
        raise Conflict(f"the Delta table of {name} is not current: {part(answer, 'reason')}")


def _print_table(table: object) -> None:
    rows, files = counted(whole(table, "rows"), "row"), counted(whole(table, "files"), "file")
    echo(f"version {whole(table, 'version')}, with {rows} in {files}")
    if copies := whole(table, "copies"):
        size = counted(whole(table, "copiedBytes"), "byte")
        echo(f"{counted(copies, 'file')} with {size} copied from segments that are visible in part")
    left_out = part(table, "columnsLeftOut")
    for column, reason in (left_out if isinstance(left_out, dict) else {}).items():
        warn(f"without the column {column}: {reason}")
