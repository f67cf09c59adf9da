"""`penstock segment …`: segments of datasources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer

from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.intervals import Interval as TimeInterval
from penstock.services.cli.command_options import CLI
from penstock.services.cli.indexing.followed_tasks import (
    COORDINATOR,
    INDEXER,
    Datasource,
    Interval,
    Json,
    Wait,
    Yes,
    compacts,
    follow,
    named,
)
from penstock.services.cli.output import confirm, echo, print_rows
from penstock.services.json_values import objects, part

if TYPE_CHECKING:
    from penstock.services.json_client import JsonClient

segment_app = typer.Typer(help="Published segments.", no_args_is_help=True, rich_markup_mode=None)

_VERSIONS_SHOWN_MAX: Final = 10

Ids = Annotated[list[str] | None, typer.Argument(help="Ids of segments.")]
Versions = Annotated[
    list[str] | None,
    typer.Option("--version", help="With --interval: only segments of this version."),
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(segment_app, name="segment")


@segment_app.command("list")
def list_segments(
    datasource: Annotated[str | None, typer.Argument(help="Only of this datasource.")] = None,
    unused: Annotated[
        bool, typer.Option("--unused", help="Unused segments, with the time since when.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the used segments, or with --unused a datasource's unused ones."""
    api = CLI.api()
    if unused:
        _list_unused(api, datasource, as_json=as_json)
        return
    empty = "no segments"
    if datasource is None:
        found = api.get(f"{COORDINATOR}/metadata/datasources")
        names = [str(name) for name in found] if isinstance(found, list) else []
        segments = [segment for name in names for segment in _used(api, quote(name, safe=""))]
    else:
        try:
            segments = _used(api, named(datasource))
        except NotFound:
            segments, empty = [], _none_yet(api, datasource)
    rows = [
        {
            "segment": one.get("identifier"),
            "rows": one.get("totalRows"),
            "bytes": one.get("size"),
        }
        for one in segments
    ]
    print_rows(segments if as_json else rows, as_json=as_json, empty=empty)


def _used(api: JsonClient, escaped: str) -> list[dict[str, object]]:
    """Return the used segments of a datasource, whose name is escaped for a path."""
    path = f"{COORDINATOR}/metadata/datasources/{escaped}/segments"
    return objects(api.get(path, {"full": "true"}))


def _none_yet(api: JsonClient, datasource: str) -> str:
    """Describe why a datasource with a supervisor has no segments.

    Raises:
        NotFound: The datasource has no supervisor.
    """
    for one in objects(api.get(f"{INDEXER}/supervisor", {"state": "true"})):
        if one.get("dataSource") == datasource and not compacts(one):
            state = one.get("detailedState") or one.get("state")
            return f"{datasource} has no segments yet; its supervisor {one.get('id')} is {state}"
    raise NotFound(
        f"there is no datasource {datasource!r} with data in it, and no supervisor of it"
    )


def _list_unused(api: JsonClient, datasource: str | None, *, as_json: bool) -> None:
    if datasource is None:
        raise InvalidRequest("must be named for --unused", place="datasource")
    found = objects(
        api.get(f"{COORDINATOR}/metadata/datasources/{named(datasource)}/unusedSegments")
    )
    rows = [
        {
            "segment": part(one, "dataSegment", "identifier"),
            "rows": part(one, "dataSegment", "totalRows"),
            "unused since": one.get("usedStatusLastUpdatedDate"),
        }
        for one in found
    ]
    empty = f"{datasource} has no unused segments"
    if not found:
        try:
            _used(api, datasource)
        except NotFound as error:  # It may be deleted, or misspelt.
            empty = f"no unused segments: {error}"
    print_rows(found if as_json else rows, as_json=as_json, empty=empty)


@segment_app.command()
def timeline(datasource: Datasource, interval: Interval = None, as_json: Json = False) -> None:
    """List the intervals that queries see, with the segment of each."""
    path = f"/penstock/v1/datasources/{named(datasource)}/timeline"
    found = objects(CLI.api().get(path, {"interval": interval}))
    rows = [
        {
            "interval": one.get("interval"),
            "version": one.get("version"),
            "partition": str(one.get("partition")),  # an identifier: no thousands separators
            "rows": one.get("rows"),
            "bytes": one.get("bytes"),
            "clipped": one.get("clipped"),
        }
        for one in found
    ]
    print_rows(found if as_json else rows, as_json=as_json, empty="nothing is visible")


