"""`penstock lookup …`: small tables that queries and flows join by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.core.errors import counted
from penstock.services.cli.command_options import CLI
from penstock.services.cli.indexing.followed_tasks import Json, Yes, named
from penstock.services.cli.output import confirm, echo, print_json, print_rows
from penstock.services.cli.spec_files import DocumentKind, errors_in, read_spec
from penstock.services.json_values import objects, whole

PATH = "/penstock/v1/lookups"

lookup_app = typer.Typer(
    help="Lookups: small tables that queries and flows join by name.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(help="Name of the lookup.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(lookup_app, name="lookup")


@lookup_app.command("list")
def list_lookups(as_json: Json = False) -> None:
    """List the lookups, with the state of their refreshes."""
    found = objects(CLI.api().get(PATH), "lookups")
    rows = [
        {
            "name": one.get("name"),
            "version": one.get("version"),
            "rows": one.get("rows"),
            "loaded": one.get("loaded"),
            "next refresh": one.get("nextRefresh"),
            "problem": one.get("reason"),
        }
        for one in found
    ]
    print_rows(
        found if as_json else rows, as_json=as_json, empty="no lookups", may_cut=("problem",)
    )


@lookup_app.command()
def show(name: Name) -> None:
    """Show a lookup with its spec, as JSON."""
    print_json(CLI.api().get(f"{PATH}/{named(name)}"))


@lookup_app.command()
def apply(
    file: Annotated[Path, typer.Argument(help="The spec, JSON or YAML; - is standard input.")],
    as_json: Json = False,
) -> None:
    """Declare a lookup, or replace its spec, and read its rows."""
    spec = read_spec(file)
    with errors_in(file, spec, DocumentKind.LOOKUP):
        answer = CLI.api().request("POST", PATH, spec)
    _print_state(answer, "applied", as_json=as_json)


@lookup_app.command()
def refresh(name: Name, as_json: Json = False) -> None:
    """Read the rows of a lookup again. If that fails, the rows stay as they were."""
    answer = CLI.api().post(f"{PATH}/{named(name)}/refresh")
    _print_state(answer, "refreshed", as_json=as_json)


@lookup_app.command()
def delete(name: Name, yes: Yes = False) -> None:
    """Delete a lookup. Queries that name it fail from then on, and flows wait."""
    confirm(f"delete the lookup {name}?", yes=yes, loss=f"{name} cannot be restored")
    CLI.api().request("DELETE", f"{PATH}/{named(name)}")
    echo(f"deleted lookup {name}")


def _print_state(answer: object, done: str, *, as_json: bool) -> None:
    if as_json or not isinstance(answer, dict):
        print_json(answer)
        return
    rows = counted(whole(answer, "rows"), "row")
    echo(f"{done} lookup {answer.get('name')}, version {answer.get('version')}, with {rows}")
