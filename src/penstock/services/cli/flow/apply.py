"""`penstock flow apply`, `validate`, `diff` and `export`: the flow itself."""

from __future__ import annotations

import json
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from penstock.core.errors import InvalidRequest
from penstock.flow.graph.source_locations import FlowProblem, SourceLocation
from penstock.services.cli.command_options import CLI
from penstock.services.cli.flow.flow_client import (
    FlowDocument,
    FlowRefused,
    Object,
    end_with,
    request,
    request_object,
)
from penstock.services.cli.output import echo, echo_lines, print_json
from penstock.services.cli.server_options import FlowModulesOption as Modules
from penstock.services.cli.spec_files import DocumentKind, other_kind
from penstock.services.json_values import objects, whole

File = Annotated[Path, typer.Argument(help="The flow, YAML or JSON; - is standard input.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class FlowFormat(StrEnum):
    """Format of a flow document."""

    YAML = "yaml"
    JSON = "json"


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(apply)
    app.command()(validate)
    app.command()(diff)
    app.command()(export)


def apply(
    file: File,
    revision: Annotated[
        int | None,
        typer.Option(
            "--revision",
            min=0,
            help="Refuse if the flow has another revision, because it was changed meanwhile.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the changes, as flow diff does.")
    ] = False,
    start: Annotated[
        bool, typer.Option("--start", help="Start all components, now and at each restart.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make this the one running flow; unchanged components continue to run.

    A server runs one flow: components that the file does not name are removed.
    """
    if dry_run and start:
        raise InvalidRequest("--dry-run changes nothing: leave out --start")
    answer = _put(FlowDocument.read(file), revision=revision, dry_run=dry_run, as_json=as_json)
    if start:
        answer |= request_object("POST", "/flow/start")
    if as_json:
        print_json(answer)
        return
    _print_changes(answer)
    if dry_run:
        return
    echo(f"the flow is at revision {whole(answer, 'revision')}{_counts_text(answer)}")
    if start:
        echo("all components are started")
    else:
        _print_running(answer)


def validate(file: File, flow_modules: Modules = None, as_json: Json = False) -> None:
    """Check a flow file, and report every problem with its place; no server is needed.

    Parameter values from the environment are not checked. Nothing is imported: properties and
    relationships of your own classes are checked when the flow is applied.
    """
    # Importing the flow's parts is slow; other commands do not need them.
    from penstock.flow.controller.processor_types import RegistryTypes  # noqa: PLC0415
    from penstock.flow.graph.declarations import NOT_IMPORTED  # noqa: PLC0415 - slow to import, not for every command
    from penstock.flow.graph.flow_index import FlowIndex  # noqa: PLC0415 - slow to import, not for every command
    from penstock.flow.graph.source_locations import InvalidFlow  # noqa: PLC0415
    from penstock.flow.graph.validation import validate as problems_of  # noqa: PLC0415
    from penstock.flow.graph.yaml_reader import read_flow  # noqa: PLC0415
    from penstock.flow.prioritizers import check_prioritizer  # noqa: PLC0415 - slow to import, not for every command
    from penstock.services.processors import registry_for  # noqa: PLC0415 - slow to import, not for every command

    given = FlowDocument.read(file)
    try:
        read = read_flow(given.content, given.name)
    except InvalidFlow as error:
        _end_if_other_kind(given, as_json=as_json)
        then = "processors, properties and connections are checked once this is correct"
        end_with(error.problems, as_json=as_json, then=then)
    registry = registry_for(CLI.options(flow_modules=flow_modules).flow_modules)
    types = RegistryTypes(registry, imports=False)
    problems = problems_of(
        read.flow,
        types,
        places=read.places,
        check_prioritizer=lambda name: check_prioritizer(name, registry.modules),
    )
    if problems:
        end_with(problems, as_json=as_json)
    if as_json:
        print_json({"valid": True, "name": read.flow.name, "problems": []})
    else:
        echo(f"{given.name}: flow {read.flow.name} is valid")
        named = {processor.type for _, processor in FlowIndex.of(read.flow).processors}
        if unread := sorted(one for one in named if types.find(one) is NOT_IMPORTED):
            echo(f"properties and relationships are checked at apply: {', '.join(unread)}")


def diff(file: File, as_json: Json = False) -> None:
    """Show what applying a file would change, and which components it would stop."""
    answer = _put(FlowDocument.read(file), revision=None, dry_run=True, as_json=as_json)
    if as_json:
        print_json(answer)
    else:
        _print_changes(answer)


def export(
    format_: Annotated[
        FlowFormat, typer.Option("--format", help="Format of the output.")
    ] = FlowFormat.YAML,
) -> None:
    """Print the applied flow as a file that can be applied; it contains no secrets."""
    answer = request("GET", "/flow", {"format": "yaml"})
    text = answer if isinstance(answer, str) else json.dumps(answer)
    if format_ is FlowFormat.JSON:
        # Imported here, because only this command needs them, and importing them is slow.
        from penstock.flow.graph.export import to_json  # noqa: PLC0415
        from penstock.flow.graph.yaml_reader import read_flow  # noqa: PLC0415

        text = to_json(read_flow(text).flow)
    echo_lines(text.rstrip("\n"))


def _put(file: FlowDocument, *, revision: int | None, dry_run: bool, as_json: bool) -> Object:
    query = {"file": file.name, "revision": revision, "dryRun": "true" if dry_run else None}
    try:
        return request_object("PUT", "/flow", query, file.content)
    except FlowRefused as refused:
        _end_if_other_kind(file, as_json=as_json)
        end_with(refused.problems, as_json=as_json)


def _end_if_other_kind(file: FlowDocument, *, as_json: bool) -> None:
    """End the command if a refused file is not a flow, but another file that a command submits.

    Raises:
        InvalidRequest: It is, and the problem is not printed as JSON.
    """
    if text := other_kind(file.name, file.content, DocumentKind.FLOW):
        if as_json:
            place = SourceLocation(1, 1, "", file.name)
            end_with([FlowProblem(place, text)], as_json=True)
        raise InvalidRequest(text, place=file.name)


def _print_changes(answer: Object) -> None:
    changes = objects(answer, "changes")
    for change in changes:
        echo_lines(str(change.get("text")))
    owner, before = answer.get("owner"), answer.get("previousOwner")
    if before is not None and before != owner:
        restart = ": all its processors restart" if answer.get("allRestart") is True else ""
        echo(f"the flow acts for {owner} instead of {before}{restart}")
    elif not changes and answer.get("commentsChanged") is True:
        echo("only comments change")
    elif not changes:
        echo("nothing would change")


def _print_running(answer: Object) -> None:
    """Report whether added components run, which depends on what was started before."""
    if not any(change.get("kind") == "added" for change in objects(answer, "changes")):
        return
    if answer.get("running") is True:
        echo(
            "added components run, because everything was started before; see: penstock flow status"
        )
        return
    new = (
        "no component runs yet"
        if whole(answer, "revision") == 1
        else "added components are stopped"
    )
    echo(f"{new}; start with: penstock flow start")


def _counts_text(answer: Object) -> str:
    kinds = Counter(str(change.get("kind")) for change in objects(answer, "changes"))
    return "".join(f", {count:,} {kind}" for kind, count in sorted(kinds.items()))
