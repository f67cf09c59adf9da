"""`penstock task …` and `penstock segment …`."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from penstock.core.errors import InvalidRequest, NotFound
from penstock.services.cli.context import GIVEN
from penstock.services.cli.output import first_line, print_json, print_rows, say

INDEXER = "/druid/indexer/v1"
COORDINATOR = "/druid/coordinator/v1"

task_app = typer.Typer(help="Indexing tasks.", no_args_is_help=True, rich_markup_mode=None)
segment_app = typer.Typer(help="Published segments.", no_args_is_help=True, rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TaskId = Annotated[str, typer.Argument(help="Id of the task.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(task_app, name="task")
    app.add_typer(segment_app, name="segment")


def _list(value: object) -> list[dict[str, object]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


@task_app.command("list")
def list_tasks(
    state: Annotated[
        str | None, typer.Option("--state", help="pending, waiting, running or complete.")
    ] = None,
    datasource: Annotated[
        str | None, typer.Option("--datasource", help="Only of this one.")
    ] = None,
    limit: Annotated[int, typer.Option("--max", min=1, help="Completed ones, at most.")] = 50,
    as_json: Json = False,
) -> None:
    """List tasks: the running ones and those that completed lately."""
    query = {"state": state, "datasource": datasource, "max": limit}
    found = _list(GIVEN.api().get(f"{INDEXER}/tasks", query))
    rows = [
        {
            "task": one.get("id"),
            "datasource": one.get("dataSource"),
            "status": one.get("statusCode") or one.get("status"),
            "runner": one.get("runnerStatusCode"),
            "created": one.get("createdTime"),
            "error": first_line(one.get("errorMsg")),
        }
        for one in found
    ]
    print_rows(found if as_json else rows, as_json=as_json, empty="no tasks")


@task_app.command()
def status(task: TaskId, as_json: Json = False) -> None:
    """Show the status of a task."""
    answer = GIVEN.api().get(f"{INDEXER}/task/{quote(task, safe='')}/status")
    found = answer.get("status") if isinstance(answer, dict) else None
    if as_json or not isinstance(found, dict):
        print_json(answer)
        return
    for name, value in found.items():
        say(f"{name:<20}{'' if value is None else value}")


@task_app.command()
def log(
    task: TaskId,
    offset: Annotated[
        int, typer.Option("--offset", help="Byte to begin at; negative: from the end.")
    ] = 0,
) -> None:
    """Print the log of a task."""
    path = f"{INDEXER}/task/{quote(task, safe='')}/log"
    code, _, content = GIVEN.api().exchange("GET", path, query={"offset": offset})
    if code == 404:
        raise NotFound(f"there is no log of task {task}")
    say(content.decode(errors="replace").rstrip("\n"))


@task_app.command()
def stop(task: TaskId) -> None:
    """End a task; its supervisor starts another.

    That one begins where rows were published last, so nothing is lost or doubled.
    """
    # The overlord answers for any id, as Druid's does.
    GIVEN.api().get(f"{INDEXER}/task/{quote(task, safe='')}/status")
    GIVEN.api().post(f"{INDEXER}/task/{quote(task, safe='')}/shutdown")
    say(f"task {task} is told to stop")


@segment_app.command("list")
def list_segments(
    datasource: Annotated[str | None, typer.Argument(help="Only of this datasource.")] = None,
    as_json: Json = False,
) -> None:
    """List the used segments."""
    api = GIVEN.api()
    names: list[str] = [datasource] if datasource else []
    if not names:
        found = api.get(f"{COORDINATOR}/metadata/datasources")
        names = [str(name) for name in found] if isinstance(found, list) else []
    segments = [
        segment
        for name in names
        for segment in _list(
            api.get(
                f"{COORDINATOR}/metadata/datasources/{quote(name, safe='')}/segments",
                {"full": "true"},
            )
        )
    ]
    rows = [
        {
            "segment": one.get("identifier"),
            "rows": one.get("totalRows"),
            "bytes": one.get("size"),
        }
        for one in segments
    ]
    print_rows(segments if as_json else rows, as_json=as_json, empty="no segments")


@segment_app.command()
def disable(
    datasource: Annotated[str, typer.Argument(help="The datasource.")],
    segments: Annotated[list[str] | None, typer.Argument(help="Ids of segments.")] = None,
    interval: Annotated[
        str | None, typer.Option("--interval", help="All segments inside, such as 2013-01/2013-02.")
    ] = None,
) -> None:
    """Take segments out of the datasource.

    SQL reads them no more; their files stay until they are cleaned up.
    """
    if bool(segments) == (interval is not None):
        raise InvalidRequest("name segments (see penstock segment list), or give --interval")
    body: dict[str, object] = {"segmentIds": segments} if segments else {"interval": interval}
    path = f"{INDEXER}/datasources/{quote(datasource, safe='')}/markUnused"
    answer = GIVEN.api().post(path, body)
    count = answer.get("numChangedSegments") if isinstance(answer, dict) else answer
    say(f"segments taken out: {count}")
