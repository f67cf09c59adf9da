"""`penstock supervisor …`: supervisors, which read topics into datasources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from penstock.core.errors import InvalidRequest, PenstockError, counted
from penstock.core.intervals import parse_time
from penstock.services.cli import exit_codes
from penstock.services.cli.command_options import CLI
from penstock.services.cli.indexing.followed_tasks import (
    AUTOCOMPACT,
    Wait,
    awaited,
    compacts,
    named,
    print_end,
    succeeded,
    warn_of_no_data,
)
from penstock.services.cli.output import (
    confirm,
    echo,
    first_line,
    print_json,
    print_rows,
    wait_lines,
    warn,
    without_empty,
)
from penstock.services.cli.spec_files import DocumentKind, errors_in, read_spec
from penstock.services.json_values import objects, part, whole

PREFIX = "/druid/indexer/v1/supervisor"
_COMPACTS = f"{AUTOCOMPACT}__"
# The overlord's name of this type (`penstock.indexing.overlord.supervisor_service`).
_SHORT = "shortOfSlots"
_TASKS_WAIT_FOR = "tasksWaitFor"
# The stream is polled every second unless the spec sets a longer period; an older report shows its
# age.
_FRESH_MS = 3_000
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)

supervisor_app = typer.Typer(
    help="Supervisors, which read topics into datasources.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Id = Annotated[
    str, typer.Argument(help="Id of the supervisor; by default the name of its datasource.")
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(supervisor_app, name="supervisor")


@supervisor_app.command()
def submit(
    file: Annotated[Path, typer.Argument(help="The spec, JSON or YAML; - is standard input.")],
    as_json: Json = False,
) -> None:
    """Create a supervisor, or update its spec."""
    spec = read_spec(file)
    with errors_in(file, spec, DocumentKind.SUPERVISOR):
        answer = CLI.api().request("POST", PREFIX, spec)
    if as_json:
        print_json(answer)
    elif isinstance(answer, dict):
        name = str(answer.get("id"))
        echo(f"submitted supervisor {name}")
        if name.startswith(_COMPACTS):
            warn_of_no_data(CLI.api(), name.removeprefix(_COMPACTS))
        else:
            _warn_of_slots(name)


def _warn_of_slots(name: str) -> None:
    """Warn if the supervisors need more slots than there are, so that tasks wait."""
    try:
        found = objects(CLI.api().get(PREFIX, {"state": "true"}))
    except PenstockError:  # It was submitted; only the warning is missing.
        return
    for one in found:
        if one.get("id") == name and one.get(_SHORT):
            warn(f"penstock: {one[_SHORT]}")


@supervisor_app.command("list")
def list_supervisors(as_json: Json = False) -> None:
    """List the supervisors."""
    found = objects(CLI.api().get(PREFIX, {"state": "true"}))
    rows = [
        {
            "id": one.get("id"),
            "datasource": one.get("dataSource"),
            "state": one.get("detailedState") or one.get("state"),
            "healthy": one.get("healthy"),
            "suspended": one.get("suspended"),
        }
        for one in found
    ]
    if as_json:
        print_json(
            [row | {"waits": objects(one, "waits")} for row, one in zip(rows, found, strict=True)]
        )
        return
    print_rows(rows, as_json=False, empty="no supervisors")
    # Below the table, with the full width of the terminal.
    for one in found:
        for line in wait_lines(one):
            echo(f"{one.get('id')} waits for {line}")
    # The reason is the same for all, because slots are shared.
    for short in sorted({str(one[_SHORT]) for one in found if one.get(_SHORT)}):
        warn(f"penstock: {short}")


@supervisor_app.command()
def status(name: Id, as_json: Json = False) -> None:
    """Show a supervisor: its state, its tasks, its lag."""
    answer = CLI.api().get(f"{PREFIX}/{named(name)}/status")
    payload = answer.get("payload") if isinstance(answer, dict) else None
    if as_json or not isinstance(payload, dict):
        print_json(answer)
        return
    echo(f"supervisor  {name}")
    if compacts(payload):
        _show_compaction(payload)
        return
    for label, key in (
        ("datasource", "dataSource"),
        ("topic", "stream"),
        ("state", "detailedState"),
        ("lag", "aggregateLag"),
    ):
        # The age of the report, for the values that depend on it.
        age = _age(answer) if label == "lag" else ""
        echo(f"{label:<12}{payload.get(key)}{age}")
    if payload.get(_SHORT):
        echo(f"{'slots':<12}{payload[_SHORT]}")
    for line in wait_lines(payload):
        echo(f"{'waits for':<12}{line}")
    for file in objects(part(payload, "skippedFiles"), "files")[:1]:
        count = counted(whole(payload["skippedFiles"], "count"), "file")
        echo(f"{'skipped':<12}{count}, such as {file.get('path')}: {file.get('reason')}")
    waits = payload.get(_TASKS_WAIT_FOR)
    for text in waits if isinstance(waits, list) else []:
        echo(f"{'tasks':<12}wait for {text}")
    for error in objects(payload, "recentErrors"):
        echo(f"error       {error.get('timestamp')}  {first_line(error.get('exceptionMessage'))}")
    tasks = objects(payload, "activeTasks") + objects(payload, "publishingTasks")
    have_priorities = any(task.get("serverPriority") for task in tasks)
    rows = [
        {
            "task": task.get("id"),
            # A task that waits for a slot is active only for the supervisor.
            "type": "PENDING" if task.get("phase") == "PENDING" else task.get("type"),
            "priority": task.get("serverPriority") if have_priorities else None,
            "offsets": _by_partition(task.get("currentOffsets") or task.get("startingOffsets")),
            "lag": _by_partition(task.get("lag")),
            "remaining s": task.get("remainingSeconds"),
        }
        for task in tasks
    ]
    print_rows(without_empty(rows, "priority"), as_json=False, empty="no tasks")


def _age(status: object) -> str:
    """Describe the age of a status's report of the stream; empty if it is current."""
    times = part(status, "generationTime"), part(status, "payload", "offsetsLastUpdated")
    try:
        now_ms, polled_ms = (parse_time(str(time)) for time in times)
    except InvalidRequest:  # no report yet, or one of another release
        return ""
    age_ms = now_ms - polled_ms
    return f", as of {age_ms // 1000:,} s ago" if age_ms >= _FRESH_MS else ""


