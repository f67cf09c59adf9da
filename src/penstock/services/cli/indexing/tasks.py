"""`penstock task …`: tasks of the overlord."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.core.errors import InvalidRequest
from penstock.core.printable import quoted
from penstock.core.similar_names import nearest
from penstock.services.cli.command_options import CLI
from penstock.services.cli.indexing.followed_tasks import (
    INDEXER,
    Json,
    Wait,
    emptied,
    end_of,
    follow,
    live_report,
    named,
    progress_text,
    removed,
    retry_text,
    task_status,
)
from penstock.services.cli.output import (
    echo,
    echo_lines,
    first_line,
    print_json,
    print_rows,
    wait_lines,
)
from penstock.services.cli.spec_files import DocumentKind, errors_in, read_spec
from penstock.services.json_values import objects, part

task_app = typer.Typer(help="Indexing tasks.", no_args_is_help=True, rich_markup_mode=None)

TaskId = Annotated[str, typer.Argument(help="Id of the task.")]

_TASK: Final = f"{INDEXER}/task"
# Druid's duration of a task that has not ended.
_STILL_RUNS: Final = -1

# Names in `penstock.services.api.process_clients`, whose import would slow each command's start.
LOG_OFFSET: Final = "X-Penstock-Log-Offset"
LOG_SIZE: Final = "X-Penstock-Log-Size"


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(task_app, name="task")


@task_app.command()
def submit(
    file: Annotated[Path, typer.Argument(help="The task, JSON or YAML; - is standard input.")],
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Submit a batch task: index_parallel, compact, kill, and others."""
    spec = read_spec(file)
    with errors_in(file, spec, DocumentKind.TASK):
        answer = CLI.api().request("POST", _TASK, spec)
    task_id = str(part(answer, "task"))
    if wait:
        follow(task_id, as_json=as_json)
    elif as_json:
        print_json(answer)
    else:
        echo(f"submitted task {task_id}")


# Of tasks that ended; the API's state of both is `complete`.
_ENDED: Final = ("success", "failed")
_STATES: Final = ("pending", "waiting", "running", "complete", *_ENDED)


