"""Common parts of the indexing commands: API paths, fields of answers, following a task.

A task is followed by polling its status and report; a bar shows its reported progress.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer

from penstock.core.errors import InvalidRequest, NotFound, PenstockError, Unavailable, counted
from penstock.core.instants import format_time, parse_time
from penstock.core.printable import quoted
from penstock.services.cli import exit_codes
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import echo, first_line, print_json, progress_bars, warn
from penstock.services.json_values import objects, part, whole

if TYPE_CHECKING:
    from penstock.services.json_client import JsonClient

INDEXER: Final = "/druid/indexer/v1"
COORDINATOR: Final = "/druid/coordinator/v1"
# Type of a compaction supervisor: repeated here, because importing the specs is slow.
AUTOCOMPACT: Final = "autocompact"

Show = Callable[[str, int, int], None]

_WAITING: Final = ("pending", "waiting")
_AGAIN: Final = ", try "
_POLLS_BEFORE_REASON: Final = 2
_EMPTIED_SHOWN: Final = 3
_WAIT_TEXT_LENGTH_MAX: Final = 2_000
_POLL_EVERY_S: Final = 0.5
# An overlord that is restarted answers within this time.
_SILENCE_MAX_S: Final = 60.0

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it ends, and show its progress.")]
Datasource = Annotated[str, typer.Argument(help="The datasource.")]
Interval = Annotated[
    str | None,
    typer.Option("--interval", help="Segments within it, such as 2013-01-01/2013-02-01."),
]


def named(*parts: str) -> str:
    """Return escaped names as parts of a path.

    Raises:
        InvalidRequest: A name cannot be a part of a path, so it is not valid.
    """
    for name in parts:
        if not name or "/" in name:
            raise InvalidRequest(
                f"{quoted(name)} is not a valid name: a name is not empty and has no '/', which"
                " separates the parts of a path; use a name as the list command shows it"
            )
    return "/".join(quote(name, safe="") for name in parts)


def compacts(supervisor: object) -> bool:
    """Return whether a supervisor compacts instead of reading a stream, by its entry or status."""
    return part(supervisor, "type") == AUTOCOMPACT


def task_status(api: JsonClient, task_id: str) -> dict[str, object]:
    """Return the status of a task.

    Raises:
        NotFound: There is no such task.
    """
    found = part(api.get(f"{INDEXER}/task/{named(task_id)}/status"), "status")
    if not isinstance(found, dict):
        raise NotFound(f"there is no task {task_id}")
    return found


def end_of(task_id: str, status: object) -> str | None:
    """Return how and when a task ended, and why it failed; None if it has not ended."""
    code, created = part(status, "statusCode"), part(status, "createdTime")
    took_ms = part(status, "duration")
    if code == "RUNNING" or not isinstance(created, str) or not isinstance(took_ms, int):
        return None
    at = format_time(parse_time(created) + took_ms)
    if code == "SUCCESS":
        return f"it succeeded at {at}"
    reason = first_line(part(status, "errorMsg")) or "no reason was recorded"
    return f"it failed at {at}: {reason} (its log: penstock task log {task_id})"


def live_report(api: JsonClient, task_id: str, status: object) -> object:
    """Return the payload of a running task's report; None if it does not run, or has none.

    Args:
        api: The API.
        task_id: The task.
        status: Its status, as the API returns it.
    """
    if part(status, "runnerStatusCode") != "RUNNING":
        return None
    try:
        report = api.get(f"{INDEXER}/task/{named(task_id)}/reports")
    except PenstockError:  # It has just begun, or its peon is busy: nothing is known.
        return None
    return part(report, "ingestionStatsAndErrors", "payload")


def progress_text(payload: object) -> str | None:
    """Return the phase of a running task, its rows, parts and files, from its report."""
    phase = part(payload, "ingestionState")
    if not isinstance(phase, str):
        return None
    texts = [phase.lower().replace("_", " ")]
    if rows := _rows_read(payload):
        texts.append(f"{counted(rows, 'row')} read")
    written = part(payload, "rowsWritten")
    if isinstance(written, int) and written:
        texts.append(f"{written:,} written")
    done, total = part(payload, "partsDone"), part(payload, "partsTotal")
    if isinstance(done, int) and isinstance(total, int) and total:
        texts.append(f"{done:,} of {counted(total, 'part')}")
    read, files = part(payload, "filesRead"), part(payload, "filesTotal")
    if isinstance(read, int) and isinstance(files, int) and files:
        texts.append(f"{read:,} of {counted(files, 'file')} read")
    return ", ".join(texts)


def _rows_read(payload: object) -> int:
    """Return the rows that a running task has read so far; 0 if unknown."""
    found = part(payload, "rowsRead")
    if found is None:  # a streaming task
        found = part(payload, "rowStats", "buildSegments", "processed")
    return found if isinstance(found, int) else 0


def retry_text(payload: object) -> str | None:
    """Return how many times a running task's work has failed and the last reason; None if never.

    Args:
        payload: What `live_report` returned.
    """
    failures = part(payload, "failedTries")
    if not isinstance(failures, int):
        return None
    reason = first_line(part(payload, "lastFailure"))
    most, next_try = part(payload, "failedTriesMax"), part(payload, "nextTry")
    of = f"{failures} of {most} tries"
    count = of if isinstance(most, int) else counted(failures, "try", "tries")
    again = f" (next attempt at {next_try})" if isinstance(next_try, str) else ""
    return f"{count} of its work failed{again}, last reason: {reason}"


def warn_of_no_data(api: JsonClient, datasource: str) -> None:
    """Warn if a datasource to compact, or that gets rules, does not exist.

    It may be created later, so this is not an error; but the name may be misspelt.
    """
    try:
        names = api.get(f"{COORDINATOR}/datasources")
    except PenstockError:  # The command succeeded; only its warning is missing.
        return
    if isinstance(names, list) and datasource not in names:
        warn(f"penstock: there is no datasource {datasource} with data in it yet: check its name")


def follow(task_id: str, *, as_json: bool) -> None:
    """Wait until a task has ended, and exit as the task did.

    Raises:
        Unavailable: The API did not answer for a while; the task continues.
    """
    status = awaited(task_id, quietly=as_json)
    if as_json:
        print_json(status)
    else:
        print_end(task_id, status)
    if not succeeded(status):
        raise typer.Exit(exit_codes.FAILED)


def awaited(task_id: str, *, quietly: bool) -> dict[str, object]:
    """Wait until a task has ended and return its status.

    A terminal shows its progress; otherwise, a line reports what the task waits for.

    Raises:
        Unavailable: The API did not answer for a while; the task continues.
    """
    api = CLI.api()
    if quietly:
        return _wait(api, task_id, lambda _text, _done, _total: None)
    if not sys.stderr.isatty():
        return _wait(api, task_id, _WaitLines(task_id).show)
    return _wait_with_bar(api, task_id)


def succeeded(status: Mapping[str, object]) -> bool:
    """Return whether a task that has ended succeeded."""
    return status.get("statusCode") == "SUCCESS"


def print_end(task_id: str, status: Mapping[str, object]) -> None:
    """Print how a task has ended, and the outcome of its rows."""
    if succeeded(status):
        echo(f"task {task_id} succeeded{_counted(task_id)}")
    else:
        reason = first_line(status.get("errorMsg")) or f"see penstock task log {task_id}"
        warn(f"penstock: task {task_id} failed: {reason}")


def _counted(task_id: str) -> str:
    """Return the work of a task: the number of rows read, or of segments removed."""
    try:
        report = CLI.api().get(f"{INDEXER}/task/{named(task_id)}/reports")
    except PenstockError:  # There is no report, or it was deleted; the task succeeded nevertheless.
        return ""
    payload = part(report, "ingestionStatsAndErrors", "payload")
    if gone := removed(payload):
        return f": {gone}"
    phases, written = part(payload, "rowStats"), part(payload, "rowsWritten")
    names = phases if isinstance(phases, dict) else {}
    if not names:  # This task type reads no rows.
        return ""
    counts = {
        kind: sum(whole(phases, phase, kind) for phase in names)
        for kind in ("processed", "thrownAway", "unparseable")
    }
    bad = (("thrownAway", "thrown away"), ("unparseable", "unparseable"))
    lost = [f"{counts[name]:,} {text}" for name, text in bad if counts[name]]
    rows = f": {counted(counts['processed'], 'row')}"
    if isinstance(written, int) and written != counts["processed"]:
        rows += f" rolled up into {written:,}"
    shown = ", ".join([rows, *lost])
    if counts["unparseable"]:
        shown += f" (see penstock task report {task_id})"
    gone = emptied(payload)
    return f"{shown}; {gone}" if gone else shown


def removed(payload: object) -> str:
    """Return the number of segments that a task removed, from its report; empty for other tasks."""
    killed, files = part(payload, "segmentsKilled"), part(payload, "filesDeleted")
    if not isinstance(killed, int):
        return ""
    text = f"{counted(killed, 'segment')} removed"
    if not killed or not isinstance(files, int):
        return text
    return f"{text}, and {counted(files, 'file')} of them"


def emptied(payload: object) -> str:
    """Return the intervals that a task emptied, from its report, as text."""
    found = part(payload, "intervalsEmptied")
    if not isinstance(found, list) or not found:
        return ""
    count = part(payload, "intervalsEmptiedCount")
    shown = ", ".join(str(one) for one in found[:_EMPTIED_SHOWN])
    more = (count if isinstance(count, int) else len(found)) - _EMPTIED_SHOWN
    rest = f" and {counted(more, 'interval')} more" if more > 0 else ""
    return f"the segments of {shown}{rest} are hidden and have no new rows"


class _WaitLines:
    """Lines on standard error that explain why a task waits, each reason once."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id
        self._seen: Counter[str] = Counter()

    def show(self, text: str, _done: int, _total: int) -> None:
        """Report it at the third poll, because most waits are over by then."""
        state, _, reason = text.partition(": ")
        waits, again = state.startswith(_WAITING), _AGAIN in state
        # The number of attempts changes each time, but the reason is the same.
        key = reason if again else text
        self._seen[key] += 1
        if self._seen[key] == _POLLS_BEFORE_REASON + 1 and (waits or again):
            warn(f"task {self._task_id} {f'tries again: {reason}' if again else f'is {text}'}")


