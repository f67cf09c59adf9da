"""`penstock compaction …`: rewriting of segments to a configured form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.core.errors import InvalidRequest
from penstock.services.cli.command_options import CLI
from penstock.services.cli.indexing.followed_tasks import (
    INDEXER,
    Datasource,
    Interval,
    Json,
    Wait,
    follow,
    named,
    warn_of_no_data,
)
from penstock.services.cli.output import echo, print_json, print_rows, read_json
from penstock.services.json_values import objects, part

compaction_app = typer.Typer(
    help="Automatic compaction.", no_args_is_help=True, rich_markup_mode=None
)

_BASE: Final = f"{INDEXER}/compaction"


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(compaction_app, name="compaction")


@compaction_app.command("set")
def set_config(
    file: Annotated[Path, typer.Argument(help="The configuration, JSON; - is standard input.")],
) -> None:
    """Set the compaction configuration of a datasource."""
    config = read_json(file)
    name = part(config, "dataSource")
    if not isinstance(name, str) or not name:
        raise InvalidRequest("must name the datasource", place=f"{file}: dataSource")
    api = CLI.api()
    api.post(f"{_BASE}/config/datasources/{named(name)}", config)
    echo(f"compaction of {name} is configured")
    warn_of_no_data(api, name)


@compaction_app.command()
def show(datasource: Datasource) -> None:
    """Show the configuration of a datasource, in the form that `set` accepts."""
    print_json(CLI.api().get(f"{_BASE}/config/datasources/{named(datasource)}"))


@compaction_app.command()
def remove(datasource: Datasource) -> None:
    """Stop compacting a datasource; running tasks continue."""
    CLI.api().request("DELETE", f"{_BASE}/config/datasources/{named(datasource)}")
    echo(f"{datasource} is no longer compacted")


@compaction_app.command()
def status(
    datasource: Annotated[str | None, typer.Argument(help="Only this datasource.")] = None,
    as_json: Json = False,
) -> None:
    """Show how much is compacted, and how much remains."""
    api = CLI.api()
    if datasource is None:
        found = objects(api.get(f"{_BASE}/status/datasources"), "latestStatus")
    else:
        found = objects([api.get(f"{_BASE}/status/datasources/{named(datasource)}")])
    if as_json:
        print_json(found)
        return
    rows = [
        {
            "datasource": one.get("dataSource"),
            "state": "SUSPENDED" if one.get("scheduleStatus") == "NOT_ENABLED" else "RUNNING",
            "awaiting": one.get("segmentCountAwaitingCompaction"),
            "awaiting bytes": one.get("bytesAwaitingCompaction"),
            "compacted": one.get("segmentCountCompacted"),
            "skipped": one.get("segmentCountSkipped"),
        }
        for one in found
    ]
    print_rows(rows, as_json=False, empty="no datasource is compacted automatically")


@compaction_app.command("run")
def run_now(
    datasource: Datasource,
    interval: Interval = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Compact a datasource now: an interval, or everything due by its configuration."""
    # Imported here, because no other command needs it, and importing it is slow.
    from penstock.core.intervals import Interval as Time  # noqa: PLC0415
    from penstock.indexing.specs.compaction import CompactionConfig, parse_compaction  # noqa: PLC0415

    api = CLI.api()
    if interval is None:
        config = parse_compaction(
            json.dumps(api.get(f"{_BASE}/config/datasources/{named(datasource)}"))
        )
        due = part(api.get(f"{_BASE}/status/datasources/{named(datasource)}"), "due")
        times = [Time.parse(str(one)) for one in (due if isinstance(due, list) else [])]
    else:
        config, times = CompactionConfig(datasource=datasource), [Time.parse(interval)]
    started = []
    for time in times:
        answer = api.request(
            "POST", f"{INDEXER}/task", json.dumps(config.task(time).to_json()).encode()
        )
        started.append(str(part(answer, "task")))
        if not as_json:
            echo(f"task {started[-1]} compacts {time}")
    if as_json and not wait:
        print_json(started)
    elif not started:
        echo(f"no interval of {datasource} needs compaction now")
    for task_id in started if wait else ():
        follow(task_id, as_json=as_json)