@task_app.command("list")
def list_tasks(
    state: Annotated[
        str | None, typer.Option("--state", help=f"One of {', '.join(_STATES)}.")
    ] = None,
    datasource: Annotated[
        str | None, typer.Option("--datasource", help="Only tasks of this datasource.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--type", help="Only tasks of this type.")] = None,
    created: Annotated[
        str | None,
        typer.Option(
            "--created", help="Only ended tasks created in this interval. [default: one day]"
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--max", min=1, help="Maximum number of ended tasks.")] = 50,
    as_json: Json = False,
) -> None:
    """List tasks: running ones and those that ended recently."""
    wanted = None if state is None else _known_state(state)
    query = {"state": wanted, "datasource": datasource, "max": limit, "type": kind}
    query["createdTimeInterval"] = created
    if wanted in _ENDED:
        # The API has one state for both; the limit applies after the selection.
        query |= {"state": "complete", "max": None}
    found = objects(CLI.api().get(f"{INDEXER}/tasks", query))
    if wanted in _ENDED:
        found = [one for one in found if str(one.get("statusCode")).lower() == wanted][:limit]
    rows = [
        {
            "task": one.get("id"),
            "type": one.get("type"),
            "datasource": one.get("dataSource"),
            "status": _stands(one),
            "created": str(one.get("createdTime"))[:19],
            "seconds": _seconds(one.get("duration")),
        }
        for one in found
    ]
    print_rows(found if as_json else rows, as_json=as_json, empty="no tasks")
    # Below the table, with the full width of the terminal.
    for one in () if as_json else found:
        if one.get("errorMsg"):
            echo(f"{one.get('id')}: {first_line(one['errorMsg'])}")
        for line in wait_lines(one):
            echo(f"{one.get('id')} waits for {line}")


def _known_state(text: str) -> str:
    """Return a state in lower case.

    Raises:
        InvalidRequest: It is none.
    """
    state = text.lower()
    if state not in _STATES:
        raise InvalidRequest(
            f"invalid state {quoted(text)}{nearest(state, _STATES)}; use {', '.join(_STATES)}",
            place="--state",
        )
    return state


def _stands(task: Mapping[str, object]) -> object:
    """Return how a task ended, or its state: for Druid, a pending task is RUNNING, too."""
    status = task.get("statusCode") or task.get("status")
    return (task.get("runnerStatusCode") or status) if status == "RUNNING" else status


@task_app.command()
def status(task: TaskId, as_json: Json = False) -> None:
    """Show the status of a task, and the progress of a running one."""
    api = CLI.api()
    answer = api.get(f"{_TASK}/{named(task)}/status")
    found = part(answer, "status")
    if as_json or not isinstance(found, dict):
        print_json(answer)
        return
    for name, value in found.items():
        if name in {"queueInsertionTime", "waits"}:
            # Waits follow below; Druid's time is always in the year 1970, so it is left out.
            continue
        if name == "duration":
            if (seconds := _seconds(value)) is not None:
                echo(f"{name:<20}{seconds:,.1f} s")
            continue
        shown = _place(value) if name == "location" else value
        echo(f"{name:<20}{'' if shown is None else shown}")
    lines = wait_lines(found)
    for line in lines:
        echo(f"{'waits for':<20}{line}")
    report = live_report(api, task, found)
    if progress := progress_text(report):
        echo(f"{'progress':<20}{progress}")
    failed = None if lines else retry_text(report)
    if failed is not None:
        echo(f"{'trouble':<20}{failed}")


def _seconds(duration_ms: object) -> float | None:
    """Return the duration of a task that has ended, rounded; None for other tasks."""
    if not isinstance(duration_ms, int) or duration_ms == _STILL_RUNS:
        return None
    return round(duration_ms / 1000, 1)


def _place(location: object) -> str | None:
    """Format the location of a task; without a host if it does not run."""
    host = part(location, "host")
    return None if host is None else f"{host}:{part(location, 'port')}"


@task_app.command()
def why(task: TaskId, as_json: Json = False) -> None:
    """Show why a task waits: for locks of others, a free slot, or an earlier publish."""
    api = CLI.api()
    answer = api.get(f"{_TASK}/{named(task)}/why")
    if as_json:
        print_json(answer)
        return
    waits = objects(answer, "waits")
    if not waits:
        found = part(answer, "status")
        stands = end_of(task, found) or "it is running"
        failed = retry_text(live_report(api, task, found))
        again = "" if failed is None else f"; {failed}"
        echo(f"task {task} waits for nothing; {stands}{again}")
    texts = (f"waits for {one.get('kind')}: {first_line(one.get('text'))}" for one in waits)
    # Each lock is one wait, and the text lists the workers already.
    for line in dict.fromkeys(texts):
        echo(line)


@task_app.command()
def log(
    task: TaskId,
    offset: Annotated[
        int, typer.Option("--offset", help="Offset of the first byte; negative: from the end.")
    ] = 0,
) -> None:
    """Print the log of a task."""
    api = CLI.api()
    path = f"{_TASK}/{named(task)}/log"
    while True:
        answer = api.fetch(path, {"offset": offset})
        echo_lines(answer.content.decode(errors="replace"), end=False)
        offset = int(answer.headers.get(LOG_OFFSET, 0)) + len(answer.content)
        # A large log is sent in several answers.
        if not answer.content or offset >= int(answer.headers.get(LOG_SIZE, 0)):
            return


@task_app.command()
def report(task: TaskId, as_json: Json = False) -> None:
    """Show the report of a task: rows read, samples of bad rows, segments removed."""
    answer = CLI.api().get(f"{_TASK}/{named(task)}/reports")
    payload = part(answer, "ingestionStatsAndErrors", "payload")
    if as_json or not isinstance(payload, dict):
        print_json(answer)
        return
    echo(f"state       {payload.get('ingestionState')}")
    if payload.get("errorMsg"):
        echo(f"error       {payload['errorMsg']}")
    stats = payload.get("rowStats")
    rows = [
        {"phase": phase, **counts}
        for phase, counts in (stats.items() if isinstance(stats, dict) else ())
        if isinstance(counts, dict)
    ]
    gone = removed(payload)
    if rows or not gone:
        print_rows(rows, as_json=False, empty="no rows were read")
    for text in filter(None, (gone, emptied(payload))):
        echo(text)
    samples = payload.get("unparseableEvents")
    shown = [
        sample
        for found in (samples.values() if isinstance(samples, dict) else ())
        for sample in (found if isinstance(found, list) else [])
    ]
    for sample in shown:
        echo(f"unparseable {json.dumps(sample, ensure_ascii=False)}")
    if not shown and any(row.get("unparseable") for row in rows):
        echo("to see rows that do not parse here, set tuningConfig.maxSavedParseExceptions")


@task_app.command()
def wait(task: TaskId, as_json: Json = False) -> None:
    """Wait until a task has ended; exit code 1 if it failed."""
    follow(task, as_json=as_json)


@task_app.command()
def shutdown(task: TaskId) -> None:
    """Stop a task; if it belongs to a supervisor, another one is started.

    The new task begins after the last published rows, so nothing is lost or duplicated.
    """
    api = CLI.api()
    # The overlord accepts any id, as Druid's does.
    ended = end_of(task, task_status(api, task))
    if ended is not None:
        echo(f"task {task} has ended already: {ended}")
        return
    api.post(f"{_TASK}/{named(task)}/shutdown")
    echo(f"asked task {task} to stop")


task_app.command("stop", short_help="The same as shutdown.")(shutdown)
