"""`penstock rule …`: retention rules of segments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.core.errors import InvalidRequest, counted
from penstock.core.printable import quoted
from penstock.services.cli.command_options import CLI
from penstock.services.cli.indexing.followed_tasks import (
    COORDINATOR,
    Json,
    named,
    warn_of_no_data,
)
from penstock.services.cli.output import echo, print_json, print_rows, read_json
from penstock.services.json_values import objects, part, whole

# Druid's name of the rules that apply to all datasources.
_DEFAULT: Final = "_default"

rule_app = typer.Typer(help="Retention rules.", no_args_is_help=True, rich_markup_mode=None)

Of = Annotated[str, typer.Argument(help="The datasource; _default: rules of all datasources.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(rule_app, name="rule")


@rule_app.command("list")
def list_rules(
    datasource: Annotated[
        str | None, typer.Argument(help="Only rules that apply to this one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List rules in the order in which they are tried; the first that matches a segment wins."""
    api = CLI.api()
    found: object
    if datasource is None:
        shown = found = api.get(f"{COORDINATOR}/rules")
    else:
        path = f"{COORDINATOR}/rules/{named(datasource)}"
        own, all_of_it = api.get(path), api.get(path, {"full": "true"})
        # The rules of all datasources follow its own, and are marked as such.
        theirs = objects(all_of_it)[len(objects(own)) :]
        found = {datasource: all_of_it}
        shown = {datasource: own, _DEFAULT: theirs}
    if as_json:
        print_json(found)
        return
    rows = [
        {
            "datasource": name,
            "rule": rule.get("type"),
            "time": rule.get("period") or rule.get("interval"),
        }
        for name, rules in (shown.items() if isinstance(shown, dict) else ())
        for rule in objects(rules)
    ]
    print_rows(rows, as_json=False, empty="no rules")


@rule_app.command("set")
def set_rules(
    datasource: Of,
    file: Annotated[Path, typer.Argument(help="A JSON list of rules; - is standard input.")],
    comment: Annotated[
        str, typer.Option("--comment", help="Reason of the change, which is stored.")
    ] = "",
) -> None:
    """Set all rules of a datasource, in order; with an empty list, only _default applies."""
    rules = read_json(file)
    if not (comment.isprintable() and _fits_a_header(comment)):
        raise InvalidRequest(
            f"{quoted(comment)} cannot be sent, because it is a header of HTTP: use one line of"
            " characters of Latin-1",
            place="--comment",
        )
    headers = {"X-Druid-Author": "penstock rule set", "X-Druid-Comment": comment}
    path = f"{COORDINATOR}/rules/{named(datasource)}"
    api = CLI.api()
    answer = api.post(path, rules, headers=headers)
    echo(f"{datasource} has {counted(len(objects(answer)), 'rule')} of its own")
    if datasource != _DEFAULT:
        warn_of_no_data(api, datasource)


@rule_app.command()
def preview(
    datasource: Of,
    file: Annotated[Path, typer.Argument(help="A JSON list of rules; - is standard input.")],
    as_json: Json = False,
) -> None:
    """Show what rules would drop now, without setting them."""
    path = f"/penstock/v1/datasources/{named(datasource)}/rules/preview"
    found = CLI.api().post(path, read_json(file))
    if as_json:
        print_json(found)
        return
    print_rows(objects(found, "intervals"), as_json=False, empty="nothing would be dropped")
    count = whole(part(found, "dropped"), "segments")
    if count:
        rows = counted(whole(part(found, "dropped"), "rows"), "row")
        echo(f"{counted(count, 'segment')} with {rows} would be dropped")


def _fits_a_header(text: str) -> bool:
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


@rule_app.command()
def history(datasource: Of, as_json: Json = False) -> None:
    """List the changes of a datasource's rules with their authors, newest first."""
    found = objects(CLI.api().get(f"{COORDINATOR}/rules/{named(datasource)}/history"))
    rows = [
        {
            "time": one.get("auditTime"),
            "author": part(one, "auditInfo", "author"),
            "comment": part(one, "auditInfo", "comment"),
            "rules": ", ".join(str(rule.get("type")) for rule in objects(one.get("payload"))),
        }
        for one in found
    ]
    print_rows(found if as_json else rows, as_json=as_json, may_cut=("comment", "rules"))