def _show_compaction(payload: Mapping[str, object]) -> None:
    for label, key in (
        ("datasource", "dataSource"),
        ("state", "detailedState"),
        ("awaiting", "segmentCountAwaitingCompaction"),
        ("compacted", "segmentCountCompacted"),
        ("skipped", "segmentCountSkipped"),
    ):
        echo(f"{label:<12}{payload.get(key)}")


def _by_partition(numbers: object) -> str:
    """Format the values of each stream partition: `0:12 1:7`."""
    if not isinstance(numbers, dict):
        return ""
    return " ".join(f"{partition}:{number}" for partition, number in numbers.items())


def _act(name: str, action: str, body: object = None) -> None:
    CLI.api().post(f"{PREFIX}/{named(name)}/{action}", body)


@supervisor_app.command()
def history(
    name: Id,
    limit: Annotated[int, typer.Option("--max", min=1, help="Maximum number of versions.")] = 20,
    as_json: Json = False,
) -> None:
    """List the versions of a supervisor's spec, the newest first."""
    found = objects(CLI.api().get(f"{PREFIX}/{named(name)}/history", {"count": limit}))
    rows = [
        {
            "version": one.get("version"),
            "created": one.get("creationTime"),
            "what": _what(part(one, "spec")),
        }
        for one in found
    ]
    print_rows(found if as_json else rows, as_json=as_json)


def _what(spec: object) -> str:
    if part(spec, "type") == "NoopSupervisorSpec":
        return "terminated"
    return "suspended" if part(spec, "suspended") else "running"