@segment_app.command()
def files(
    datasource: Datasource,
    running: Annotated[
        bool, typer.Option("--running", help="Also files that running tasks have announced.")
    ] = False,
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            metavar="REVISION",
            help="The files that were visible at this revision of the metadata.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the files that queries read, or with --at those that they read at an earlier revision.

    If a segment is visible in part, only rows of the shown time may be read. Each visible change
    has a revision, which is also the id of a snapshot of the Iceberg table. Files of an earlier
    revision exist until their segments are killed.
    """
    if running and at is not None:
        raise InvalidRequest(
            "--running and --at exclude each other: the files of tasks are not kept"
        )
    path = f"/penstock/v1/datasources/{named(datasource)}/files"
    answer = CLI.api().get(path, {"revision": None if at is None else str(at)})
    found = [one for one in objects(part(answer, "files")) if running or not one.get("announced")]
    rows = [
        {
            "file": one.get("path"),
            "rows": one.get("rows"),
            "bytes": one.get("size"),
            "read": one.get("clip") or "all",
        }
        for one in found
    ]
    empty = "nothing is published" if at is None else f"nothing was visible at revision {at}"
    print_rows(found if as_json else rows, as_json=as_json, empty=empty)
    if rows and not as_json:
        echo(f"revision {part(answer, 'revision')}")


@segment_app.command()
def mark_unused(
    datasource: Datasource,
    segments: Ids = None,
    interval: Interval = None,
    version: Versions = None,
) -> None:
    """Mark segments as unused.

    SQL no longer reads them; their files stay until they are killed.
    """
    count = _mark(datasource, "markUnused", segments, interval, version)
    echo(f"segments marked unused: {count}")


segment_app.command("disable", short_help="The same as mark-unused.")(mark_unused)


@segment_app.command()
def mark_used(
    datasource: Datasource,
    segments: Ids = None,
    interval: Interval = None,
    version: Versions = None,
) -> None:
    """Mark unused segments as used again, except those that newer ones hide."""
    count = _mark(datasource, "markUsed", segments, interval, version)
    echo(f"segments marked used: {count}")


def _mark(
    datasource: str,
    verb: str,
    segments: list[str] | None,
    interval: str | None,
    versions: list[str] | None,
) -> object:
    if bool(segments) == (interval is not None):
        raise InvalidRequest("specify segments (see penstock segment list) or --interval")
    body: dict[str, object] = {"segmentIds": segments} if segments else {"interval": interval}
    if versions:
        body["versions"] = versions
    api = CLI.api()
    answer = api.post(f"{INDEXER}/datasources/{named(datasource)}/{verb}", body)
    count = part(answer, "numChangedSegments")
    if not count and interval is not None and versions:
        raise NotFound(_no_version(api, datasource, verb, interval, versions))
    return count


def _no_version(
    api: JsonClient, datasource: str, verb: str, interval: str, versions: list[str]
) -> str:
    """Describe that no segment has one of the versions, and which versions exist."""
    state = "used" if verb == "markUnused" else "unused"
    if state == "used":
        segments: list[object] = [*_used(api, named(datasource))]
    else:
        path = f"{COORDINATOR}/metadata/datasources/{named(datasource)}/unusedSegments"
        segments = [part(one, "dataSegment") for one in objects(api.get(path))]
    wanted = TimeInterval.parse(interval)
    known = sorted(
        {
            str(part(one, "version"))
            for one in segments
            if wanted.overlaps(TimeInterval.parse(str(part(one, "interval"))))
        }
    )
    shown = ", ".join(known[:_VERSIONS_SHOWN_MAX]) or "none"
    return (
        f"{datasource} has no {state} segment of version {', '.join(versions)} within {interval};"
        f" versions of its {state} segments there: {shown}"
    )


@segment_app.command()
def kill(
    datasource: Datasource,
    interval: Annotated[str, typer.Option("--interval", help="Only unused segments within it.")],
    wait: Wait = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Run a task that deletes unused segments and their files."""
    confirm(f"Delete the unused segments of {datasource} in {interval}?", yes=yes)
    task = {"type": "kill", "dataSource": datasource, "interval": interval}
    task_id = str(part(CLI.api().post(f"{INDEXER}/task", task), "task"))
    if wait:
        follow(task_id, as_json=as_json)
    else:
        echo(f"submitted task {task_id}")