def _wait_with_bar(api: JsonClient, task_id: str) -> dict[str, object]:
    with progress_bars(with_rest=False) as bars:
        bar = bars.add("waits", None)

        def show(text: str, done: int, total: int) -> None:
            bars.update(bar, done, total or None, text=text[:100])

        return _wait(api, task_id, show)


def _wait(api: JsonClient, task_id: str, show: Show) -> dict[str, object]:
    silent_since_s: float | None = None
    while True:
        try:
            status = task_status(api, task_id)
            if status.get("statusCode") != "RUNNING":
                return status
            show(*_progress(api, task_id, status))
            silent_since_s = None
        except Unavailable as error:
            now_s = time.monotonic()
            silent_since_s = silent_since_s or now_s
            if now_s - silent_since_s > _SILENCE_MAX_S:
                raise Unavailable(
                    f"the status of task {task_id} is unknown; it continues: {error}"
                ) from None
        time.sleep(_POLL_EVERY_S)


def _progress(api: JsonClient, task_id: str, status: Mapping[str, object]) -> tuple[str, int, int]:
    """Return the current step of a task, the work done, and the total work."""
    state = str(status.get("runnerStatusCode", "")).lower()
    if state != "running":
        waits = objects(api.get(f"{INDEXER}/task/{named(task_id)}/why"), "waits")
        text = str(waits[0].get("text")) if waits else ""
        return (f"{state}: {text[:_WAIT_TEXT_LENGTH_MAX]}" if text else state), 0, 0
    try:
        report = api.get(f"{INDEXER}/task/{named(task_id)}/reports")
    except PenstockError:  # It has just begun; its status is enough.
        return state, 0, 0
    payload = part(report, "ingestionStatsAndErrors", "payload")
    rows = _rows_read(payload)
    done, total = part(payload, "partsDone"), part(payload, "partsTotal")
    text = str(part(payload, "ingestionState") or state).lower().replace("_", " ")
    failures = part(payload, "failedTries")
    if isinstance(failures, int):
        text += f"{_AGAIN}{failures + 1}: {first_line(part(payload, 'lastFailure'))}"
    elif rows:
        text += f", {counted(rows, 'row')}"
    return text, done if isinstance(done, int) else 0, total if isinstance(total, int) else 0