@supervisor_app.command()
def lag(name: Id, as_json: Json = False) -> None:
    """Show the lag of a supervisor's tasks for each stream partition.

    The lag is the latest offset minus the offset up to which rows are persisted.
    """
    status = _status(name)
    payload = part(status, "payload")
    latest, behind = part(payload, "latestOffsets"), part(payload, "minimumLag")
    read: dict[str, int] = {}
    for task in objects(payload, "activeTasks"):
        offsets = part(task, "currentOffsets")
        for partition in offsets if isinstance(offsets, dict) else ():
            # The most advanced of several replicas.
            read[partition] = max(read.get(partition, 0), whole(offsets, partition))
    rows = [
        {
            "partition": partition,
            "latest": offset,
            "read": read.get(partition),
            "persisted": _less(offset, part(behind, partition)),
            "committed": part(payload, "committedOffsets", partition),
            "lag": part(behind, partition),
        }
        for partition, offset in (latest.items() if isinstance(latest, dict) else ())
    ]
    print_rows(rows, as_json=as_json, empty="no stream partition was read yet")
    if not as_json:
        time_ms = part(payload, "maxLagMillis")
        time = f", {time_ms / 1000:,.1f} s" if isinstance(time_ms, int) else ""
        echo(f"{counted(whole(payload, 'aggregateLag'), 'message')} behind{time}{_age(status)}")


def _less(number: object, other: object) -> int | None:
    return number - other if isinstance(number, int) and isinstance(other, int) else None


@supervisor_app.command()
def suspend(name: Id) -> None:
    """Stop reading; rows that were read are published."""
    _act(name, "suspend")
    echo(f"supervisor {name} is suspended")


@supervisor_app.command()
def resume(name: Id) -> None:
    """Resume reading."""
    _act(name, "resume")
    echo(f"supervisor {name} is resumed")


@supervisor_app.command()
def terminate(name: Id) -> None:
    """Terminate a supervisor after a publish; the data stays."""
    _act(name, "terminate")
    echo(f"supervisor {name} is terminated")


@supervisor_app.command()
def reset(
    name: Id,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", help="Stream partition and offset, such as 0=1200; may be repeated."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Forget the committed offsets, or continue at given offsets of some stream partitions.

    Events may be indexed again, or left out.
    """
    offsets = _offsets(to or [])
    what = f"Forget the offsets of {name}?"
    if offsets:
        what = f"Have {name} continue at {_by_partition(offsets)}?"
    confirm(what, yes=yes, loss="this may duplicate or lose events")
    if offsets:
        _act(name, "resetOffsets", {"partitions": {"type": "end", "partitionOffsetMap": offsets}})
    else:
        _act(name, "reset")
    echo(f"supervisor {name} is reset")


def _offsets(given: list[str]) -> dict[str, int]:
    """Parse stream partitions with their offsets.

    Raises:
        InvalidRequest: A text is invalid, or a stream partition occurs twice.
    """
    found: dict[str, int] = {}
    for text in given:
        partition, _, offset = text.partition("=")
        if not all(_NUMBER.fullmatch(one) for one in (partition, offset)):
            raise InvalidRequest(
                f"invalid offset {text!r}: write PARTITION=OFFSET, such as 0=1200", place="--to"
            )
        name = str(int(partition))
        if name in found:
            raise InvalidRequest(f"stream partition {name} occurs twice", place="--to")
        found[name] = int(offset)
    return found


@supervisor_app.command()
def backfill(
    name: Id,
    tasks: Annotated[
        int | None, typer.Option("--tasks", min=1, help="Number of its tasks. [default: the same]")
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            help="Only read these offsets beside the supervisor: stream partition, start and end,"
            " such as 0=100:200; may be repeated.",
        ),
    ] = None,
) -> None:
    """Continue at the latest messages; a second supervisor reads those before them, then ends.

    With --range, the supervisor continues where it is. Messages that it has published are then in
    the datasource twice.
    """
    query = {} if tasks is None else {"backfillTaskCount": tasks}
    if ranges:
        body = {"partitionOffsetRanges": _ranges(ranges)}
        path = f"/penstock/v1/supervisors/{named(name)}/backfill"
        other = part(CLI.api().post(path, body, query=query), "backfillSupervisorId")
        echo(f"{other} reads these offsets; supervisor {name} continues where it is")
        return
    path = f"{PREFIX}/{named(name)}/resetToLatestAndBackfill"
    other = part(CLI.api().post(path, query=query), "backfillSupervisorId")
    echo(f"supervisor {name} continues at the latest messages; {other} reads those before them")


def _ranges(given: list[str]) -> dict[str, list[int]]:
    """Parse ranges of offsets by stream partition.

    Raises:
        InvalidRequest: A text is invalid, or a stream partition occurs twice.
    """
    found: dict[str, list[int]] = {}
    for text in given:
        partition, _, offsets = text.partition("=")
        start, _, end = offsets.partition(":")
        if not all(_NUMBER.fullmatch(one) for one in (partition, start, end)):
            raise InvalidRequest(
                f"invalid range {text!r}: write PARTITION=START:END, such as 0=100:200",
                place="--range",
            )
        name = str(int(partition))
        if name in found:
            raise InvalidRequest(f"stream partition {name} occurs twice", place="--range")
        found[name] = [int(start), int(end)]
    return found


@supervisor_app.command()
def stats(name: Id, as_json: Json = False) -> None:
    """Show the counts of a supervisor's running tasks, and their rates in messages per second."""
    found = CLI.api().get(f"{PREFIX}/{named(name)}/stats")
    rows = [
        {
            "group": group,
            "task": task,
            **{
                label: part(shown, "totals", "buildSegments", key)
                for label, key in (
                    ("processed", "processed"),
                    ("unparseable", "unparseable"),
                    ("late", "thrownAwayLate"),
                    ("early", "thrownAwayEarly"),
                    ("filtered", "thrownAwayFiltered"),
                    ("bytes", "processedBytes"),
                )
            },
            "a second": part(shown, "movingAverages", "buildSegments", "1m", "processed"),
        }
        for group, tasks in (found.items() if isinstance(found, dict) else ())
        for task, shown in (tasks.items() if isinstance(tasks, dict) else ())
    ]
    if as_json:
        print_json(found)
    else:
        print_rows(rows, as_json=False, empty="no running task has reported counts yet")


@supervisor_app.command()
def handoff(
    name: Id,
    groups: Annotated[
        list[int] | None, typer.Option("--group", help="Only this task group. [default: all]")
    ] = None,
    wait: Wait = False,
) -> None:
    """Have the tasks publish the rows that they have read, and start new tasks."""
    tasks = _tasks_by_group(name) if wait or not groups else {}
    chosen = groups or sorted(tasks)
    if not chosen:
        raise InvalidRequest(
            f"supervisor {name} has no running task for a hand-off: its first task starts some"
            f" seconds after it is submitted; see penstock supervisor status {name}"
        )
    _act(name, "taskGroups/handoff", {"taskGroupIds": chosen})
    echo(f"supervisor {name} starts a hand-off")
    failed = [group for group in chosen if wait and not _published(group, tasks.get(group, []))]
    if failed:
        raise typer.Exit(exit_codes.FAILED)


def _published(group: int, tasks: list[str]) -> bool:
    """Wait for a group's replicas; the first publish is enough, and ends the others."""
    ended = {task: awaited(task, quietly=False) for task in tasks}
    done = [task for task, status in ended.items() if succeeded(status)]
    for task in done or ended:
        print_end(task, ended[task])
    if not ended:
        echo(f"task group {group} had no running task")
    return bool(done) or not ended


def _status(name: str) -> object:
    """Return the status of a supervisor that reads a stream.

    Raises:
        InvalidRequest: It compacts, so it has neither lag nor hand-offs.
    """
    status = CLI.api().get(f"{PREFIX}/{named(name)}/status")
    if compacts(part(status, "payload")):
        raise InvalidRequest(
            f"supervisor {name} compacts and reads no stream: see penstock supervisor status"
        )
    return status


def _tasks_by_group(name: str) -> dict[int, list[str]]:
    """Return the ids of the reading tasks, by task group."""
    found: dict[int, list[str]] = {}
    for task in objects(_status(name), "payload", "activeTasks"):
        group = task.get("groupId", 0)
        if isinstance(group, int):
            found.setdefault(group, []).append(str(task.get("id")))
    return found
